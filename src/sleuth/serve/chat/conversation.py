"""One question, answered by the rollout loop: what is thought, searched, found and answered, as it comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from sleuth.rewards.citation.claims import tagged
from sleuth.rewards.supplied import passages_with
from sleuth.rollout import PromptTooLong, TrajectoryEnd, play
from sleuth.serve.chat.agent import Agent
from sleuth.serve.chat.stream_parser import Said, StreamParser
from sleuth.serve.http.refused import TOO_LONG, Refused
from sleuth.types import Action, Chunk, Passage, Segment, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The message brought these passages to refine."""

    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The environment took the last turn as a search, and showed what it found."""

    query: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The environment took the last turn as the answer."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Misunderstood:
    """The environment found nothing to do in the last turn: its drafts and queries come to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The end: `stop` is that of a `Trajectory`. `citations` are the passages that were shown and hold the answer, or,
    of those that were given, the ones that it names, each once. `prompt_tokens` are those that the model was given,
    results included, `completion_tokens` those it wrote."""

    stop: str
    citations: tuple[Passage, ...]
    prompt_tokens: int
    completion_tokens: int


Event = Given | Said | Searched | Answered | Misunderstood | Over


async def conversation(
    agent: Agent,
    message: str,
    *,
    temperature: float,
    key: tuple[int, ...],
    max_tokens: int | None = None,
) -> AsyncGenerator[Event, None]:
    """Play one episode and tell it. The last event is `Over`; before the model would write more than `max_tokens`, it
    comes as `length`. Raises `Refused`, before any event, for a message that the agent can do nothing with, or that
    leaves no room to answer."""
    parser, segments, written = StreamParser(agent.dialect), list[Segment](), 0
    task = agent.asked(message)
    env = agent.env(task)
    parts = play(
        env, agent.engine, agent.renderer, context=agent.context, temperature=temperature, key=key, stream=True
    )
    try:
        async with aclosing(parts):
            async for part in parts:
                match part:
                    case Chunk():
                        if max_tokens is not None and written + len(part.tokens) > max_tokens:
                            yield _over(task, segments, TrajectoryEnd(actions=(), stop="length"), written)
                            return
                        written += len(part.tokens)
                        for said in parser.feed(part.text):
                            yield said
                    case Segment(author="policy"):
                        segments.append(part)
                        for said in parser.end():
                            yield said
                    case Segment():
                        if task.evidence is not None and not segments:
                            yield Given(passages=task.evidence.snippets)
                        segments.append(part)
                        parser.begin(part.text)
                    case Action(kind="search"):
                        yield Searched(query=part.text, passages=part.passages)
                    case Action(kind="answer"):
                        yield Answered(text=part.text)
                    case Action():
                        yield Misunderstood()
                    case TrajectoryEnd(stop="rewritten"):
                        pass
                    case TrajectoryEnd():
                        yield _over(task, segments, part, written)
    except PromptTooLong as error:
        raise Refused(400, str(error), param="messages", code=TOO_LONG) from None


def _over(task: Task, segments: Sequence[Segment], ended: TrajectoryEnd, written: int) -> Over:
    trajectory = Trajectory(segments=tuple(segments), actions=ended.actions, stop=ended.stop)
    answers = [action.text for action in ended.actions if action.kind == "answer"]
    return Over(
        stop=ended.stop,
        citations=_cited(task, answers[-1], trajectory) if answers else (),
        prompt_tokens=sum(len(segment.tokens) for segment in segments if segment.author != "policy"),
        completion_tokens=written,
    )


def _cited(task: Task, answer: str, trajectory: Trajectory) -> tuple[Passage, ...]:
    if task.evidence is not None:
        named = tagged(answer).ids
        return tuple(snippet for snippet in task.evidence.snippets if snippet.id in named)
    return tuple({passage.id: passage for passage in passages_with(answer, trajectory)}.values())
