"""A closed book: the environment opens the answer, and what the policy writes behind the tag is its answer."""

from __future__ import annotations

import pytest
from answered_episodes import Part, episode_of, score_of

from sleuth.answers.answer import AnswerReward
from sleuth.answers.factory import eval_reward_of
from sleuth.answers.scorers import SCORERS
from sleuth.dialect import DIALECTS

READING = DIALECTS["reading"]


@pytest.mark.parametrize(
    ("dialect", "turn", "parts"),
    [
        ("sleuth", " Paris</answer>", {"em": 1.0, "correct": 1.0, "well_formed": 1.0}),
        ("sleuth", " Rome</answer>", {"em": 0.0, "wrong": 1.0, "well_formed": 1.0}),
        ("sleuth", " Paris</answer> so", {"em": 0.0, "malformed": 1.0, "well_formed": 0.0}),
        (
            "reading",
            " Paris [, on]</answer>",
            {"em": 1.0, "correct": 1.0, "cites": 0.0, "cited_holds_answer": 0.0, "well_formed": 1.0},
        ),
    ],
)
def test_an_answer_whose_tag_the_environment_opened_is_read(dialect: str, turn: str, parts: dict[str, float]) -> None:
    episode = episode_of(("env", "<answer>"), ("policy", turn))
    assert score_of(eval_reward_of("strict", DIALECTS[dialect], None), episode).parts == parts


def test_only_a_tag_that_the_environment_wrote_by_itself_opens_an_answer() -> None:
    for before in ("Question: which <answer>", "<answer> ", ""):
        score = score_of(AnswerReward(READING), episode_of(("env", before), ("policy", " Paris</answer>")))
        assert score.note == "malformed"
    later = episode_of(("policy", "<search> x</search>"), ("env", "<answer>"), ("policy", " Paris</answer>"))
    assert score_of(AnswerReward(READING), later).note == "malformed"


def test_published_scorers_read_an_opened_answer_too() -> None:
    episode = episode_of(("env", "<answer>"), ("policy", " Paris</answer>"))
    score = score_of(AnswerReward(DIALECTS["verl"], scorer=SCORERS["verl"]), episode)
    assert score.parts == {"em": 1.0, "correct": 1.0, "score_verl": 1.0}


def test_a_reader_is_well_formed_without_thoughts() -> None:
    reward = eval_reward_of("strict", READING, None)
    searching: list[Part] = [
        ("policy", "<search> x</search>"),
        ("env", "<passage> X | x</information><question> x"),
    ]
    plain = episode_of(*searching, ("policy", "<answer> Paris [ it is.]</answer>"))
    assert score_of(reward, plain).parts["well_formed"] == 1.0
    thinking = episode_of(("policy", "<think>b</think><answer> Paris [ it is.]</answer>"))
    assert score_of(reward, thinking).parts["well_formed"] == 0.0
