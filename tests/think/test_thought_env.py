"""A thought in a text: what stands where, by whom, token by token."""

from __future__ import annotations

import asyncio

from continuations import BASE, continued

from sleuth.episodes.scripted import ScriptedEngine
from sleuth.learn.batch import trajectory_row
from sleuth.render import Renderer, load_tokenizer
from sleuth.rollout import Rollout
from sleuth.think.env import thinking_of
from sleuth.think.tables import ThoughtEnvRecipe
from sleuth.think.thoughts import THINK, thought_setting, thought_tokens
from sleuth.types import Segment, Task, Trajectory

TOKENIZER = load_tokenizer(str(BASE))
RENDERER = Renderer(TOKENIZER)
BEFORE, BEHIND = " Tamton is a town in Osmark. The region of Tamton is", " Osmark."


def tokens(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.backend_tokenizer.encode(text, add_special_tokens=False).ids)


def task() -> Task:
    """Its prefix is cut as no tokenizer would cut its text: inside a name that is one token."""
    before = Segment(author="source", tokens=(*tokens(BEFORE[:24]), *tokens(BEFORE[24:])), text=BEFORE)
    return continued(before, Segment(author="source", tokens=tokens(BEHIND), text=BEHIND), "Osmark")


def played(*turns: str, of: Task | None = None, **limits: object) -> Trajectory:
    recipe = ThoughtEnvRecipe.model_validate({"kind": "thought", "thought_tokens": 6, **limits})
    setting = thought_setting(recipe, TOKENIZER)
    written = iter(turns)
    engine = ScriptedEngine(TOKENIZER, lambda text, sampling: next(written))
    rollout = Rollout(engine=engine, renderer=RENDERER, context=200, temperature=1.0, key=(0,))
    asked = of or task()
    return asyncio.run(rollout.episode(setting.env(asked), asked, 0, 0)).trajectory


def authors(trajectory: Trajectory) -> list[str]:
    return [segment.author for segment in trajectory.segments]


def test_the_prefix_has_the_tokens_of_the_data_and_the_tags_those_of_training() -> None:
    found = played(" Tamton is in Osmark</think>", thought_tokens=40)
    prefix, opening, thought = found.segments
    assert authors(found) == ["source", "env", "policy"]
    continuation = task().continuation
    assert continuation is not None
    assert prefix.tokens == continuation.prefix.tokens != tokens(BEFORE)
    assert (*opening.tokens, *thought.tokens) == thought_tokens(" Tamton is in Osmark", RENDERER)
    assert found.stop == "answered"
    assert thinking_of(found, THINK.close).closed_by == "policy"


def test_the_environment_closes_a_thought_that_fills_its_budget() -> None:
    found = played(" Tamton is a town in Osmark and more", thought_tokens=4)
    thinking = thinking_of(found, THINK.close)
    assert authors(found) == ["source", "env", "policy", "env"]
    assert len(thinking.thought.tokens) == 4
    assert (found.segments[-1].text, thinking.closed_by, thinking.suffix) == ("</think>", "env", None)
    assert thinking.story == found.tokens


def test_without_inserts_an_open_thought_stays_open() -> None:
    found = played(" Tamton is a town in Osmark and more", thought_tokens=4, close="earned", suffix_tokens=5)
    assert authors(found) == ["source", "env", "policy"]
    assert found.stop == "length"
    assert thinking_of(found, THINK.close).closed_by is None
    assert played(" Osmark</think>", thought_tokens=9, close="earned").stop == "answered"


def test_a_suffix_follows_the_closed_thought_within_its_limits_and_both_are_trained_alone() -> None:
    short = played(" Osmark</think>", " Osmark. It rains.", thought_tokens=9, suffix_tokens=20, stops=["."])
    assert authors(short) == ["source", "env", "policy", "policy"]
    thinking = thinking_of(short, THINK.close)
    assert thinking.suffix is not None
    assert thinking.suffix.text == " Osmark."
    long = played(" Osmark", " Osmark. It rains.", thought_tokens=9, suffix_tokens=3)
    assert authors(long) == ["source", "env", "policy", "env", "policy"]
    assert len(long.segments[-1].tokens) == 3
    row = trajectory_row(long, 1.0)
    trained = tuple(token for token, is_trained in zip(row.tokens, row.trained, strict=True) if is_trained)
    assert trained == (*long.segments[2].tokens, *long.segments[4].tokens)
