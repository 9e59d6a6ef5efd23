"""What a policy did right under a hint, as rows that teach it without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sleuth.envs.translation import translated
from sleuth.factories import Setting
from sleuth.learn.batch import Row
from sleuth.render import Renderer
from sleuth.types import Episode, Piece, Segment

Story = list[tuple[Segment, bool]]
"""Segments, and which of them are taught."""


async def without_hints(
    episodes: Sequence[Episode], real: Setting, hinted: Setting, renderer: Renderer, *, context: int
) -> list[Row]:
    """Each episode as it reads without the hint, in at most `context` tokens; of equal ones the first is kept.

    In the same dialect the prompt is exchanged, and all behind it stays, token by token. In another one every turn is
    translated and said to the real environment, whose own words then stand between the turns.
    """
    rows: dict[tuple[int, ...], Row] = {}
    for episode in episodes:
        if real.dialect == hinted.dialect:
            story = await _behind_the_real_prompt(episode, real, hinted, renderer)
        else:
            story = await _said_again(episode, real, hinted, renderer)
        tokens = tuple(token for segment, _ in story for token in segment.tokens)
        if story and len(tokens) <= context:
            trained = tuple(taught for segment, taught in story for _ in segment.tokens)
            rows.setdefault(tokens, Row(tokens=tokens, trained=trained))
    return list(rows.values())


async def _behind_the_real_prompt(episode: Episode, real: Setting, hinted: Setting, renderer: Renderer) -> Story:
    """What the policy wrote is taught, and so is the search tag that was opened for it."""
    openings = [await setting.env(episode.task).open() for setting in (real, hinted)]
    before, hint = (renderer.render_all(opening.pieces) for opening in openings)
    opened = hint[-1:] if hinted.forced_search else []
    rest = episode.trajectory.segments[len(hint) :]
    return [
        *((segment, False) for segment in before),
        *((segment, True) for segment in opened),
        *((segment, segment.author == "policy") for segment in rest),
    ]


async def _said_again(episode: Episode, real: Setting, hinted: Setting, renderer: Renderer) -> Story:
    """The turns in the real dialect, and what its environment says to them; empty where one cannot be translated, or
    the environment ends otherwise than with the answer."""
    env = real.env(episode.task)
    reply = await env.open()
    story = list(_told(renderer.render_all(reply.pieces)))
    for turn in _turns(episode, hinted):
        text = translated(turn, hinted.dialect, real.dialect)
        if text is None or reply.done is not None:
            return []
        stopped = text.endswith(real.dialect.stops)
        end = "" if stopped else str(renderer.tokenizer.eos_token)
        story.append((renderer.render(Piece(text=text + end, author="teacher")), True))
        reply = await env.reply(text, "stop" if stopped else "eos")
        if reply.restarts:
            return []
        story += _told(renderer.render_all(reply.pieces))
    return story if reply.done == "answered" else []


def _told(segments: Iterable[Segment]) -> Iterator[tuple[Segment, bool]]:
    return ((segment, False) for segment in segments)


def _turns(episode: Episode, hinted: Setting) -> Iterator[str]:
    """What the policy wrote, turn by turn, the tag that was opened for the first included."""
    opened = hinted.dialect.search.open if hinted.forced_search else ""
    for segment in episode.trajectory.segments:
        if segment.author == "policy":
            yield opened + segment.text
            opened = ""
