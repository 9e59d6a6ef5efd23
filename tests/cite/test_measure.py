"""Recall, precision and F1 of citations, computed by hand; and an answer against an exact table of claims."""

from __future__ import annotations

from typing import Any

import pytest
from refined import refined, scored

from sleuth.cite.claims import CitedAnswer, EvidenceTexts, tagged
from sleuth.cite.measure import Citations, measure, measure_against_table, sheets_of
from sleuth.types import Case, StatedClaim

EVIDENCE = {"a": "A", "b": "B", "c": "C"}
"""Each text is its own name, so that a case reads `("x", "A\\n\\nB")`."""


def cases_of(answer: CitedAnswer, evidence: EvidenceTexts) -> list[Case]:
    return [case for sheet in sheets_of(answer, evidence) for case in sheet.cases]


def figures(answer: str, said: dict[tuple[str, str], float]) -> Citations:
    """What is not said is not supported."""
    cited = tagged(answer)
    support = {case: said.get((case.claim, case.evidence), 0.0) for case in cases_of(cited, EVIDENCE)}
    return measure(cited, EVIDENCE, support)


BOTH = "<snippet id=a,b>x</snippet>"


@pytest.mark.parametrize(
    ("answer", "said", "expected"),
    [
        (
            "<snippet id=a>x</snippet>",
            {("x", "A"): 1.0},
            {"recall": 1.0, "precision": 1.0, "f1": 1.0, "valid_ids": 1.0, "published": 1.0},
        ),
        (
            f"{BOTH}<snippet id=c>y</snippet><snippet id=c>z</snippet>",  # the mean over claims
            {("x", "A\n\nB"): 1.0, ("y", "C"): 0.5},
            {"recall": (1.0 + 0.5 + 0.0) / 3},
        ),
        # a citation that adds nothing; two that only together support; two of which each would do
        (BOTH, {("x", "A\n\nB"): 1.0, ("x", "A"): 1.0}, {"recall": 1.0, "precision": 0.5, "f1": 2 * 0.5 / 1.5}),
        (BOTH, {("x", "A\n\nB"): 1.0}, {"recall": 1.0, "precision": 1.0}),
        (BOTH, {("x", "A\n\nB"): 1.0, ("x", "A"): 1.0, ("x", "B"): 1.0}, {"precision": 1.0}),
        (
            "<snippet id=a>x</snippet><snippet id=b,c>y</snippet>",  # what supports no claim
            {("x", "A"): 1.0},
            {"precision": 1 / 3, "precision_concatenated": 1 / 2},
        ),
        # an id that does not exist
        ("<snippet id=a,zz>x</snippet>", {("x", "A"): 1.0}, {"recall": 1.0, "precision": 0.5, "valid_ids": 0.5}),
        ("<snippet id=zz>x</snippet>", {}, {"recall": 0.0, "precision": 0.0, "f1": 0.0, "valid_ids": 0.0}),
        (
            "<snippet id=a,zz>x</snippet><snippet id=b>y</snippet>",  # DR Tulu's: 0.6 F1 + 0.4 valid ids
            {("x", "A"): 0.5},
            {"published": 0.6 * (2 * 0.5 * 1.0 / 1.5 + 0.0) / 2 + 0.4 * 2 / 3},
        ),
    ],
)
def test_figures_by_hand(answer: str, said: dict[tuple[str, str], float], expected: dict[str, Any]) -> None:
    found = figures(answer, said)
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)


def test_an_answer_without_claims_has_zeros_and_asks_nothing() -> None:
    assert cases_of(tagged("Nothing of note."), EVIDENCE) == []
    assert figures("Nothing of note.", {}) == Citations()


def test_a_sheet_asks_each_claim_together_alone_and_left_out_and_has_each_snippet_once() -> None:
    [sheet] = sheets_of(tagged("<snippet id=b,a>x</snippet><snippet id=b,zz>y</snippet>"), EVIDENCE)
    assert sheet.snippets == ("A", "B")
    assert sheet.entries == (("x", (0, 1)), ("x", (1,)), ("x", (0,)), ("y", (1,)))


TABLE = (
    StatedClaim(claim="Ada Voss wrote The Silent Harbor.", snippets=("a", "c"), asked=True),
    StatedClaim(claim="Ada Voss was born in Tarn.", snippets=("b",), asked=True),
    StatedClaim(claim="Ada Voss was born in 1874.", snippets=("b",), asked=False),
)
WROTE = "<snippet id=a> Ada Voss wrote The Silent Harbor.</snippet>"
BORN = "<snippet id=b> Ada Voss was born in Tarn.</snippet>"


@pytest.mark.parametrize(
    ("answer", "precision", "recall", "off_query"),
    [
        *((f"{WROTE.replace('=a', ids)} {BORN}", 1.0, 1.0, 0.0) for ids in ("=a", "=c", "=a,c")),
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
    assert [found[name] for name in ("claim_precision", "claim_recall", "off_query")] == [precision, recall, off_query]


def test_the_table_is_told_beside_the_reward_and_never_paid() -> None:
    snippets = {"a": "The Silent Harbor was written by Ada Voss.", "b": "Ada Voss was born in Tarn in 1874."}
    [with_table] = scored(refined(f"{WROTE} {BORN}", snippets=snippets, stated=TABLE))
    [without] = scored(refined(f"{WROTE} {BORN}", snippets=snippets))
    assert with_table.value == without.value
    assert with_table.parts["claim_f1"] == 1.0
    assert "claim_f1" not in without.parts
    [unanswerable] = scored(refined(BORN, snippets=snippets, stated=TABLE, answerable=False, golden=()))
    assert "claim_f1" not in unanswerable.parts
