"""The arms of the thought probe: the text at the place of a thought, at the same spots with the same draws."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sleuth.ranks import ALONE, Ranks
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.think.env import Thinking, thinking_of
from sleuth.think.thoughts import Spot, ThoughtSetting, thought_tokens
from sleuth.types import Task

GENERIC = (
    "Let me think about what comes next.",
    "This part matters for what follows.",
    "I should keep in mind what was said so far.",
    "What would the writer say here?",
)
"""Thoughts without content."""
OWN_KEY = 0
"""Separates the sampling keys of thoughts from those of suffixes."""

Contexts = list[tuple[int, ...] | None]
"""The contexts of one spot, sample by sample: all tokens up to the closing tag of the thought; None where the arm has
no thought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """By arm and spot, the contexts; and the model's own thoughts as text.

    - `sampled`: the model's own thought;
    - `blank`: the tags with nothing between them;
    - `generic`: each of four sentences that fit any text;
    - `swapped`: the model's thought in another document of the kind, the same sample;
    - `teacher`: the thought in the data, if there is one.
    """

    contexts: Mapping[str, Sequence[Contexts]]
    thoughts: Sequence[Sequence[str]]


def build_arms(
    rollout: Rollout,
    setting: ThoughtSetting,
    spots: Sequence[Spot],
    *,
    samples: int,
    renderer: Renderer,
    ranks: Ranks = ALONE,
) -> Arms:
    """Samples the model's thoughts at each spot, each rank at a share of them, and builds all arms."""
    closing = setting.closing_tag
    tasks = [spot.task for spot in spots]
    play = partial(replace(rollout, key=(*rollout.key, OWN_KEY)).groups, make_env=setting.env, samples=samples)
    groups = ranks.dealt(tasks, lambda mine, first: asyncio.run(play(mine, first_prompt=first)))
    own = [[thinking_of(episode.trajectory, closing.text) for episode in group.episodes] for group in groups]
    swapped = [own[at] if at is not None else None for at in swap_partners(tasks)]

    def moved(spot: Spot, thoughts: Sequence[Thinking] | None) -> Contexts:
        """The contexts of `spot` with thoughts from elsewhere."""
        if thoughts is None:
            return [None] * samples
        before = (*spot.prefix, *(setting.opening_tag.tokens or ()))
        ends = [() if one.closed_by == "policy" else closing.tokens or () for one in thoughts]
        return [(*before, *one.thought.tokens, *end) for one, end in zip(thoughts, ends, strict=True)]

    def with_text(spot: Spot, thought: str | None) -> tuple[int, ...] | None:
        return None if thought is None else (*spot.prefix, *thought_tokens(thought, renderer))

    return Arms(
        contexts={
            "sampled": [[one.story for one in thoughts] for thoughts in own],
            "blank": [[with_text(spot, "")] for spot in spots],
            "generic": [[with_text(spot, sentence) for sentence in GENERIC] for spot in spots],
            "swapped": [moved(*pair) for pair in zip(spots, swapped, strict=True)],
            "teacher": [[with_text(spot, spot.teacher)] for spot in spots],
        },
        thoughts=[[one.thought.text.removesuffix(closing.text) for one in thoughts] for thoughts in own],
    )


def swap_partners(tasks: Sequence[Task]) -> list[int | None]:
    """For each task the index of the next one of another document, of the same kind if there is one. None where all
    tasks are of one document."""

    def partner(at: int) -> int | None:
        rest = [*range(at + 1, len(tasks)), *range(at)]
        own = tasks[at].required_continuation.document
        foreign = [other for other in rest if tasks[other].required_continuation.document != own]
        alike = [other for other in foreign if tasks[other].kind == tasks[at].kind]
        return next(iter([*alike[:1], *foreign[:1]]), None)

    return [partner(at) for at in range(len(tasks))]
