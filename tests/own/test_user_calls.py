"""Calls of a user's functions: their results, errors, time limits and prints."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path

import pytest
from refusals import line_of

from sleuth.own.calls import Caller
from sleuth.own.functions import UserCodeError, UserFunction, load_function
from sleuth.own.permission import prints_to_stderr

SOURCE = """
import asyncio, sys, threading, time

AT_ONCE = MOST = 0

def twice(x, *, by=2):
    return by * x

async def twice_later(x):
    await asyncio.sleep(0.01)
    return 2 * x

def raises(x):
    values = {}
    return values[x]

async def raises_later(x):
    raise ValueError("no\\n  such thing")

def exits(x):
    sys.exit(4)

async def exits_later(x):
    sys.exit(4)

def hangs(x):
    time.sleep(x)

async def waits(x):
    await asyncio.sleep(x)

async def blocks(x):
    time.sleep(x)

def prints(x):
    print("printed", x)
    return x

async def prints_later(x):
    print("printed", x)
    return x

def counts(x):
    global AT_ONCE, MOST
    AT_ONCE += 1
    MOST = max(MOST, AT_ONCE)
    time.sleep(0.02)
    AT_ONCE -= 1
    return MOST

MEETING = threading.Barrier(4, timeout=5)

def meets(x):
    MEETING.wait()
    return counts(x)

class Doubles:
    async def __call__(self, x):
        return 2 * x

doubles = Doubles()

async def loop_of(x):
    return id(asyncio.get_running_loop())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "called.py").write_text(SOURCE)
    return tmp_path


def function(name: str) -> UserFunction:
    return load_function(f"called.py:{name}")


def call(name: str, *arguments: object, seconds: float = 20.0, **keywords: object) -> object:
    return asyncio.run(Caller(function(name), seconds=seconds)(*arguments, **keywords))


def complaint(name: str, *arguments: object, seconds: float = 20.0) -> str:
    return line_of(call, name, *arguments, seconds=seconds)


def test_a_function_returns_its_value_whether_it_is_asynchronous_or_not(folder: Path) -> None:
    assert call("twice", 3) == 6
    assert call("twice", 3, by=5) == 15
    assert call("twice_later", 3) == 6
    assert call("doubles", 3) == 6


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("raises", "called.py:15: raises: KeyError: 3"),
        ("raises_later", "called.py:18: raises_later: ValueError: no such thing"),
        ("exits", "called.py:21: exits: SystemExit: 4"),
        ("exits_later", "called.py:24: exits_later: SystemExit: 4"),
    ],
)
def test_what_it_raises_is_told_with_the_users_line(folder: Path, name: str, expected: str) -> None:
    assert complaint(name, 3) == expected
    assert call("twice_later", 3) == 6  # the loop lives on


@pytest.mark.parametrize("name", ["hangs", "waits", "blocks"])
def test_what_takes_too_long_is_abandoned_and_later_calls_are_served(folder: Path, name: str) -> None:
    before = time.monotonic()
    assert complaint(name, 30, seconds=0.1).endswith(f": {name}: did not return within 0.1 seconds")
    assert call("twice", 3) == call("twice_later", 3) == 6
    assert time.monotonic() - before < 5


def test_calls_that_are_not_asynchronous_are_made_one_at_a_time(folder: Path) -> None:
    caller = Caller(function("counts"), seconds=20)

    async def calls() -> list[object]:
        return await asyncio.gather(*(caller(0) for _ in range(6)))

    assert asyncio.run(calls()) == [1] * 6


def test_as_many_calls_run_at_once_as_the_caller_says_and_no_more(folder: Path) -> None:
    caller, slow = (Caller(function(name), seconds=20, at_once=4) for name in ("meets", "counts"))

    async def calls(made: Caller) -> list[object]:
        return await asyncio.gather(*(made(0) for _ in range(12)))

    asyncio.run(calls(caller))  # raises unless four run at the same time
    assert max(asyncio.run(calls(slow))) <= 4


def test_calls_that_hang_leave_their_threads_to_others(folder: Path) -> None:
    caller = Caller(function("hangs"), seconds=0.2, at_once=2)

    async def calls() -> list[object]:
        return await asyncio.gather(*(caller(wait) for wait in (30, 30, 0, 0)), return_exceptions=True)

    found = asyncio.run(calls())
    assert [isinstance(one, UserCodeError) for one in found] == [True, True, False, False]


def test_asynchronous_calls_share_one_loop_over_several_runs(folder: Path) -> None:
    assert call("loop_of", 0) == call("loop_of", 0)


@pytest.mark.parametrize("name", ["prints", "prints_later"])
def test_prints_go_to_stderr(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(name, 3) == 3
    print("ours")
    assert capsys.readouterr() == ("ours\n", "printed 3\n")


def test_prints_of_an_import_go_to_stderr(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "talks.py").write_text("print('imported')\ndef f(episode): ...\n")
    load_function("talks.py:f")
    assert capsys.readouterr() == ("", "code: imports talks.py (module talks)\nimported\n")


def test_prints_of_other_threads_stay_where_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with prints_to_stderr():
        thread = threading.Thread(target=lambda: print("other"))
        thread.start()
        thread.join()
        print("user", file=sys.stdout)
    assert capsys.readouterr() == ("other\n", "user\n")
