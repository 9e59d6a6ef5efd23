"""The arms of the probe: what may stand where a thought does, at the same places and with the same draws."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sleuth.envs.thought import thinking_of
from sleuth.factories import Spot, ThoughtSetting, thought_tokens
from sleuth.render import Renderer, decode
from sleuth.rollout import Rollout
from sleuth.types import Group, Segment, Task

GENERIC = (
    "Let me think about what comes next.",
    "This part matters for what follows.",
    "I should keep in mind what was said so far.",
    "What would the writer say here?",
)
"""Thoughts without content."""
SENTENCE_ENDS = (".", "!", "?", "\n")

Stories = list[tuple[int, ...] | None]
"""Of one place: up to the tag that closes what stands there, sample by sample; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """By arm and place, the stories; and the model's own thoughts as text.

    - `sampled`: the model's own thought;
    - `blank`: the tags and nothing between them;
    - `generic`: each of four sentences that fit any text;
    - `swapped`: its thought in another document of the kind, the same sample;
    - `within`: its thought at another place of the same document, half way through;
    - `teacher`: what the data has, where it has any.
    """

    stories: Mapping[str, Sequence[Stories]]
    thoughts: Sequence[Sequence[str]]


def arms_of(
    rollout: Rollout, setting: ThoughtSetting, spots: Sequence[Spot], *, samples: int, renderer: Renderer
) -> Arms:
    """Ask for the model's thoughts, at each place and at another of its document, and lay out all arms."""
    closing = setting.closing_tag.text
    tasks = [spot.task for spot in spots]
    own = asyncio.run(_thoughts(rollout, setting, tasks, samples, arm=0))
    elsewhere = asyncio.run(_thoughts(rollout, setting, [_half_way(task, renderer) for task in tasks], samples, arm=1))
    swapped = [own[at] if at is not None else None for at in others(tasks)]
    sampled = [[episode.trajectory for episode in group.episodes] for group in own]

    def moved(spot: Spot, group: Group | None) -> Stories:
        """The thoughts of another group, in this place."""
        if group is None:
            return [None] * samples
        thoughts = [thinking_of(episode.trajectory, closing) for episode in group.episodes]
        ends = [() if one.closed_by == "policy" else setting.closing_tag.tokens or () for one in thoughts]
        return [
            (*prefix_of(spot), *(setting.opening_tag.tokens or ()), *one.thought.tokens, *end)
            for one, end in zip(thoughts, ends, strict=True)
        ]

    def written(spot: Spot, thought: str | None) -> tuple[int, ...] | None:
        return None if thought is None else (*prefix_of(spot), *thought_tokens(thought, renderer))

    return Arms(
        stories={
            "sampled": [[thinking_of(one, closing).story for one in of_place] for of_place in sampled],
            "blank": [[written(spot, "")] for spot in spots],
            "generic": [[written(spot, sentence) for sentence in GENERIC] for spot in spots],
            "swapped": [moved(*pair) for pair in zip(spots, swapped, strict=True)],
            "within": [moved(*pair) for pair in zip(spots, elsewhere, strict=True)],
            "teacher": [[written(spot, spot.teacher)] for spot in spots],
        },
        thoughts=[
            [thinking_of(one, closing).thought.text.removesuffix(closing) for one in of_place] for of_place in sampled
        ],
    )


def prefix_of(spot: Spot) -> tuple[int, ...]:
    """The tokens before a place."""
    return spot.task.required_continuation.prefix.tokens


def suffix_of(spot: Spot) -> tuple[int, ...]:
    """The true tokens behind it."""
    return spot.task.required_continuation.suffix.tokens


def document_of(spot: Spot) -> str:
    """Places of one document count as one draw."""
    return spot.task.required_continuation.document


def others(tasks: Sequence[Task]) -> list[int | None]:
    """For each task the place of another one, of its kind where there is any, and never of its document: the next one
    in order. None where all are of one document."""

    def another(at: int) -> int | None:
        rest = [*range(at + 1, len(tasks)), *range(at)]
        own = tasks[at].required_continuation.document
        foreign = [place for place in rest if tasks[place].required_continuation.document != own]
        alike = [place for place in foreign if tasks[place].kind == tasks[at].kind]
        return next(iter([*alike[:1], *foreign[:1]]), None)

    return [another(at) for at in range(len(tasks))]


async def _thoughts(
    rollout: Rollout, setting: ThoughtSetting, tasks: Sequence[Task], samples: int, arm: int
) -> list[Group]:
    return await replace(rollout, key=(*rollout.key, arm)).groups(tasks, setting.env, samples=samples)


def _half_way(task: Task, renderer: Renderer) -> Task:
    """The same document, read as far as the end of a sentence near the middle of what is before the place."""
    prefix = task.required_continuation.prefix
    middle = max(1, len(prefix.tokens) // 2)
    near = sorted(range(1, len(prefix.tokens)), key=lambda at: abs(at - middle))
    ends = (at for at in near if decode(renderer.tokenizer, prefix.tokens[at - 1 : at]).endswith(SENTENCE_ENDS))
    read = prefix.tokens[: next(ends, middle)]
    begun = Segment(author="source", tokens=read, text=decode(renderer.tokenizer, read))
    return replace(task, continuation=replace(task.required_continuation, prefix=begun))
