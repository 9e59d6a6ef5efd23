"""Answers that cite a passage by quoting it: the figures of an evaluation, and the reward of a right answer that its
quotation contains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from answered_episodes import Part, episode_of, score_of
from attacks import ATTACKS, CASES
from measured import Finished, episode_figures

from sleuth.answers.answer import CITING, AnswerReward, EpisodeReward, cited_passage, quotation
from sleuth.answers.factory import reward_of
from sleuth.answers.match import appears_in
from sleuth.answers.tables import AnswerRewardRecipe, TokenF1Recipe
from sleuth.dialect import DIALECTS
from sleuth.evaluation.intervals import UNMEASURED, wilson
from sleuth.judges.factory import JudgePool
from sleuth.search.tables import CitedAnswerRecipe, cited_answer
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


def answered(
    answer: str, *, golden: str = "Paris", passages: tuple[Passage, ...] = CITIES, characters: int | None = None
) -> Episode:
    """An episode that searches, reads the passages and answers."""
    return episode_of(
        ("policy", "<search> capital France</search>"),
        *shown(passages, characters=characters),
        ("policy", f"<answer> {answer}</answer>"),
        golden=golden,
        actions=(Action(kind="search", text="capital France", passages=passages), Action(kind="answer", text="")),
    )


def parts_of(episode: Episode) -> dict[str, float]:
    return dict(score_of(AnswerReward(READING), episode).parts)


def paid(episode: Episode) -> float | None:
    return score_of(EpisodeReward("cited_answer", cited_answer, READING), episode).value


@pytest.mark.parametrize(
    ("answer", "citing", "pay"),
    [
        ("Paris [, on the Seine.]", {"cites": 1.0, "cited_holds_answer": 1.0}, 1.0),  # `Paris, on the Seine.`
        ("Paris[, on]", {"cites": 1.0, "cited_holds_answer": 1.0}, 1.0),
        ("Paris [ | A city of light.]", {"cites": 1.0, "cited_holds_answer": 1.0}, 1.0),  # from the title on
        ("Paris []", {"cites": 1.0, "cited_holds_answer": 1.0}, 1.0),  # itself alone
        ("Paris [ ]", {"cites": 1.0, "cited_holds_answer": 1.0}, 1.0),
        ("Paris", {"cites": 0.0, "cited_holds_answer": 0.0}, 0.0),
        ("Paris [, on the Tiber.]", {"cites": 0.0, "cited_holds_answer": 0.0}, 0.0),  # in no passage
        ("Paris [ on the Seine.]", {"cites": 0.0, "cited_holds_answer": 0.0}, 0.0),  # the comma is left out
        ("Paris [,on the Seine.]", {"cites": 0.0, "cited_holds_answer": 0.0}, 0.0),
        ("Paris [Paris, on the Seine.]", {"cites": 0.0, "cited_holds_answer": 0.0}, 0.0),  # it does not say it twice
        ("paris [, on the Seine.]", {"cites": 0.0, "cited_holds_answer": 0.0}, 0.0),  # right, and not verbatim
        ("The Paris [, on the Seine.]", {"cites": 0.0, "cited_holds_answer": 0.0}, 0.0),
        ("Paris [. A city]", {"cites": 0.0, "cited_holds_answer": 0.0}, 0.0),
        ("Paris [2]", {"cites": 0.0, "cited_holds_answer": 0.0}, 0.0),  # a rank is no quotation
        ("Rome [ lies on]", {"cites": 1.0}, 0.0),  # wrong: no verdict about what it quotes
        ("Rome [2]", {"cites": 0.0}, 0.0),
        ("| []", {"cites": 0.0}, 0.0),  # no word
        ("Paris [, on] [ the Seine.]", {"cites": 0.0}, 0.0),  # the first is a part of the answer, which is wrong
        ("Paris [, on [ the Seine.]", {"cites": 0.0}, 0.0),
        ("Paris [, [on] the Seine.]", {"cites": 0.0}, 0.0),  # no quotation has brackets
        ("Paris [, on the Seine.", {"cites": 0.0}, 0.0),
        ("Paris [, on the Seine.] it is", {"cites": 0.0}, 0.0),
        ("[Paris, on the Seine.]", {"cites": 0.0}, 0.0),  # all of it is the answer
    ],
)
def test_a_citation_is_a_shown_quotation_and_contains_a_right_answer_or_not(
    answer: str, citing: dict[str, float], pay: float
) -> None:
    parts = parts_of(answered(answer))
    assert {name: value for name, value in parts.items() if name.startswith("cite")} == citing
    assert paid(answered(answer)) == pay


def cited(quoted: str, passages: tuple[Passage, ...] = CITIES, *, characters: int | None = None) -> str | None:
    """The id of the passage that an answer of its first letter cites, which quotes these words: `P [aris, on]`."""
    episode = answered(f"{quoted[0]} [{quoted[1:]}]", passages=passages, characters=characters)
    assert quotation(episode.trajectory, READING) == quoted
    found = cited_passage(episode.trajectory, READING)
    return found and found.id


@pytest.mark.parametrize(
    ("answer", "quoted"),
    [
        ("Paris", ""),
        ("Paris []", "Paris"),
        ("Paris [ it is.] ", "Paris it is."),
        ("Paris [, \n on]", "Paris, \n on"),
        ("", ""),
    ],
)
def test_a_quotation_is_the_answer_with_the_words_in_brackets(answer: str, quoted: str) -> None:
    assert quotation(answered(answer).trajectory, READING) == quoted


def test_the_cited_passage_is_the_first_that_contains_the_quotation() -> None:
    assert cited("Paris, on the Seine.") == "8"
    assert cited("Paris") == "8"
    assert cited("Paris | A city") == "9"
    assert cited("A city of light.") == "9"
    assert cited("Paris", CITIES[::-1]) == "9"
    assert cited("on the") == "7"
    assert cited("on the", CITIES[1:]) == "8"
    assert cited("on the Rhine") is None


def test_white_space_of_a_quotation_and_of_its_passage_may_differ() -> None:
    lines = Passage(id="5", title="Old\nParis", text="A city\n\n of\tlight,\u00a0they say.")
    assert cited("city of light, they say.", (lines,)) == "5"
    assert cited("city\n of \t light, they\nsay.", (lines,)) == "5"
    assert cited("Old Paris | A city", (lines,)) == "5"
    assert cited("cityof light", (lines,)) is None
    assert cited("city of li ght", (lines,)) is None
    assert (
        parts_of(answered("Old\n\nParis [ |\nA]", golden="old Paris", passages=(lines,)))["cited_holds_answer"] == 1.0
    )


def test_what_the_budget_cut_is_not_quoted() -> None:
    """After 31 characters the second result is ` France | Its capital is Paris,`."""
    assert cited("Paris,", characters=31) == "8"
    assert cited("Paris, on", characters=31) is None
    assert cited("Paris, on", characters=34) == "8"
    assert cited("Paris", characters=29) == "9"  # ` ... is Pari`, and the title of the third
    assert parts_of(answered("Paris [,]", characters=31))["cited_holds_answer"] == 1.0
    assert parts_of(answered("Paris [, on]", characters=31)) == {
        **{"em": 1.0, "correct": 1.0},
        **{"cites": 0.0, "cited_holds_answer": 0.0},
    }


def test_a_passage_beside_the_cited_one_does_not_lend_it_its_words() -> None:
    """The cut passage about B does not say Paris, however often others do."""
    cut = (Passage(id="1", title="A", text="Paris it is."), Passage(id="2", title="B", text="Of old it was Paris."))

    def of_old(answer: str) -> Episode:
        return episode_of(
            ("policy", "<search> x</search>"),
            *[
                ("env", text)
                for text in ("<passage>", " A | Paris it is.", "<passage>", " B | Of old", "</information>")
            ],
            ("policy", f"<answer> {answer}</answer>"),
            actions=(Action(kind="search", text="x", passages=cut), Action(kind="answer", text="")),
        )

    assert parts_of(of_old("Paris [.]")) == {"em": 1.0, "correct": 1.0, "cites": 0.0, "cited_holds_answer": 0.0}
    assert parts_of(of_old("Paris [ it]")) == {"em": 1.0, "correct": 1.0, "cites": 1.0, "cited_holds_answer": 1.0}
    assert cited_passage(of_old("Of [ old]").trajectory, READING) == cut[1]
    assert cited_passage(of_old("Of [ old it]").trajectory, READING) is None


def test_only_the_results_of_the_last_search_are_cited() -> None:
    def twice(answer: str) -> Episode:
        return episode_of(
            ("policy", "<search> x</search>"),
            *shown(CITIES[:2]),
            ("policy", "<search> y</search>"),
            *shown(CITIES[2:]),
            ("policy", f"<answer> {answer}</answer>"),
            actions=(
                Action(kind="search", text="x", passages=CITIES[:2]),
                Action(kind="search", text="y", passages=CITIES[2:]),
                Action(kind="answer", text=""),
            ),
        )

    assert parts_of(twice("Paris [, on the Seine.]"))["cites"] == 0.0
    assert parts_of(twice("Paris [ | A city of light.]"))["cites"] == 1.0
    assert cited_passage(twice("Paris []").trajectory, READING) == CITIES[2]


@pytest.mark.parametrize(
    ("answer", "gold", "cited_gold"),
    [
        ("Paris [, on the Seine.]", ("8",), 1.0),
        ("Paris [, on the Seine.]", ("4", "8"), 1.0),
        ("Paris [ | A city]", ("8",), 0.0),
        ("Paris []", ("9",), 0.0),  # the first of two
        ("Paris [, on the Tiber.]", ("8",), 0.0),
        ("Paris", ("8",), 0.0),
        ("Paris [, on the Seine.]", (), None),
        ("Rome [ lies on]", ("7",), None),  # wrong
    ],
)
def test_a_right_answer_quotes_a_passage_that_the_task_names_or_not(
    answer: str, gold: tuple[str, ...], cited_gold: float | None
) -> None:
    episode = answered(answer)
    episode = replace(episode, task=replace(episode.task, gold_passages=gold))
    assert parts_of(episode).get("cited_gold") == cited_gold


def test_without_an_answer_there_is_no_verdict_about_citing() -> None:
    silent = episode_of(("policy", "<search> x</search>"), *shown(), ("policy", "Paris [Paris]"), stop="turns")
    assert parts_of(silent) == {"em": 0.0, "no_answer": 1.0}
    failed = episode_of(("policy", "<search>x</search>"), stop="failed", actions=(Action(kind="search", text="x"),))
    assert parts_of(failed) == {}
    assert paid(failed) is None


def test_dialects_without_citations_have_no_such_parts() -> None:
    right = episode_of(("policy", "<answer>Paris [Paris]</answer>"), golden="Paris [Paris]")
    assert score_of(AnswerReward(DIALECTS["sleuth"]), right).parts == {"em": 1.0, "correct": 1.0}
    assert quotation(right.trajectory, DIALECTS["sleuth"]) == ""
    assert [name for name, dialect in DIALECTS.items() if dialect.cites] == ["quoting", "reading"]


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("Paris [Its capital is Paris, on the Seine.]", 1.0),
        ('Paris ["Its capital is Paris, on the Seine."]', 1.0),
        ("Paris [, on the Seine.]", 0.0),  # the answer does not stand in the quotation
        ("Paris [Paris is the capital.]", 0.0),  # no result says so
        ("Paris", 0.0),
        ("Rome [Rome lies on the Tiber.]", 0.0),
    ],
)
def test_a_model_that_follows_instructions_quotes_a_whole_sentence(answer: str, value: float) -> None:
    quoting = DIALECTS["quoting"]
    result = quoting.passage.format(rank=2, title=CITIES[1].title, text=CITIES[1].text)
    episode = episode_of(
        ("policy", "<search>capital France</search>"),
        ("env", f"<information>\n{result}\n</information>"),
        ("policy", f"<answer>{answer}</answer>"),
        golden="Paris",
        actions=(Action(kind="search", text="", passages=CITIES[:2]), Action(kind="answer", text="")),
    )
    assert score_of(EpisodeReward("cited_answer", cited_answer, quoting), episode).value == value


def record(answer: str, name: str, *gold: str) -> Finished:
    episode = answered(answer)
    task = Task(id=name, question="which city?", golden_answers=("Paris",), gold_passages=gold)
    episode = replace(episode, task=task)
    return task, episode.trajectory, score_of(AnswerReward(READING), episode)


def test_the_figures_count_answers_right_answers_and_those_whose_task_names_passages() -> None:
    records = [
        record("Paris [, on]", "a", "8"),
        record("Paris [ | A]", "b", "8"),
        record("Paris", "c"),
        record("Rome [ lies]", "d", "7"),
        record("", "e", "8"),  # no answer: in none of them
    ]
    figures = episode_figures(records, cites=True)
    assert figures["em"] == wilson(3, 5)
    assert figures["cites"] == wilson(3, 4)
    assert figures["cited_holds_answer"] == wilson(2, 3)
    assert figures["cited_gold"] == wilson(1, 2)
    siblings = episode_figures([record("Paris [, on]", "a"), record("Paris", "a")], cites=True)
    assert siblings["cited_holds_answer"] == wilson(0.5, 1)
    assert siblings["cited_gold"] == UNMEASURED
    assert list(episode_figures(records)) == [name for name in figures if name not in CITING]
    wrong = episode_figures([record("Rome [ lies]", "a", "7")], cites=True)
    assert wrong["cited_holds_answer"] == wrong["cited_gold"] == UNMEASURED


@pytest.mark.parametrize("name", ATTACKS)
def test_no_hostile_answer_is_paid_for_its_citation(name: str) -> None:
    """Whether it goes on as an honest answer would, or goes on with the attack after the right answer."""
    for case in CASES:
        attack, rest = ATTACKS[name](case), case.passage.partition(case.answer)[2]
        passages = (Passage(id="1", title="", text=case.passage),)
        assert paid(answered(f"{attack} [{rest}]", golden=case.answer, passages=passages)) == 0.0
        honest = not attack and appears_in(case.answer, case.passage)  # it quotes itself alone
        assert paid(answered(f"{case.answer} [{attack}]", golden=case.answer, passages=passages)) == float(honest)


def test_the_reward_is_a_sum_of_exact_match_f1_and_the_cited_answer() -> None:
    rewards = [
        AnswerRewardRecipe(kind="answer", weight=0.6),
        TokenF1Recipe(kind="token_f1", weight=0.2),
        CitedAnswerRecipe(kind="cited_answer", weight=0.2),
    ]
    quoting = "Paris [, on]", "Paris", "Rome [ lies]"
    reward = reward_of(rewards, READING, None, JudgePool(Path("unused")))
    assert [score_of(reward, answered(one)).value for one in quoting] == [
        pytest.approx(1.0),
        pytest.approx(0.8),
        0.0,
    ]
    half = score_of(reward, answered("Paris city [, on]"))
    assert half.value == pytest.approx(0.2 * 2 / 3)
    assert (half.parts["token_f1"], half.parts["cited_answer"], half.parts["em"]) == (pytest.approx(2 / 3), 0.0, 0.0)
