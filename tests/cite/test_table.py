"""An answer against an exact table of what its snippets state."""

from __future__ import annotations

import pytest
from refined import refined, scored

from sleuth.cite.claims import tagged
from sleuth.cite.measure import TableFigures, measure_against_table
from sleuth.types import StatedClaim

TABLE = (
    StatedClaim(claim="Ada Voss wrote The Silent Harbor.", snippets=("a", "c"), asked=True),
    StatedClaim(claim="Ada Voss was born in Tarn.", snippets=("b",), asked=True),
    StatedClaim(claim="Ada Voss was born in 1874.", snippets=("b",), asked=False),
)
WROTE = "<snippet id=a> Ada Voss wrote The Silent Harbor.</snippet>"
BORN = "<snippet id=b> Ada Voss was born in Tarn.</snippet>"


def test_all_that_is_asked_for_with_an_id_that_states_it_is_right() -> None:
    for first in (WROTE, WROTE.replace("=a", "=c"), WROTE.replace("=a", "=a,c")):
        assert measure_against_table(tagged(f"{first} {BORN}"), TABLE) == TableFigures(
            precision=1.0, recall=1.0, f1=1.0, off_query=0.0
        )


@pytest.mark.parametrize(
    ("answer", "precision", "recall", "off_query"),
    [
        (WROTE, 1.0, 0.5, 0.0),
        (f"{WROTE} {BORN.replace('=b', '=b,a')}", 2 / 3, 1.0, 0.0),  # a snippet too many
        (f"{WROTE} {BORN.replace('=b', '=a')}", 0.5, 0.5, 0.0),  # the wrong one
        (f"{WROTE} {BORN.replace('=b', '=z')}", 0.5, 0.5, 0.0),  # one that does not exist
        (f"{WROTE} {BORN.replace('Tarn', 'Velde')}", 0.5, 0.5, 0.0),  # what no snippet states
        (f"{WROTE} {BORN.replace('Tarn', '1874')}", 0.5, 0.5, 0.5),  # what one states and nobody asked
        ("Ada Voss was born in Tarn.", 0.0, 0.0, 0.0),  # without a source
        ("The tool output does not answer this.", 0.0, 0.0, 0.0),
    ],
)
def test_each_fault_costs_what_it_should(answer: str, precision: float, recall: float, off_query: float) -> None:
    found = measure_against_table(tagged(answer), TABLE)
    assert (found.precision, found.recall, found.off_query) == (precision, recall, off_query)


def test_the_table_is_told_beside_the_reward_and_never_paid() -> None:
    snippets = {"a": "The Silent Harbor was written by Ada Voss.", "b": "Ada Voss was born in Tarn in 1874."}
    [with_table] = scored(refined(f"{WROTE} {BORN}", snippets=snippets, stated=TABLE))
    [without] = scored(refined(f"{WROTE} {BORN}", snippets=snippets))
    assert with_table.value == without.value
    assert with_table.parts["claim_f1"] == 1.0
    assert "claim_f1" not in without.parts
    [unanswerable] = scored(refined(BORN, snippets=snippets, stated=TABLE, answerable=False, golden=()))
    assert "claim_f1" not in unanswerable.parts


def test_ids_that_do_not_exist_are_a_share_of_those_cited() -> None:
    told = {
        answer: scored(refined(answer))[0].parts.get("invented_ids")
        for answer in ("<snippet id=a1,zz>Ada Voss was born in Tarn.</snippet>", "Just words.")
    }
    assert [*told.values()] == [0.5, None]
