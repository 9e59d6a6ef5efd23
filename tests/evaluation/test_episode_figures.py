from __future__ import annotations

from measured import Finished, episode_figures

from sleuth.evaluation.evaluate import outcome_counts, question_record
from sleuth.evaluation.intervals import UNMEASURED, wilson
from sleuth.search.figures import recall
from sleuth.types import Action, Episode, Passage, Score, Segment, Task, Trajectory

RIGHT = Score(value=1.0, parts={"em": 1.0}, note="correct")
WRONG = Score(value=0.0, parts={"em": 0.0}, note="wrong")
LOST = Score(value=None, note="retriever failed")


def task(name: str, kind: str = "one_hop", gold: tuple[str, ...] = ("17",)) -> Task:
    return Task(id=name, question=f"{name}?", golden_answers=("Tarn",), gold_passages=gold, kind=kind)


def story(*shown: str, stop: str = "answered") -> Trajectory:
    """A trajectory with one search for each word, which showed the passages whose ids the word lists: "17 4"."""
    searches = [
        Action(kind="search", text="q", passages=tuple(Passage(id=i, title="", text="") for i in ids.split()))
        for ids in shown
    ]
    return Trajectory(segments=(), actions=(*searches, Action(kind="answer", text="Tarn")), stop=stop)


RECORDS: list[Finished] = [
    (task("a"), story("4 17"), RIGHT),  # found at once
    (task("b"), story(), WRONG),  # never searched
    (task("c", "two_hop"), story("4", "17"), RIGHT),  # found by the second search only
    (task("d", "two_hop"), story("17", "4", "9"), WRONG),
    (task("e", "two_hop"), story("17", stop="failed"), LOST),  # says nothing about the policy
    (task("f", "other", gold=()), story(), RIGHT),
]


def test_every_figure_counts_what_it_says() -> None:
    figures = episode_figures(RECORDS)
    assert {name: (figure.value, figure.n) for name, figure in figures.items()} == {
        "em": (3 / 5, 5),
        "em_one_hop": (1 / 2, 2),
        "em_two_hop": (1 / 2, 2),
        "searched": (3 / 5, 5),
        "searches_mean": (6 / 5, 5),
        "searches_two_hop": (5 / 2, 2),
        "query_recall": (2 / 4, 4),
        "query_recall_searched": (2 / 3, 3),
        "response_tokens_mean": (0, 5),
        "results_tokens_mean": (0, 5),
        "missing": (1 / 6, 6),
    }
    assert figures["em"] == wilson(3, 5)


def test_a_missing_score_is_not_a_wrong_answer() -> None:
    figures = episode_figures([(task("a"), story("17"), RIGHT), (task("b"), story("17"), LOST)])
    assert figures["em"] == wilson(1, 1)
    assert figures["missing"] == wilson(1, 2)
    assert figures["searched"] == wilson(2, 2)


def test_a_figure_that_no_task_could_give_is_absent_and_one_without_values_is_unmeasured() -> None:
    figures = episode_figures([(task("a", "span", gold=()), story(), LOST)])
    assert set(figures) == {"em", "searched", "searches_mean", "response_tokens_mean", "results_tokens_mean", "missing"}
    assert figures["em"] == UNMEASURED
    assert episode_figures([]) == {}
    assert episode_figures([(task("a"), story(), RIGHT)])["query_recall_searched"] == UNMEASURED


def test_tokens_are_those_that_the_policy_wrote_and_those_that_it_was_shown_for_it() -> None:
    segments = (
        Segment(author="template", tokens=(1, 2, 3), text=""),
        Segment(author="policy", tokens=(4, 5), text=""),
        Segment(author="env", tokens=(6,), text=""),
        Segment(author="policy", tokens=(7, 8, 9), text=""),
    )
    figures = episode_figures([(task("a"), Trajectory(segments=segments), RIGHT)])
    assert figures["response_tokens_mean"].value == 5
    assert figures["results_tokens_mean"].value == 1


def test_siblings_of_one_task_count_as_one_draw() -> None:
    records = [(task("a"), story(), RIGHT), (task("a"), story(), WRONG), (task("b"), story(), WRONG)]
    assert episode_figures(records)["em"] == wilson(0.5, 2)


def test_outcomes_are_counted_by_note_or_else_by_stop() -> None:
    silent = [(task("g"), story(stop="turns"), Score(value=0.0))]
    played = [(Episode(task=task, sample=0, trajectories=(one,)), score) for task, one, score in [*RECORDS, *silent]]
    counts = outcome_counts([question_record(episode, score) for episode, score in played])
    assert list(counts.items()) == [("correct", 3), ("wrong", 2), ("retriever failed", 1), ("turns", 1)]


def test_recall_counts_any_gold_passage_among_those_that_were_found() -> None:
    tasks = [task("a"), task("b"), task("c", gold=("1", "2")), task("d", gold=())]
    found = [[Passage(id=i, title="", text="") for i in ids.split()] for ids in ("4 17", "4", "2", "4")]
    assert recall(zip(tasks, found, strict=True)) == wilson(2, 3)
    assert recall((one, passages[:1]) for one, passages in zip(tasks, found, strict=True)) == wilson(1, 3)


def test_another_scorer_has_a_figure_of_its_own_beside_exact_match() -> None:
    paid = Score(value=0.8, parts={"em": 0.0, "score_verl": 0.8}, note="wrong")
    unread = Score(value=None, parts={"em": 1.0, "correct": 1.0}, note="cannot be read")
    figures = episode_figures([(task(name), story(), score) for name, score in (("a", paid), ("b", unread))])
    assert (figures["score_verl"].value, figures["score_verl"].n) == (0.8, 1)
    assert (figures["em"].value, figures["em"].n, figures["missing"].value) == (0.5, 2, 0.0)
