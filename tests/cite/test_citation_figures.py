"""The figures of a refiner's evaluation."""

from __future__ import annotations

from measured import Finished, citation_figures

from sleuth.answers.failures import failure_mode
from sleuth.evaluation.figures import question_value
from sleuth.types import Evidence, Score, Segment, Task, Trajectory

STORY = Trajectory(segments=(Segment(author="policy", tokens=(1, 2, 3), text="x"),))
CITED = {
    "claims": 2.0,
    "padding": 0.25,
    "abstained": 0.0,
    "citation_recall": 0.5,
    "citation_precision": 1.0,
    "citation_f1": 2 / 3,
    "citation_precision_concatenated": 0.5,
    "valid_ids": 1.0,
    "well_formed": 1.0,
    "grounded": 1.0,
}
SILENT = CITED | {"claims": 0.0, "abstained": 1.0, "citation_f1": 0.0, "citation_recall": 0.0, "grounded": 0.0}
RIGHTLY = {
    "claims": 0.0,
    "padding": 0.0,
    "abstained": 1.0,
    "right_abstention": 1.0,
    "grounded": 1.0,
    "well_formed": 1.0,
}


def task(name: str, answerable: bool | None = True) -> Task:
    evidence = Evidence(reasoning="", output="", snippets=(), answerable=answerable)
    return Task(id=name, question=name, golden_answers=(), evidence=evidence)


RECORDS: list[Finished] = [
    (task("a"), STORY, Score(value=1.0, parts=CITED)),
    (task("b"), STORY, Score(value=0.0, parts=SILENT)),
    (task("c", answerable=False), STORY, Score(value=1.0, parts=RIGHTLY)),
    (task("d"), STORY, Score(value=None, note="the judge gave no verdict: timed out")),
]


def test_every_figure_is_over_the_answers_that_have_it() -> None:
    figures = citation_figures(RECORDS)
    told = {name: (figure.value, figure.n) for name, figure in figures.items()}
    assert told["citation_f1"] == (1 / 3, 2)
    assert told["citation_recall"] == (0.25, 2)
    assert told["grounded"] == (2 / 3, 3)
    assert told["right_abstention"] == (1.0, 1)
    assert told["wrong_abstention"] == (0.5, 2)
    assert told["abstention_f1"] == (2 / 3, 3)
    assert told["claims"] == (2 / 3, 3)
    assert told["response_tokens_mean"] == (3.0, 4)
    assert told["missing"] == (0.25, 4)
    assert all(figure.low is not None and figure.high is not None for figure in figures.values())


def test_a_record_tells_the_same_of_itself_and_what_became_of_it() -> None:
    record = {"em": None, "citation_f1": 0.4, "grounded": 0.0, "note": "cited"}
    assert question_value("citation_f1", record) == 0.4
    assert question_value("missing", record) == 0.0
    assert failure_mode(record) == "wrong_reading"
    assert failure_mode(record | {"grounded": 1.0}) == "right"
    assert failure_mode(record | {"grounded": None}) == "wrong_untold"
    assert failure_mode(record | {"note": "malformed"}) == "malformed"
    assert question_value("missing", {"em": None}) == 1.0
    assert failure_mode({"em": None}) == "missing"
