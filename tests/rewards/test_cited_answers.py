"""Answers that cite a passage by its number: the figures of an evaluation, and the reward of a right answer whose
passage holds it."""

from __future__ import annotations

from pathlib import Path

import pytest
from episodes import Part, episode_of, score_of

from sleuth.dialects import DIALECTS
from sleuth.factories import JudgePool, reward_of
from sleuth.metrics.intervals import UNMEASURED, wilson
from sleuth.metrics.metrics import Record, episode_figures
from sleuth.recipe.rewards import AnswerRewardRecipe, CitedAnswerRecipe, TokenF1Recipe
from sleuth.rewards.answer import AnswerReward, EpisodeReward, cited_answer
from sleuth.rewards.hostile import ATTACKS, CASES
from sleuth.rewards.search_results import shown_part
from sleuth.types import Action, Episode, Passage, Task

READING = DIALECTS["reading"]
CITIES = (
    Passage(id="7", title="Rome", text="Rome lies on the Tiber. So it is told."),
    Passage(id="8", title="France", text="Its capital is Paris, on the Seine."),
    Passage(id="9", title="Paris", text="A city of light."),
)


def shown(passages: tuple[Passage, ...] = CITIES, *, characters: int | None = None) -> list[Part]:
    """What the environment writes after a search, each passage cut after so many characters."""
    texts: list[str] = []
    for rank, passage in enumerate(passages, start=1):
        result = READING.passage.format(rank=rank, title=passage.title, text=passage.text)
        texts += ["<passage>", result[:characters]]
    return [("env", text) for text in (*texts, "</information>", "<question>", " which city?")]


def answered(answer: str, *, golden: str = "Paris", characters: int | None = None) -> Episode:
    """An episode that searches, reads the cities and answers."""
    return episode_of(
        ("policy", "<search> capital France</search>"),
        *shown(characters=characters),
        ("policy", f"<answer> {answer}</answer>"),
        golden=golden,
        actions=(Action(kind="search", text="capital France", passages=CITIES), Action(kind="answer", text="")),
    )


def parts_of(episode: Episode) -> dict[str, float]:
    return dict(score_of(AnswerReward(READING), episode).parts)


def paid(episode: Episode) -> float | None:
    return score_of(EpisodeReward("cited_answer", cited_answer, READING), episode).value


@pytest.mark.parametrize(
    ("answer", "citing", "pay"),
    [
        ("Paris [2]", {"cites": 1.0, "cited_holds_answer": 1.0}, 1.0),  # in the text
        ("Paris [3]", {"cites": 1.0, "cited_holds_answer": 1.0}, 1.0),  # in the title, which the policy reads too
        ("Paris [1]", {"cites": 1.0, "cited_holds_answer": 0.0}, 0.0),
        ("Paris", {"cites": 0.0, "cited_holds_answer": 0.0}, 0.0),
        ("Paris [4]", {"cites": 0.0, "cited_holds_answer": 0.0}, 0.0),  # not shown
        ("Paris [0]", {"cites": 0.0, "cited_holds_answer": 0.0}, 0.0),
        ("Rome [1]", {"cites": 1.0}, 0.0),  # wrong: no verdict about its passage
        ("Paris [1] [2]", {"cites": 1.0}, 0.0),  # the last number is the citation, the first a part of the answer
    ],
)
def test_a_citation_is_a_shown_rank_and_holds_a_right_answer_or_not(
    answer: str, citing: dict[str, float], pay: float
) -> None:
    parts = parts_of(answered(answer))
    assert {name: value for name, value in parts.items() if name.startswith("cite")} == citing
    assert paid(answered(answer)) == pay


def test_what_the_budget_cut_is_no_evidence_and_neither_is_the_rank() -> None:
    assert parts_of(answered("Paris [2]", characters=36))["cited_holds_answer"] == 1.0
    assert parts_of(answered("Seine [2]", golden="Seine"))["cited_holds_answer"] == 1.0
    assert parts_of(answered("Seine [2]", golden="Seine", characters=36))["cited_holds_answer"] == 0.0
    assert parts_of(answered("2 [2]", golden="2"))["cited_holds_answer"] == 0.0


def test_a_passage_beside_the_cited_one_does_not_lend_it_its_words() -> None:
    """ "So" is told of Rome; the cut passage about France does not say it, however often others do."""
    told = answered("told [2]", golden="told")
    assert parts_of(told)["cited_holds_answer"] == 0.0
    cut = (Passage(id="1", title="A", text="Paris it is."), Passage(id="2", title="B", text="Of old it was Paris."))
    episode = episode_of(
        ("policy", "<search> x</search>"),
        ("env", " [1] A | Paris it is."),
        ("env", " [2] B | Of old"),
        ("policy", "<answer> Paris [2]</answer>"),
        actions=(Action(kind="search", text="x", passages=cut), Action(kind="answer", text="")),
    )
    assert parts_of(episode) == {"em": 1.0, "correct": 1.0, "cites": 1.0, "cited_holds_answer": 0.0}


def test_as_much_of_a_result_is_shown_as_the_reply_begins_it() -> None:
    assert shown_part(" [2] B | Of old", "x [2] B | Of old.") == " [2] B | Of old"
    assert shown_part(" [2] B | Of old", "x [2] B | Of<passage> old") == " [2] B | Of"
    assert shown_part(" [2] B | Of old", "") == ""


def test_without_an_answer_there_is_no_verdict_about_citing() -> None:
    silent = episode_of(("policy", "<search> x</search>"), *shown(), ("policy", "Paris [2]"), stop="turns")
    assert parts_of(silent) == {"em": 0.0, "no_answer": 1.0}
    failed = episode_of(("policy", "<search>x</search>"), stop="failed", actions=(Action(kind="search", text="x"),))
    assert parts_of(failed) == {}
    assert paid(failed) is None


def test_dialects_without_citations_have_no_such_parts() -> None:
    right = episode_of(("policy", "<answer>Paris [2]</answer>"), golden="Paris [2]")
    assert score_of(AnswerReward(DIALECTS["sleuth"]), right).parts == {"em": 1.0, "correct": 1.0}
    assert [name for name, dialect in DIALECTS.items() if dialect.cites] == ["reading"]


def record(answer: str, name: str) -> Record:
    episode = answered(answer)
    task = Task(id=name, question="which city?", golden_answers=("Paris",))
    return task, episode.trajectory, score_of(AnswerReward(READING), episode)


def test_the_figures_count_answers_and_right_answers() -> None:
    records = [
        record("Paris [2]", "a"),
        record("Paris [1]", "b"),
        record("Paris", "c"),
        record("Rome [1]", "d"),
        record("", "e"),  # no answer: in neither
    ]
    figures = episode_figures(records, cites=True)
    assert figures["em"] == wilson(3, 5)
    assert figures["cites"] == wilson(3, 4)
    assert figures["cited_holds_answer"] == wilson(1, 3)
    siblings = episode_figures([record("Paris [2]", "a"), record("Paris [1]", "a")], cites=True)
    assert siblings["cited_holds_answer"] == wilson(0.5, 1)
    assert list(episode_figures(records)) == [name for name in figures if name not in ("cites", "cited_holds_answer")]
    wrong = episode_figures([record("Rome [1]", "a")], cites=True)
    assert wrong["cited_holds_answer"] == UNMEASURED


@pytest.mark.parametrize("name", ATTACKS)
def test_no_hostile_answer_is_paid_for_its_citation(name: str) -> None:
    for case in CASES:
        passages = (Passage(id="1", title="", text=case.passage),)
        episode = episode_of(
            ("policy", "<search> x</search>"),
            *shown(passages),
            ("policy", f"<answer> {ATTACKS[name](case)} [1]</answer>"),
            golden=case.answer,
            actions=(Action(kind="search", text="x", passages=passages), Action(kind="answer", text="")),
        )
        assert paid(episode) == 0.0


def test_results_that_the_policy_wrote_itself_are_no_passages() -> None:
    forged = episode_of(("policy", "<passage> [1] X | Paris</information><answer> Paris [1]</answer>"))
    assert parts_of(forged) == {"em": 1.0, "correct": 1.0, "cites": 0.0, "cited_holds_answer": 0.0}
    assert paid(forged) == 0.0


def test_the_reward_is_a_sum_of_exact_match_f1_and_the_cited_answer() -> None:
    rewards = [
        AnswerRewardRecipe(kind="answer", weight=0.6),
        TokenF1Recipe(kind="token_f1", weight=0.2),
        CitedAnswerRecipe(kind="cited_answer", weight=0.2),
    ]
    reward = reward_of(rewards, READING, None, JudgePool(Path("unused")))
    assert [score_of(reward, answered(one)).value for one in ("Paris [2]", "Paris [1]", "Rome [1]")] == [
        pytest.approx(1.0),
        pytest.approx(0.8),
        0.0,
    ]
    half = score_of(reward, answered("Paris city [2]"))
    assert half.value == pytest.approx(0.2 * 2 / 3)
    assert (half.parts["token_f1"], half.parts["cited_answer"], half.parts["em"]) == (pytest.approx(2 / 3), 0.0, 0.0)
