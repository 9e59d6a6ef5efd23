"""The record of an episode contains all that its figures are computed from."""

from __future__ import annotations

from sleuth.answers.answer import CITING
from sleuth.answers.factory import computes_score, leads_with_score
from sleuth.answers.failures import failure_mode
from sleuth.answers.tables import AnswerRewardRecipe, FunctionRewardRecipe
from sleuth.cite.dialect import REFINERS
from sleuth.cite.rubric_reward import RubricRecipe
from sleuth.dialect import DIALECTS
from sleuth.evaluation.evaluate import outcome_counts, question_record
from sleuth.evaluation.figures import compared_figures, measured_figures
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
