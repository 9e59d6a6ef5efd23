"""A class whose methods are tools: its object, end and score belong to one episode, and its errors are one line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_tokenizers import KEEPS, chat_tokenizer
from tool_episodes import call
from transformers import PreTrainedTokenizerFast

from sleuth.answers.tables import EnvironmentReward
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.episodes.setting import require_environment
from sleuth.render import Renderer, load_tokenizer
from sleuth.rollout import Rollout
from sleuth.search.tables import ToolEnvRecipe
from sleuth.search.tools import ToolSetting
from sleuth.types import Episode, Group, Score, SleuthError, Task

TASK = Task(id="q", question="Count to 2.", info={"goal": 2})
SOURCE = '''
import asyncio
import time

CLOSED = []

class Counter:
    def __init__(self):
        self.count, self.done = 0, False

    def reset(self, goal: int) -> str:
        self.goal = goal
        return f" You begin at {self.count}."

    def add(self, number: int = 1) -> int:
        """Adds to the count.

        Args:
            number: How much.
        """
        self.count += number
        self.done = self.count >= self.goal
        return self.count

    async def look(self) -> int:
        """Looks at the count."""
        await asyncio.sleep(0)
        return self.count

    def forget(self) -> str:
        """Deletes all that the object has."""
        self.__dict__.clear()
        return "what?"

    def score(self) -> float:
        return float(self.count == self.goal)

    def close(self):
        CLOSED.append(self.count)

class Raises(Counter):
    def score(self):
        return 1 / 0

class IsNan(Counter):
    def score(self):
        return float("nan")

class Blocks(Counter):
    def score(self):
        time.sleep(30)

class Unsure(Counter):
    def score(self):
        return None

class Paid(Counter):
    score = None
    reward = 0.25

class Unpaid(Counter):
    score = None

class OddReward(Counter):
    score, reward = None, "much"

class Numbered(Counter):
    def reset(self):
        return 5

class Needs(Counter):
    def reset(self, board):
        pass

class Fails(Counter):
    def reset(self, **columns):
        raise KeyError(columns["goal"])

class Empty:
    def reset(self, task):
        self.task = task

class Undocumented:
    def add(self, number: int) -> int:
        return number

class WithTask:
    def __init__(self, task):
        self.task = task

    def read(self) -> str:
        """Reads the question."""
        return self.task.question

class BadEnd(Counter):
    @property
    def done(self):
        raise RuntimeError("no end")

    @done.setter
    def done(self, value):
        pass

class DoneMethod(WithTask):
    def done(self) -> bool:
        """Whether it is read."""
        return True

class DoneText(WithTask):
    done = "no"
'''
Settings = Callable[..., ToolSetting]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The setting with a class above as the tools."""
    (tmp_path / "counting.py").write_text(SOURCE)
    (tmp_path / "prompt.txt").write_text("{question}\n")
    monkeypatch.chdir(tmp_path)

    def setting(*names: str, tokenizer: PreTrainedTokenizerFast | None = None, **keys: Any) -> ToolSetting:
        tools = [f"counting.py:{name}" for name in names]
        env = {"kind": "tools", "tools": tools, "prompt": "prompt.txt", "seconds": 2.0, "calls": 9, **keys}
        return ToolEnvRecipe.model_validate(env).setting(tokenizer or load_tokenizer("models/tiny-base"), [TASK])

    return setting


@pytest.fixture(autouse=True)
def models(tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(Path(__file__).parents[2] / "models")


def played(
    setting: ToolSetting, *turns: str, context: int = 900, tokenizer: PreTrainedTokenizerFast | None = None
) -> Episode:
    tokenizer = tokenizer or load_tokenizer("models/tiny-base")
    writing = iter(turns)
    rollout = Rollout(
        engine=ScriptedEngine(tokenizer, lambda text, sampling: next(writing)),
        renderer=Renderer(tokenizer, setting.dialect.tags),
        context=context,
        temperature=1.0,
        key=(0,),
    )
    [group] = asyncio.run(rollout.groups([TASK], setting.env, samples=1))
    return group.episodes[0]


ADD, LOOK, ANSWER = call("add"), call("look"), "<answer>2</answer>"


def results(episode: Episode) -> list[str | None]:
    return [action.result for action in episode.trajectory.actions]


def test_its_object_lives_as_long_as_the_episode_which_it_ends_and_scores(settings: Settings) -> None:
    setting = settings("Counter")
    assert [*setting.tools] == ["add", "forget", "look"]
    episode = played(setting, LOOK, ADD, ADD)
    trajectory = episode.trajectory
    assert trajectory.text.startswith("Count to 2. You begin at 0.\n")
    assert (results(episode), trajectory.stop) == (["0", "1", "2"], "answered")
    assert trajectory.score == Score(value=1.0)
    assert EnvironmentReward().score(episode) == Score(value=1.0, parts={"environment": 1.0})
    assert trajectory.segments[-1].author == "policy"  # what follows the end is read by nobody
    assert setting.make is not None
    assert setting.make.function.module.CLOSED == [2]


@pytest.mark.parametrize(
    ("turns", "stop", "value"),
    [([ADD, ANSWER], "answered", 0.0), ([ADD, "x", "x", "x"], "turns", 0.0), ([ADD] * 2, "answered", 1.0)],
)
def test_it_scores_an_episode_however_that_ends(settings: Settings, turns: list[str], stop: str, value: float) -> None:
    episode = played(settings("Counter", calls=3), *turns)
    assert (episode.trajectory.stop, episode.trajectory.score) == (stop, Score(value=value))


def test_it_scores_an_episode_whose_context_is_full(settings: Settings) -> None:
    episode = played(settings("Counter"), ADD, LOOK, LOOK, LOOK, context=160)
    assert (episode.trajectory.stop, episode.trajectory.score) == ("length", Score(value=0.0))


def test_a_class_may_take_the_task_and_score_nothing(settings: Settings) -> None:
    episode = played(settings("WithTask"), call("read"), ANSWER)
    assert results(episode) == ["Count to 2.", None]
    assert episode.trajectory.score is None
    assert "and question 'q' has no golden answers" in EnvironmentReward().score(episode).note
    golden = replace(episode, task=replace(TASK, golden_answers=("2",)))
    assert EnvironmentReward().score(golden).value == 1.0


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("Raises", "counting.py:43: Raises.score: ZeroDivisionError: division by zero"),
        ("IsNan", "counting.py:46: IsNan.score: returned nan; expected a finite number, or None if it is missing"),
        ("Blocks", "counting.py:50: Blocks.score: did not return within 0.5 seconds"),
        ("OddReward", "OddReward: has reward = 'much'; expected a finite number, or None if it is missing"),
    ],
)
def test_a_score_that_fails_is_missing_and_found_before_the_run(settings: Settings, name: str, note: str) -> None:
    setting = settings(name, seconds=0.5)
    episode = played(setting, ADD, ADD)
    missing = EnvironmentReward().score(episode)
    assert missing.value is None
    assert note in missing.note
    with pytest.raises(SleuthError, match=name):
        require_environment(Group(task=TASK, episodes=(episode,)))


def test_a_score_may_be_missing_or_an_attribute(settings: Settings) -> None:
    unsure = played(settings("Unsure"), ADD, ADD)
    assert EnvironmentReward().score(unsure) == Score(value=None, note="the environment gave no score")
    require_environment(Group(task=TASK, episodes=(unsure,)))
    assert played(settings("Paid"), ADD, ADD).trajectory.score == Score(value=0.25)
    assert played(settings("Unpaid"), ADD, ADD).trajectory.score is None


def test_a_tool_that_deletes_its_object_is_an_error_that_the_policy_reads_and_no_score(settings: Settings) -> None:
    episode = played(settings("Counter"), ADD, call("forget"), ADD, ANSWER)
    assert results(episode)[:3] == [
        "1",
        "what?",
        "error: Counter.add: AttributeError: 'Counter' object has no attribute 'count'",
    ]
    score = episode.trajectory.score
    assert score is not None
    assert score.value is None
    assert "counting.py:36: Counter.score: AttributeError" in score.note


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Numbered", "counting.py:68: Numbered.reset: returned 5; expected text that follows the question, or None"),
        ("Needs", "counting.py:72: Needs.reset: takes board, and the row has seed, id, question, golden_answers, "),
        ("Fails", "counting.py:77: Fails.reset: KeyError: 2"),
        ("BadEnd", "counting.py:98: BadEnd: RuntimeError: no end"),
        ("DoneMethod", "counting.py:105: DoneMethod.done: has done = <bound method DoneMethod.done of <counting.D"),
        ("DoneText", "counting.py:109: DoneText: has done = 'no'; expected True or False, an attribute or a property"),
    ],
)
def test_what_fails_before_or_after_a_turn_ends_the_episode_without_a_score(
    settings: Settings, name: str, reason: str
) -> None:
    episode = played(settings(name), ADD)
    assert episode.trajectory.stop == "failed"
    assert reason in episode.trajectory.actions[-1].failure


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["Empty"], "counting.py:79: Empty: has no tool: a tool is a public method other than reset, done, close,"),
        (
            ["Undocumented"],
            "counting.py:84: Undocumented.add: Cannot generate JSON schema for add because it has no doc",
        ),
        (["Counter.add"], "Counter.add: its class has reset, which has an effect only if tools names the class itself"),
        (["Counter", "WithTask"], "tools has several classes, counting:Counter, counting:WithTask: an episode has one"),
    ],
)
def test_a_class_that_is_no_environment_is_refused_before_the_run(
    settings: Settings, names: list[str], reason: str
) -> None:
    with pytest.raises(SleuthError) as refused:
        settings(*names)
    assert reason in str(refused.value)


def test_a_step_that_is_played_again_has_its_results_end_and_score_without_a_call(settings: Settings) -> None:
    setting = settings("Counter")
    episode = played(setting, ADD, ADD)
    changed = replace(
        episode.trajectory,
        actions=tuple(replace(action, result=f"was {action.result}") for action in episode.trajectory.actions),
        score=Score(value=0.75),
    )
    before = {0: Group(task=TASK, episodes=(replace(episode, trajectories=(changed,)),))}
    again = setting.for_step(lambda: before)
    same = played(again, ADD, ADD)
    assert (results(same), same.trajectory.stop, same.trajectory.score) == (
        ["was 1", "was 2"],
        "answered",
        changed.score,
    )
    assert setting.make is not None
    assert setting.make.function.module.CLOSED == [2, 0]
    other = played(again, ADD, LOOK, ADD)  # takes another course, so the call that was left out is made
    assert (results(other), other.trajectory.score) == (["was 1", "1", "2"], Score(value=1.0))
    shorter = played(again, ADD, ANSWER)
    assert (results(shorter), shorter.trajectory.score) == (["was 1", None], Score(value=0.0))


def test_a_call_beyond_the_limit_is_played_again_too(settings: Settings) -> None:
    tokenizer, turn = chat_tokenizer(KEEPS), f"{ADD}{ADD}{LOOK}<|im_end|>"
    setting = settings("Counter", calls=2, prompt_role="user", tokenizer=tokenizer)
    episode = played(setting, turn, context=4096, tokenizer=tokenizer)
    assert results(episode) == ["1", "2", "error: this call was not made: none is left"]
    given = replace(episode.trajectory, score=Score(value=0.75))
    before = {0: Group(task=TASK, episodes=(replace(episode, trajectories=(given,)),))}
    again = played(setting.for_step(lambda: before), turn, context=4096, tokenizer=tokenizer)
    assert (again.trajectory.stop, again.trajectory.score) == ("answered", given.score)
