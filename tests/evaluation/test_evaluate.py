"""Records of evaluations and their figures, alone and over the sets of a suite."""

from __future__ import annotations

from typing import Any

import pytest
from measured import Finished, episode_figures

from sleuth.answers.answer import CITING
from sleuth.answers.factory import computes_score, leads_with_score
from sleuth.answers.failures import failure_mode
from sleuth.answers.tables import AnswerRewardRecipe, FunctionRewardRecipe
from sleuth.cite.dialect import REFINERS
from sleuth.cite.rubric_reward import RubricRecipe
from sleuth.dialect import DIALECTS
from sleuth.evaluation.evaluate import mean_over_sets, outcome_counts, question_record, record_values, set_figures
from sleuth.evaluation.figures import compared_figures, measured_figures
from sleuth.evaluation.intervals import UNMEASURED, bootstrap_mean, wilson
from sleuth.evaluation.paired import by_question, question_means
from sleuth.types import Action, Episode, Passage, Score, Segment, Task, Trajectory


def episode(name: str, shown: tuple[str, ...], kind: str = "one_hop", stop: str = "answered") -> Episode:
    """One search for each word, which shows the passages whose ids it lists."""
    searches = tuple(
        Action(kind="search", text="q", passages=tuple(Passage(id=i, title="", text="") for i in ids.split()))
        for ids in shown
    )
    segments = (
        Segment(author="template", tokens=(1,), text="Question: "),
        Segment(author="policy", tokens=(2,) * (3 + len(shown)), text="<answer>Quell</answer>"),
    )
    task = Task(id=name, question=f"{name}?", golden_answers=("Tarn",), gold_passages=("17",), kind=kind)
    trajectory = Trajectory(segments=segments, actions=(*searches, Action(kind="answer", text="Quell")), stop=stop)
    return Episode(task=task, sample=0, trajectories=(trajectory,))


def test_figures_of_records_are_the_figures_of_their_episodes() -> None:
    right = Score(value=1.0, parts={"em": 1.0, "cites": 1.0, "cited_holds_answer": 0.0, "cited_gold": 1.0})
    wrong = Score(value=0.0, parts={"em": 0.0, "cites": 0.0}, note="wrong")
    played = [
        (episode("a", ("4 17",)), right),
        (episode("b", ()), wrong),
        (episode("c", ("4", "17"), "two_hop"), right),
        (episode("d", ("17", "4", "9"), "two_hop"), wrong),
        (episode("e", ("17",), "two_hop", stop="failed"), Score(value=None, note="retriever failed")),
        (episode("a", ()), wrong),  # a second sample
    ]
    records = [question_record(one, score) for one, score in played]
    figures, run = measured_figures(records, DIALECTS["reading"]), by_question(records)
    assert [figures[name].n for name in CITING] == [4, 2, 2]
    for key in figures.keys() & {*compared_figures()}:
        [means] = question_means(key, list(run), [run])
        present = [value for value in means if value is not None]
        assert (sum(present) / len(present), len(present)) == (figures[key].value, figures[key].n), key


def test_a_stages_own_score_is_the_verdict_and_is_missing_even_where_the_answer_was_read() -> None:
    scored = Score(value=0.5, parts={"score": 0.5, "em": 0.0, "score_f": 0.5, "score_f/turns": 2.0}, note="wrong")
    missing = Score(value=None, parts={"em": 0.0}, note="f.py:3: f: no", notes={"f": "f.py:3: f: no"})
    played = [(episode("a", ()), scored), (episode("b", ()), missing)]
    records = [question_record(one, score, is_scored=True) for one, score in played]
    figures, run = measured_figures(records, DIALECTS["sleuth"]), by_question(records)
    for key, value, n in (("missing", 0.5, 2), ("score", 0.5, 1), ("score_f/turns", 2.0, 1)):
        [means] = question_means(key, list(run), [run])
        present = [one for one in means if one is not None]
        assert (figures[key].value, figures[key].n) == (sum(present) / len(present), len(present)) == (value, n)
    assert [failure_mode(record) for [record] in run.values()] == ["scored", "missing"]
    assert outcome_counts(records) == {"answered": 1, "f.py:3: f: no": 1}
    assert run["b"][0]["notes"] == missing.notes


def test_what_heads_an_evaluation_depends_on_the_rewards() -> None:
    """A judge is not asked in evaluations: then the functions come first, without a score."""
    own = FunctionRewardRecipe(kind="python", function="mine:f")
    judged = RubricRecipe.model_validate({"kind": "rubric", "judge": "lexical"})
    answer, dialect = AnswerRewardRecipe(kind="answer"), DIALECTS["sleuth"]
    found = [
        (leads_with_score(rewards, dialect), computes_score(rewards, dialect))
        for rewards in ((own,), (own, judged), (own, answer), ())
    ]
    assert found == [(True, True), (True, False), (False, False), (False, False)]
    assert not leads_with_score((own,), REFINERS["answer_only"])


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


def test_another_scorer_has_a_figure_of_its_own_beside_exact_match() -> None:
    paid = Score(value=0.8, parts={"em": 0.0, "score_verl": 0.8}, note="wrong")
    unread = Score(value=None, parts={"em": 1.0, "correct": 1.0}, note="cannot be read")
    figures = episode_figures([(task(name), story(), score) for name, score in (("a", paid), ("b", unread))])
    assert (figures["score_verl"].value, figures["score_verl"].n) == (0.8, 1)
    assert (figures["em"].value, figures["em"].n, figures["missing"].value) == (0.5, 2, 0.0)


def record(question: str, answer: str | None, em: float | None, **more: Any) -> dict[str, Any]:
    """An answered question whose golden answer is "Ada Voss"; it was told in two turns of 4 and 6 tokens."""
    note = "retriever failed" if em is None else "correct" if em else "wrong"
    turns = [{"author": "policy", "tokens": 4}, {"author": "env", "tokens": 90}, {"author": "policy", "tokens": 6}]
    plain = {"id": question, "golden_answers": ["Ada Voss"], "answer": answer, "em": em, "note": note}
    plain |= {"searches": 1, "stop": "failed" if em is None else "answered", "segments": turns} | more
    return plain | record_values(plain)


@pytest.mark.parametrize("note", ["no_answer", "malformed"])
def test_what_the_strict_reader_did_not_take_for_an_answer_matches_nothing(note: str) -> None:
    values = record("a", "Ada Voss", 0.0, note=note)
    assert (values["sub_match"], values["f1"]) == (0.0, 0.0)


def test_shares_have_wilsons_interval_and_means_that_of_a_bootstrap() -> None:
    records = [record("a", "Ada Voss", 1.0, searches=3), record("b", "Ada", 0.0), record("c", None, None)]
    figures = set_figures(records)
    assert (figures["em"], figures["sub_match"]) == (wilson(1, 2), wilson(1, 2))
    assert figures["f1"] == bootstrap_mean([1.0, 2 / 3])
    assert figures["searches_mean"] == bootstrap_mean([3.0, 1.0])
    assert figures["response_tokens_mean"] == bootstrap_mean([10.0, 10.0])


def test_the_mean_over_sets_counts_a_small_set_as_much_as_a_large_one() -> None:
    right, wrong = record("a", "Ada Voss", 1.0), record("b", "Rome", 0.0)
    large = [right | {"id": str(at)} for at in range(30)]
    figures = mean_over_sets([large, [wrong]])
    assert (figures["em"].value, figures["em"].n) == (0.5, 31)
    assert figures["f1"].value == 0.5


def test_a_mean_over_sets_of_which_one_has_no_verdict_is_none() -> None:
    figures = mean_over_sets([[record("a", "Ada Voss", 1.0)], [record("b", None, None)]])
    assert set(figures.values()) == {UNMEASURED}
