"""An environment of a user's class: its replies, and what becomes of its errors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from chat_tokenizers import KEEPS, chat_tokenizer

from sleuth.dialect import dialect_of
from sleuth.episodes.frames import TextFrame
from sleuth.episodes.function import FunctionEnv, trained_setting
from sleuth.episodes.own_object import OwnObject
from sleuth.episodes.tables import FunctionEnvRecipe
from sleuth.own.calls import Caller
from sleuth.own.functions import UserCodeError, load_function
from sleuth.types import Action, Piece, Reply, Score, Task

SLEUTH = dialect_of("sleuth")
TASK = Task(id="q", question="how far?", golden_answers=("7",), info={"goal": 4, "seed": 11})
SOURCE = """
import threading, time
from sleuth.types import Action, Piece, Reply

class Echo:
    def __init__(self, task, *, tokens=5):
        self.task, self.tokens = task, tokens

    async def open(self):
        return Reply(pieces=(Piece(text=self.task.question),), max_tokens=self.tokens)

    async def reply(self, text, stop):
        if text == "raise":
            raise KeyError(text)
        if text == "hang":
            time.sleep(30)
        if text == "text":
            return text
        if text == "no tokens":
            return Reply(pieces=(Piece(text="x"),))
        if text == "pieces":
            return Reply(pieces=("x",), max_tokens=3)
        if text == "number":
            return Reply(pieces=(Piece(text=3),), max_tokens=3)
        if text == "own words":
            return Reply(pieces=(Piece(text="x", author="policy"),), max_tokens=3)
        if text == "end":
            return Reply(done="stop")
        if text == "action":
            return Reply(action="x", done="answered")
        return Reply(action=Action(kind="answer", text=text), done="answered")

class Plain(Echo):
    def open(self):
        return Reply(pieces=(Piece(text="plain"),), max_tokens=1)

    def reply(self, text, stop):
        return Reply(done="length" if stop == "length" else "turns")

class Silent(Echo):
    async def open(self):
        return Reply(max_tokens=3)

class Broken:
    def __init__(self, task):
        raise ValueError("no board")

class Bare:
    def __init__(self, task):
        pass

MEETING = threading.Barrier(8, timeout=5)

class Meets(Plain):
    def reply(self, text, stop):
        MEETING.wait()
        return Reply(done="turns")
"""

STEPS = """
from types import SimpleNamespace

class Walk:
    def __init__(self, task):
        self.place, self.closed = 0, False

    def reset(self, *, seed=None, options=None):
        return f"at 0, seed {seed}", {}

    def step(self, action):
        if action == "fall":
            raise RuntimeError("off the edge")
        if action in ("pair", "odd end", "odd reward", "number"):
            odd = {"odd end": ("x", 1.0, "no", False, {}), "odd reward": ("x", float("nan"), False, False, {})}
            return {"pair": ("x", 1.0), "number": (4, 0.0, False, False, {}), **odd}[action]
        self.place += len(action)
        return f"at {self.place}", 0.5, self.place >= 4, self.place == 3, {}

class Results(Walk):
    def reset(self, **columns):
        return SimpleNamespace(observation=f"at 0 of {columns['goal']}", reward=None, done=False)

    async def step(self, action):
        self.place += len(action)
        return SimpleNamespace(observation=f"at {self.place}", reward=None, done=self.place >= 4)

class Silent(Results):
    def reset(self):
        return 7

class Mute(Results):
    def reset(self):
        return ""

def typed(task):
    return Walk(task), {"one": "x", "two": "xx"}.__getitem__, "<{}>".format

def half(task):
    return Walk(task), str

def bare():
    return Walk(None)

class Judged(Walk):
    def score(self):
        return self.place / 4

    def close(self):
        raise OSError("nothing to close")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "played.py").write_text(SOURCE)
    (tmp_path / "walked.py").write_text(STEPS)
    return tmp_path


def env(name: str, file: str = "played.py", **parameters: object) -> FunctionEnv:
    own = OwnObject(TASK, Caller(load_function(f"{file}:{name}"), seconds=0.3), parameters)
    return FunctionEnv(own, TextFrame(SLEUTH), SLEUTH)


def turns(made: FunctionEnv, *texts: str) -> list[Reply]:
    async def play() -> list[Reply]:
        return [await made.open(), *[await made.reply(text, "stop") for text in texts]]

    return asyncio.run(play())


def test_its_replies_are_those_of_the_class_whether_its_methods_are_asynchronous_or_not(folder: Path) -> None:
    opening, end = turns(env("Echo", tokens=9), "seven")
    assert opening == Reply(pieces=(Piece(text="how far?"),), max_tokens=9)
    assert end == Reply(action=Action(kind="answer", text="seven"), done="answered")
    assert turns(env("Plain"), "x")[1] == Reply(done="turns")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise", "played.py:14: Echo: KeyError: 'raise'"),
        ("hang", "played.py:5: Echo: did not return within 0.3 seconds"),
        ("text", "played.py:5: Echo: reply returned 'text'; expected a sleuth.types.Reply"),
        (
            "no tokens",
            "played.py:5: Echo: reply returned a reply that allows the policy no token: set max_tokens, or done",
        ),
        ("pieces", "played.py:5: Echo: reply returned pieces = ('x',); expected a tuple of sleuth.types.Piece"),
        ("number", "played.py:5: Echo: reply returned 3 as the text of a piece or a stop; expected a str"),
        ("own words", 'played.py:5: Echo: reply returned a piece with author = "policy": only the policy writes those'),
        (
            "end",
            "played.py:5: Echo: reply returned done = 'stop': expected None, 'answered', 'turns', 'length', 'failed'",
        ),
        ("action", "played.py:5: Echo: reply returned an action that is not a sleuth.types.Action"),
    ],
)
def test_an_error_ends_the_episode_as_failed_with_the_reason(folder: Path, text: str, reason: str) -> None:
    assert turns(env("Echo"), text)[1] == Reply(action=Action(kind="invalid", text="", failure=reason), done="failed")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Broken", "played.py:46: Broken: ValueError: no board"),
        ("Bare", "which has not the methods open and reply, nor reset and step"),
        ("Silent", "open returned no pieces, so that the policy would have no prompt"),
    ],
)
def test_so_does_an_environment_that_cannot_be_opened(folder: Path, name: str, reason: str) -> None:
    [opening] = turns(env(name))
    assert opening.done == "failed"
    assert opening.action is not None
    assert reason in opening.action.failure


def test_environments_without_async_do_not_wait_for_each_other(folder: Path) -> None:
    """Eight episodes meet in the same turn, which none could if another had to return first."""
    setting = FunctionEnvRecipe(kind="python", function="played.py:Meets").setting(None, [TASK])

    async def played() -> list[Reply]:
        envs = [setting.env(TASK) for _ in range(8)]
        await asyncio.gather(*(one.open() for one in envs))
        return await asyncio.gather(*(one.reply("x", "stop") for one in envs))

    assert asyncio.run(played()) == [Reply(done="turns")] * 8


def walked(name: str, *actions: str) -> tuple[list[str], list[str | None], Score | None]:
    """What the policy reads after each action, how the episode stands, and its score."""

    async def play() -> tuple[list[Reply], Score | None]:
        made = env(name, "walked.py")
        replies = [await made.open(), *[await made.reply(action, "stop") for action in actions]]
        return replies, await made.score()

    replies, score = asyncio.run(play())
    return ["".join(piece.text for piece in reply.pieces) for reply in replies], [one.done for one in replies], score


def test_an_environment_with_reset_and_step_is_paid_for_each_step_until_it_ends(folder: Path) -> None:
    shown = ["at 0, seed 11", "at 1", ""]
    assert walked("Walk", "x", "xxx") == (shown, [None, None, "answered"], Score(value=1.0))
    assert walked("Walk", "x", "xx") == (shown, [None, None, "turns"], Score(value=1.0))
    assert walked("bare", "xxxx") == (["at 0, seed 11", ""], [None, "answered"], Score(value=0.5))
    assert walked("Walk") == (["at 0, seed 11"], [None], Score(value=0.0))


def test_the_score_that_it_gives_itself_counts_in_place_of_the_rewards(folder: Path) -> None:
    assert walked("Judged", "x", "xx")[2] == Score(value=0.75)


def test_what_fails_after_the_end_is_a_line_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def play() -> None:
        made = env("Judged", "walked.py")
        await made.open()
        await made.close()

    asyncio.run(play())
    line = "warning: walked.py:50: Judged.close: OSError: nothing to close; its episode had ended and counts, "
    assert capsys.readouterr().err.startswith(line)
    asyncio.run(play())
    assert capsys.readouterr().err == ""


def test_a_result_may_be_an_object_whose_steps_give_no_reward(folder: Path) -> None:
    missing = Score(value=None, note="no step gave a reward")
    assert walked("Results", "x", "xxx") == (["at 0 of 4", "at 1", ""], [None, None, "answered"], missing)


def test_actions_and_observations_may_be_written_by_functions(folder: Path) -> None:
    texts, ends, score = walked("typed", "one", "three", "two")
    assert texts == ["<at 0, seed 11>", "<at 1>", "error: 'three'", ""]
    assert (ends, score) == ([None, None, None, "turns"], Score(value=1.0))


EXPECTED = "expected (observation, reward, terminated, truncated, info), or a result with observation, reward and done"


@pytest.mark.parametrize(
    ("name", "action", "reason"),
    [
        ("Walk", "fall", "walked.py:13: Walk.step: RuntimeError: off the edge"),
        ("Walk", "pair", f"walked.py:11: Walk.step: returned a tuple of 2; {EXPECTED}"),
        ("Walk", "odd end", f"walked.py:11: Walk.step: returned ('x', 1.0, 'no', False, {{}}); {EXPECTED}"),
        ("Walk", "odd reward", f"walked.py:11: Walk.step: returned ('x', nan, False, False, {{}}); {EXPECTED}"),
        ("Walk", "number", "walked.py:11: Walk.step: returned an observation that is 4; expected text: return (env"),
        ("Silent", "", "walked.py:29: Silent.reset: returned an observation that is 7; expected text: return (env"),
        (
            "Mute",
            "",
            "walked.py:33: Mute.reset: returned an empty observation, so that the policy would have no prompt",
        ),
        ("half", "", "walked.py:39: half: made a tuple; expected an environment, or (environment, to_action, to_text)"),
    ],
)
def test_a_step_that_is_none_ends_the_episode_with_file_and_line(
    folder: Path, name: str, action: str, reason: str
) -> None:
    made = env(name, "walked.py")
    end = turns(made, *([action] if action else []))[-1]
    assert end.done == "failed"
    assert end.action is not None
    assert reason in end.action.failure


def test_an_environment_that_writes_its_prompt_takes_no_prompt_role(folder: Path) -> None:
    table = FunctionEnvRecipe(kind="python", function="played.py:Echo", prompt_role="user")
    opening = asyncio.run(table.setting(chat_tokenizer(KEEPS), [TASK]).env(TASK).open())
    assert opening.action is not None
    assert "played.py:5: Echo: has the methods open and reply, which write the prompt" in opening.action.failure


def test_a_checkpoint_is_asked_with_the_messages_and_limits_of_its_training(folder: Path) -> None:
    tokenizer = chat_tokenizer(KEEPS)
    table = FunctionEnvRecipe(kind="python", function="walked.py:Walk", prompt_role="user", turn_tokens=7)
    setting = table.setting(tokenizer, [TASK])
    card = setting.protocol("strict", 500)
    tokenizer.save_pretrained(checkpoint := folder / "run" / "checkpoints" / "step-000001")
    again = trained_setting(card, str(checkpoint))
    opening = asyncio.run(again.env(TASK).open())
    assert opening == asyncio.run(setting.env(TASK).open())
    assert (opening.max_tokens, opening.pieces[0].text) == (7, "<|im_start|>user\n")


def test_a_class_that_does_not_say_how_it_is_called_is_one_line(folder: Path) -> None:
    (folder / "built.py").write_text("from collections import OrderedDict\n")
    with pytest.raises(UserCodeError, match=r"built.py:\d+: OrderedDict: has no signature; wrap it in a function"):
        FunctionEnvRecipe(kind="python", function="built.py:OrderedDict").setting(None, [TASK])
