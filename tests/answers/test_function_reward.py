"""Rewards of a user: what counts as a score, and what makes one missing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from answered_episodes import episode_of

from sleuth.answers.answer import TotalReward
from sleuth.answers.function import FunctionReward
from sleuth.own.functions import UserCodeError, load_function
from sleuth.types import Action, Episode, Group, Score

RIGHT = episode_of(("policy", "<answer>Paris</answer>"))
LONG = episode_of(("policy", "Well, I think that it is <answer>Paris</answer>"))
FAILED = episode_of(
    ("policy", "?"), stop="failed", actions=(Action(kind="invalid", text="", failure="env.py:3: gone"),)
)

SOURCE = """
import time
import numpy as np
import torch
from sleuth.types import Episode, Group, Score

def brevity(episode, *, limit=40):
    return 1 - len(episode.trajectory.policy_text) / limit

async def brevity_later(episode):
    return brevity(episode)

def annotated(one: Episode) -> float:
    return 1

def shortest(group):
    lengths = [len(episode.trajectory.policy_text) for episode in group.episodes]
    return [length == min(lengths) for length in lengths]

def as_array(every: "Group"):
    return np.linspace(0, 1, len(every.episodes))

def as_tensor(episode):
    return torch.tensor(0.25)

def with_parts(episode):
    return Score(value=2, parts={"words": 7.0}, note="fine")

def with_more(episode):
    return Score(value=2, parts={"words": 8.0}, note="fine too")

def ours(episode):
    return Score(value=1, parts={"em": 3, "step": 99, "two words": True, "none": None, "one": torch.tensor(1)})

def missing(episode):
    return None

def text(episode):
    return "yes"

def nan(episode):
    return float("nan")

def raises(episode):
    return 1 / 0

def raises_once(episode):
    return 1 / (len(episode.trajectory.policy_text) - 22)

def hangs(episode):
    time.sleep(30)

def too_few(group):
    return [1.0]

def a_number(group):
    return 1.0

def one_is_text(group):
    return [1.0, "x"]

def wrong_part(episode):
    return Score(value=1.0, parts={"words": "many"})

def infinite_part(episode):
    return Score(value=1.0, parts={"words": float("inf")})

def huge_part(episode):
    return Score(value=1.0, parts={"words": 10**400})

def two_lines(episode):
    return Score(value=1.0, parts={"a\\nb": 1.0})

def no_parts(episode):
    return Score(value=1.0, parts=None)

def neither(text):
    return 1.0
"""


def reward(name: str, tmp_path: Path, seconds: float = 20.0, **parameters: object) -> FunctionReward:
    file = tmp_path / "scored.py"
    if not file.exists():
        file.write_text(SOURCE)
    return FunctionReward(load_function(f"{file}:{name}"), parameters, seconds=seconds)


def scores(made: FunctionReward, *episodes: Episode) -> list[Score]:
    return asyncio.run(made(Group(task=RIGHT.task, episodes=episodes)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("brevity", [0.45, -0.175]),
        ("brevity_later", [0.45, -0.175]),
        ("annotated", [1, 1]),
        ("shortest", [1, 0]),
        ("as_array", [0, 1]),
        ("as_tensor", [0.25, 0.25]),
    ],
)
def test_a_number_is_the_score_and_a_part_under_the_functions_name(
    name: str, expected: list[float], tmp_path: Path
) -> None:
    found = scores(reward(name, tmp_path), RIGHT, LONG)
    assert [score.value for score in found] == pytest.approx(expected)
    assert [dict(score.parts) for score in found] == [{f"score_{name}": score.value} for score in found]
    assert all(type(score.value) is float for score in found)


def test_a_score_brings_its_own_parts_and_note(tmp_path: Path) -> None:
    [score] = scores(reward("with_parts", tmp_path), RIGHT)
    parts = {"score_with_parts": 2.0, "score_with_parts/words": 7.0}
    assert score == Score(value=2.0, parts=parts, notes={"with_parts": "fine"})


def test_no_part_of_a_function_has_the_name_of_a_figure_of_ours(tmp_path: Path) -> None:
    [score] = scores(reward("ours", tmp_path), RIGHT)
    assert score.parts == {
        "score_ours": 1.0,
        "score_ours/em": 3.0,
        "score_ours/step": 99.0,
        "score_ours/two words": 1.0,
        "score_ours/one": 1.0,
    }
    assert {type(value) for value in score.parts.values()} == {float}


def test_functions_with_parts_of_the_same_name_keep_them_apart(tmp_path: Path) -> None:
    both = TotalReward([reward("with_parts", tmp_path), reward("with_more", tmp_path)], [1.0, 1.0])
    [score] = asyncio.run(both(Group(task=RIGHT.task, episodes=(RIGHT,))))
    assert [score.parts[f"score_{name}/words"] for name in ("with_parts", "with_more")] == [7.0, 8.0]
    assert score.notes == {"with_parts": "fine", "with_more": "fine too"}


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("missing", "missing returned None"),
        ("text", "scored.py:{line}: text: returned 'yes'; expected a finite number, or None if it is missing"),
        ("nan", "scored.py:{line}: nan: returned nan; expected a finite number, or None if it is missing"),
        ("raises", "scored.py:{next}: raises: ZeroDivisionError: division by zero"),
        ("hangs", "scored.py:{line}: hangs: did not return within 0.2 seconds"),
        ("too_few", "scored.py:{line}: too_few: returned [1.0]; expected a list of 2 numbers"),
        ("a_number", "scored.py:{line}: a_number: returned 1.0; expected a list of 2 numbers"),
        ("wrong_part", "scored.py:{line}: wrong_part: returned the part words = 'many'; expected a finite number"),
        ("infinite_part", "scored.py:{line}: infinite_part: returned the part words = inf; expected a finite number"),
        ("two_lines", "scored.py:{line}: two_lines: returned a part called 'a\\nb'; expected a name in one line"),
        ("no_parts", "scored.py:{line}: no_parts: returned parts = None; expected numbers by name"),
        (
            "one_is_text",
            "scored.py:{line}: one_is_text: returned 'x'; expected a finite number, or None if it is missing",
        ),
    ],
)
def test_anything_else_is_missing_with_the_users_line_and_never_zero(
    name: str, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = next(at for at, text in enumerate(SOURCE.splitlines(), 1) if text.startswith(f"def {name}("))
    found = scores(reward(name, tmp_path, seconds=0.2), RIGHT, LONG)
    expected = note.format(line=line, next=line + 1)
    assert [(score.value, score.note, dict(score.parts)) for score in found] == [(None, expected, {})] * 2


def test_an_episode_that_raises_leaves_its_siblings_their_scores(tmp_path: Path) -> None:
    found = scores(reward("raises_once", tmp_path), RIGHT, LONG)
    assert found[0].value is None
    assert found[1].value == pytest.approx(1 / 25)


@pytest.mark.parametrize("name", ["brevity", "shortest"])
def test_an_episode_that_failed_has_no_score_but_the_reason(name: str, tmp_path: Path) -> None:
    found = scores(reward(name, tmp_path), RIGHT, FAILED)
    assert found[0].value is not None
    assert found[1] == Score(value=None, note="env.py:3: gone")


def test_a_function_of_neither_an_episode_nor_a_group_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"neither: takes neither an episode nor a group; expected def neither\("):
        reward("neither", tmp_path)
