"""Recall, precision and F1 of citations, computed by hand."""

from __future__ import annotations

import pytest

from sleuth.cite.claims import CitedAnswer, tagged
from sleuth.cite.measure import MAX_SHEET, Citations, EvidenceTexts, measure, sheets_of
from sleuth.types import Case

EVIDENCE = {"a": "A", "b": "B", "c": "C"}
"""Each text is its own name, so that a case reads `("x", "A\\n\\nB")`."""


def cases_of(answer: CitedAnswer, evidence: EvidenceTexts) -> list[Case]:
    return [case for sheet in sheets_of(answer, evidence) for case in sheet.cases]


def figures(answer: CitedAnswer, said: dict[tuple[str, str], float]) -> Citations:
    """What is not said is not supported."""
    support = {case: said.get((case.claim, case.evidence), 0.0) for case in cases_of(answer, EVIDENCE)}
    return measure(answer, EVIDENCE, support)


def test_a_claim_with_its_one_source_is_perfect() -> None:
    found = figures(tagged("<snippet id=a>x</snippet>"), {("x", "A"): 1.0})
    assert (found.recall, found.precision, found.f1, found.valid_ids, found.published) == (1.0, 1.0, 1.0, 1.0, 1.0)


def test_recall_is_the_mean_over_claims_of_what_all_citations_together_support() -> None:
    answer = tagged("<snippet id=a,b>x</snippet><snippet id=c>y</snippet><snippet id=c>z</snippet>")
    found = figures(answer, {("x", "A\n\nB"): 1.0, ("y", "C"): 0.5})
    assert found.recall == (1.0 + 0.5 + 0.0) / 3


def test_a_citation_that_adds_nothing_is_not_precise() -> None:
    answer = tagged("<snippet id=a,b>x</snippet>")
    found = figures(answer, {("x", "A\n\nB"): 1.0, ("x", "A"): 1.0})
    assert (found.recall, found.precision) == (1.0, 0.5)
    assert found.f1 == pytest.approx(2 * 0.5 / 1.5)


def test_citations_that_only_together_support_are_both_precise() -> None:
    found = figures(tagged("<snippet id=a,b>x</snippet>"), {("x", "A\n\nB"): 1.0})
    assert (found.recall, found.precision) == (1.0, 1.0)


def test_citations_of_which_each_would_do_are_both_precise() -> None:
    said = {("x", "A\n\nB"): 1.0, ("x", "A"): 1.0, ("x", "B"): 1.0}
    assert figures(tagged("<snippet id=a,b>x</snippet>"), said).precision == 1.0


def test_what_supports_no_claim_is_not_precise() -> None:
    answer = tagged("<snippet id=a>x</snippet><snippet id=b,c>y</snippet>")
    found = figures(answer, {("x", "A"): 1.0})
    assert found.precision == 1 / 3
    assert found.precision_concatenated == 1 / 2


def test_ten_citations_where_one_would_do_cost_precision_and_not_the_concatenated_one() -> None:
    evidence = {f"{at}": f"T{at}" for at in range(10)}
    answer = tagged(f"<snippet id={','.join(evidence)}>x</snippet>")
    support = {case: float("T3" in case.evidence.split("\n\n")) for case in cases_of(answer, evidence)}
    found = measure(answer, evidence, support)
    assert (found.recall, found.precision, found.precision_concatenated) == (1.0, 0.1, 1.0)


def test_an_id_that_does_not_exist_costs_precision_and_validity() -> None:
    found = figures(tagged("<snippet id=a,zz>x</snippet>"), {("x", "A"): 1.0})
    assert (found.recall, found.precision, found.valid_ids) == (1.0, 0.5, 0.5)
    nothing = figures(tagged("<snippet id=zz>x</snippet>"), {})
    assert (nothing.recall, nothing.precision, nothing.f1, nothing.valid_ids) == (0.0, 0.0, 0.0, 0.0)


def test_the_published_score_is_six_tenths_f1_with_concatenated_precision_and_four_tenths_valid_ids() -> None:
    answer = tagged("<snippet id=a,zz>x</snippet><snippet id=b>y</snippet>")
    found = figures(answer, {("x", "A"): 0.5})
    of_x = 2 * 0.5 * 1.0 / 1.5
    assert found.published == pytest.approx(0.6 * (of_x + 0.0) / 2 + 0.4 * 2 / 3)


def test_an_answer_without_claims_has_zeros_and_asks_nothing() -> None:
    answer = tagged("Nothing of note.")
    assert cases_of(answer, EVIDENCE) == []
    found = measure(answer, EVIDENCE, {})
    assert (found.claims, found.recall, found.precision, found.f1, found.valid_ids, found.published) == (
        0,
        0,
        0,
        0,
        0,
        0,
    )


def test_each_claim_is_asked_together_alone_and_left_out_and_nothing_twice() -> None:
    asked = cases_of(tagged("<snippet id=b,a>x</snippet>"), EVIDENCE)
    assert set(asked) == {Case(claim="x", evidence=evidence) for evidence in ("A\n\nB", "A", "B")}
    assert len(asked) == 3


def test_a_sheet_has_each_snippet_once_and_names_it_where_it_is_cited() -> None:
    [sheet] = sheets_of(tagged("<snippet id=b,a>x</snippet><snippet id=b,zz>y</snippet>"), EVIDENCE)
    assert sheet.snippets == ("A", "B")
    assert sheet.entries == (("x", (0, 1)), ("x", (1,)), ("x", (0,)), ("y", (1,)))


def test_an_answer_that_cites_too_much_for_one_sheet_has_several() -> None:
    many = {f"s{n:02}": f"T{n:02}" for n in range(10)}
    sheets = sheets_of(tagged(f"<snippet id={','.join(many)}>x</snippet>"), many)
    assert [len(sheet.entries) for sheet in sheets] == [MAX_SHEET, 1 + 2 * 10 - MAX_SHEET]
    assert {case for sheet in sheets for case in sheet.cases} == {
        Case(claim="x", evidence="\n\n".join(texts))
        for texts in (
            [*many.values()],
            *([text] for text in many.values()),
            *([other for other in many.values() if other != text] for text in many.values()),
        )
    }


def test_the_order_of_ids_changes_nothing() -> None:
    said = {("x", "A\n\nB\n\nC"): 1.0, ("x", "A\n\nB"): 1.0, ("x", "B"): 1.0}
    orders = ("a,b,c", "c,b,a", "b,c,a")
    assert len({figures(tagged(f"<snippet id={order}>x</snippet>"), said).f1 for order in orders}) == 1
