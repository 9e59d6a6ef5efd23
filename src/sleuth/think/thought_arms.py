"""The arms of the thought probe: the text at the place of a thought, at the same spots with the same draws."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sleuth.ranks import ALONE, Ranks
from sleuth.render import Renderer, decode
from sleuth.rollout import Rollout
from sleuth.think.env import Thinking, thinking_of
from sleuth.think.thoughts import Spot, ThoughtSetting, thought_tokens
from sleuth.types import Segment, Task

GENERIC = (
    "Let me think about what comes next.",
    "This part matters for what follows.",
    "I should keep in mind what was said so far.",
    "What would the writer say here?",
)
"""Thoughts without content."""
SENTENCE_ENDS = (".", "!", "?", "\n")

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
    - `within`: the model's thought in the same document half way to the spot;
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
    """Samples the model's thoughts at each spot and half way to it, each rank at a share of them, and builds all
    arms."""
    closing = setting.closing_tag
    tasks = [spot.task for spot in spots]
    thoughts = partial(_thoughts, rollout, setting, samples=samples, ranks=ranks)
    own = thoughts(tasks, arm=0)
    elsewhere = thoughts([_half_way(task, renderer) for task in tasks], arm=1)
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
            "within": [moved(*pair) for pair in zip(spots, elsewhere, strict=True)],
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


def _thoughts(
    rollout: Rollout, setting: ThoughtSetting, tasks: Sequence[Task], *, samples: int, arm: int, ranks: Ranks
) -> list[list[Thinking]]:
    """By task, the thoughts that are sampled there."""
    play = partial(replace(rollout, key=(*rollout.key, arm)).groups, make_env=setting.env, samples=samples)
    groups = ranks.dealt(tasks, lambda mine, first: asyncio.run(play(mine, first_prompt=first)))
    return [
        [thinking_of(episode.trajectory, setting.closing_tag.text) for episode in group.episodes] for group in groups
    ]


def _half_way(task: Task, renderer: Renderer) -> Task:
    """The same document, cut at the end of the sentence that is nearest to the middle of the prefix."""
    prefix = task.required_continuation.prefix
    middle = max(1, len(prefix.tokens) // 2)
    near = sorted(range(1, len(prefix.tokens)), key=lambda at: abs(at - middle))
    ends = (at for at in near if decode(renderer.tokenizer, prefix.tokens[at - 1 : at]).endswith(SENTENCE_ENDS))
    read = prefix.tokens[: next(ends, middle)]
    half = Segment(author="source", tokens=read, text=decode(renderer.tokenizer, read))
    return replace(task, continuation=replace(task.required_continuation, prefix=half))
