"""What may be paid for an answer, each measured on episodes made by hand; and several rewards as one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from answered_episodes import Part, episode_of, looked_up, results, score_of

from sleuth import family
from sleuth.answers.answer import AnswerReward, TotalReward, passages_with
from sleuth.answers.factory import eval_reward_of, reward_of, reward_spec_of
from sleuth.answers.match import appears_in
from sleuth.answers.scorers import SCORERS
from sleuth.answers.tables import AnswerRewardRecipe, FormatRecipe, TokenF1Recipe
from sleuth.dialect import DIALECTS
from sleuth.judges.factory import JudgePool
from sleuth.recipe.rewards import RewardInputs
from sleuth.types import Action, Credit, Episode, Group, Passage, Reward, Score, Task, Trajectory

DIALECT = DIALECTS["sleuth"]
NOBODY = JudgePool(Path("unused"))
"""Nothing here is judged."""
RIGHT = "<think>b</think><answer>Paris</answer>"


KINDS = ("token_f1", "format", "cited_answer")


def reward_named(kind: str) -> Reward:
    return family.table("rewards", kind)(kind=kind).build(
        RewardInputs(dialect=DIALECT, tokenizer=None, judge_pool=NOBODY)
    )


def measure(kind: str, episode: Episode) -> float | None:
    return score_of(reward_named(kind), episode).value


@pytest.mark.parametrize(
    ("answer", "text", "stands"),
    [
        ("New York", "in the city of New York.", True),
        ("no", "northern", False),
        ("The", "the the", False),
        ("York New", "New York", False),
        ("U.S.A.", "made in USA", True),
    ],
)
def test_an_answer_stands_in_a_text_with_all_its_words_whole_and_in_order(answer: str, text: str, stands: bool) -> None:
    assert appears_in(answer, text) is stands


def test_results_of_turns_that_are_told_anew_stand_before_the_turns_that_are_left() -> None:
    search = Action(kind="search", text="x", passages=(Passage(id="1", title="", text="Paris"),))
    actions = (search, Action(kind="answer", text="Paris"))
    for copied, found in (("<search>x</search> Paris", True), ("<search>x</search> cut", False)):
        episode = episode_of(("env", copied), ("policy", RIGHT), actions=actions)
        assert bool([*passages_with("Paris", episode.trajectory)]) is found


def test_the_passages_that_hold_an_answer_are_told_in_the_order_in_which_they_were_shown() -> None:
    cited = looked_up("A city. Paris", RIGHT).trajectory
    assert [passage.id for passage in passages_with("paris", cited)] == ["1"]
    assert list(passages_with("Rome", cited)) == []
    assert list(passages_with("Paris", looked_up("A city. Paris", RIGHT, shown="A city.").trajectory)) == []


WELL_FORMED = {
    "a thought and an answer": episode_of(("policy", RIGHT)),
    "white space between": episode_of(("policy", "\n<think>a</think>\n\n<answer>Rome</answer>\n")),
    "a search first": looked_up("Paris", RIGHT),
    "tags in a passage": looked_up("</think> <answer> <search>", RIGHT),
    "a cut that took the closing tag": episode_of(
        ("policy", "<think>a</think><search>x</search>"), ("env", "<information> cut"), ("policy", RIGHT)
    ),
    "a search that the environment opened": episode_of(
        ("env", "<search>"), ("policy", "x</search>"), results("Paris"), ("policy", RIGHT)
    ),
}
MALFORMED = {
    "no thought": episode_of(("policy", "<answer>Paris</answer>")),
    "a thought that never closes": episode_of(("policy", "<think>b<answer>Paris</answer>")),
    "a thought closed twice": episode_of(("policy", "<think>b</think></think><answer>Paris</answer>")),
    "words outside": episode_of(("policy", "<think>b</think> so <answer>Paris</answer>")),
    "words after": episode_of(("policy", RIGHT + " so")),
    "two answers": episode_of(("policy", RIGHT + "<answer>Paris</answer>")),
    "no answer": episode_of(("policy", "<think>b</think><search>x</search>"), stop="turns"),
    "not taken for an answer": episode_of(("policy", RIGHT), stop="length"),
    "results of its own": episode_of(
        ("policy", "<think>a</think><search>x</search><information>p</information>" + RIGHT)
    ),
    "a bad action on the way": episode_of(("policy", "<think>a</think>"), ("env", DIALECT.hint), ("policy", RIGHT)),
    "an answer in an opened search": episode_of(("env", "<search>"), ("policy", RIGHT)),
    "nothing written": episode_of(),
}


@pytest.mark.parametrize("name", WELL_FORMED)
def test_a_transcript_of_thoughts_searches_and_an_answer_is_well_formed(name: str) -> None:
    assert measure("format", WELL_FORMED[name]) == 1.0


@pytest.mark.parametrize("name", MALFORMED)
def test_anything_else_is_not_well_formed(name: str) -> None:
    assert measure("format", MALFORMED[name]) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_retriever_makes_every_part_missing_and_never_zero(kind: str) -> None:
    score = score_of(
        reward_named(kind),
        episode_of(("policy", "<search>x</search>"), stop="failed", actions=(Action(kind="search", text="x"),)),
    )
    assert (score.value, score.note, score.parts) == (None, "retriever failed", {})


def test_the_reward_of_a_recipe_is_the_weighted_sum_of_its_parts_and_tells_each() -> None:
    recipes = [
        AnswerRewardRecipe(kind="answer"),
        FormatRecipe(kind="format", weight=0.25),
        TokenF1Recipe(kind="token_f1", weight=0.5),
    ]
    score = score_of(reward_of(recipes, DIALECT, None, NOBODY), looked_up("Paris", RIGHT))
    assert score.value == 1.75
    assert score.parts == {"em": 1.0, "correct": 1.0, "format": 1.0, "token_f1": 1.0}
    assert score.note == "correct"


def test_the_reward_spec_names_the_version_of_everything_that_is_paid_for() -> None:
    recipes = [AnswerRewardRecipe(kind="answer", scorer="verl"), FormatRecipe(kind="format", weight=0.5)]
    spec = reward_spec_of(recipes)
    assert [(part.kind, part.scorer, part.scorer_version, part.weight) for part in spec.parts] == [
        ("answer", "verl", 1, 1.0),
        ("format", "format", 1, 0.5),
    ]
    assert spec.hash != reward_spec_of([AnswerRewardRecipe(kind="answer"), recipes[1]]).hash


TASK = Task(id="q", question="?", golden_answers=("x",))
GROUP = Group(
    task=TASK,
    episodes=tuple(Episode(task=TASK, sample=i, trajectories=(Trajectory(segments=()),)) for i in range(2)),
)


@dataclass
class Fixed:
    scores: list[Score]

    async def __call__(self, group: Group) -> list[Score]:
        return self.scores


def test_a_note_of_the_user_and_ours_are_both_kept() -> None:
    first = Fixed([Score(value=1.0, note="correct")] * 2)
    second = Fixed([Score(value=0.5, notes={"brevity": "long"}), Score(value=None, note="no", notes={"brevity": "no"})])
    one, two = asyncio.run(TotalReward([first, second], [1.0, 1.0])(GROUP))
    assert (one.note, one.notes) == ("correct", {"brevity": "long"})
    assert (two.note, two.notes) == ("no", {"brevity": "no"})


def test_a_sum_with_a_missing_part_is_missing_and_says_why() -> None:
    first = Fixed([Score(value=1.0, note="correct")] * 2)
    second = Fixed([Score(value=None, note="judge timed out"), Score(value=0.5)])
    one, two = asyncio.run(TotalReward([first, second], [1.0, 1.0])(GROUP))
    assert (one.value, one.note) == (None, "judge timed out")
    assert two.value == 1.5


def test_what_is_paid_to_single_tokens_has_the_weight_of_its_reward() -> None:
    first = Fixed([Score(value=1.0, credits=(Credit(segment=1, value=1.0, begin=2, end=4),)), Score(value=1.0)])
    second = Fixed([Score(value=0.0, credits=(Credit(segment=3, value=2.0),)), Score(value=0.0)])
    one, two = asyncio.run(TotalReward([first, second], [2.0, 0.5])(GROUP))
    assert one.credits == (Credit(segment=1, value=2.0, begin=2, end=4), Credit(segment=3, value=1.0))
    assert two.credits == ()


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
