"""An environment of a user's class: its replies, and what becomes of its errors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sleuth.dialect import dialect_of
from sleuth.episodes.frames import TextFrame
from sleuth.episodes.function import FunctionEnv
from sleuth.episodes.own_object import OwnObject
from sleuth.episodes.tables import FunctionEnvRecipe
from sleuth.own.calls import Caller
from sleuth.own.functions import load_function
from sleuth.types import Action, Piece, Reply, Task

SLEUTH = dialect_of("sleuth")
TASK = Task(id="q", question="how far?", golden_answers=("7",))
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "played.py").write_text(SOURCE)
    return tmp_path


def env(name: str, **parameters: object) -> FunctionEnv:
    own = OwnObject(TASK, Caller(load_function(f"played.py:{name}"), seconds=0.3), parameters)
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
