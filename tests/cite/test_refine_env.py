"""The refiner's environment: one turn, and all of the evidence in the prompt."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sleuth.cite.dialect import REFINERS, Mode
from sleuth.cite.env import RefineEnv
from sleuth.episodes.library import read_prompt
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.render import Renderer, load_tokenizer
from sleuth.rollout import Rollout
from sleuth.types import Episode, Evidence, Passage, Reply, StopReason, Task

OUTPUT = "<snippet id=a1>Ada Voss was born in Tarn.</snippet>\n<snippet id=b2>Bo.</snippet>\n"
SNIPPETS = (Passage(id="a1", title="", text="Ada Voss was born in Tarn."), Passage(id="b2", title="", text="Bo."))
TASK = Task(
    id="q",
    question="where was Ada Voss born?",
    golden_answers=(),
    evidence=Evidence(reasoning="I need her birthplace.", output=OUTPUT, snippets=SNIPPETS),
)
ANSWER = "<answer><snippet id=a1>Ada Voss was born in Tarn.</snippet></answer>"


def played(written: str, mode: Mode = "answer_only", prompt: str = "Digest.\n{question}\nNow:\n") -> Episode:
    tokenizer = load_tokenizer(str(Path(__file__).parents[2] / "models" / "tiny-base"))
    rollout = Rollout(
        engine=ScriptedEngine(tokenizer, lambda text, sampling: written),
        renderer=Renderer(tokenizer),
        context=2048,
        temperature=1.0,
        key=(0,),
    )
    return asyncio.run(rollout.episode(RefineEnv(TASK, REFINERS[mode], prompt), TASK, 0, 0))


def reply(turn: str, stop: StopReason = "stop", mode: Mode = "answer_only") -> Reply:
    return asyncio.run(RefineEnv(TASK, REFINERS[mode], "{question}").reply(turn, stop))


def test_the_prompt_has_question_reasoning_and_tool_output_and_one_answer_ends_the_episode() -> None:
    episode = played(ANSWER)
    [trajectory] = episode.trajectories
    assert trajectory.text == (
        "Digest.\nQuestion: where was Ada Voss born?\nReasoning: I need her birthplace.\n"
        f"<tool_output>\n{OUTPUT}</tool_output>\nNow:\n{ANSWER}"
    )
    assert (trajectory.stop, trajectory.searches) == ("answered", 0)
    [action] = trajectory.actions
    assert (action.kind, action.text) == ("answer", "<snippet id=a1>Ada Voss was born in Tarn.</snippet>")
    assert trajectory.policy_text == ANSWER


def test_a_task_with_its_own_prompt_uses_it() -> None:
    own = Task(id="q", question="?", golden_answers=(), prompt="Refine this.", evidence=TASK.evidence)
    opening = asyncio.run(RefineEnv(own, REFINERS["answer_only"], read_prompt("bare")).open())
    assert "".join(piece.text for piece in opening.pieces) == "Refine this."


@pytest.mark.parametrize(
    ("turn", "stop", "kind", "done"),
    [
        (f"<think>a1</think>{ANSWER}", "stop", "answer", "answered"),
        ("<answer> </answer>", "stop", "invalid", "turns"),
        ("no answer", "eos", "invalid", "turns"),
        ("<answer>begun", "length", "invalid", "length"),
        ("<search>more</search>", "eos", "invalid", "turns"),
        (f"{ANSWER} and more", "eos", "invalid", "turns"),
        ("<answer>one <answer>two</answer>", "stop", "answer", "answered"),
    ],
)
def test_any_turn_ends_the_episode_and_only_a_closed_answer_counts(
    turn: str, stop: StopReason, kind: str, done: str
) -> None:
    found = reply(turn, stop)
    assert found.action is not None
    assert (found.action.kind, found.done, found.pieces) == (kind, done, ())


def test_a_turn_of_thousands_of_tags_is_parsed_quickly() -> None:
    assert reply("<answer>" * 50_000).done == "turns"
