"""One question answered by the rollout loop, as a stream of events: thoughts, searches, results, the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from sleuth.rollout import PromptTooLong, TrajectoryEnd, play
from sleuth.serve.chat.agent import Agent
from sleuth.serve.chat.citations import Citation, citations_of
from sleuth.serve.chat.stream_parser import StreamParser, TextDelta
from sleuth.serve.http.refused import TOO_LONG, Refused
from sleuth.types import Action, Chunk, Passage, Segment, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The message contained these passages to refine."""

    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The environment ran the last turn's search and returned these results."""

    query: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The environment accepted the last turn as the answer."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Misunderstood:
    """The environment found no action in the last turn: its drafts and queries are void."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end. `stop` is that of a `Trajectory`. `citations` are those of the answer. `prompt_tokens` include results,
    `completion_tokens` are the model's own, of which `thought_tokens` were sampled outside of queries and drafts."""

    stop: str
    citations: tuple[Citation, ...]
    prompt_tokens: int
    completion_tokens: int
    thought_tokens: int


Event = Given | TextDelta | Searched | Answered | Misunderstood | Finished


async def conversation(
    agent: Agent,
    message: str,
    *,
    field: str,
    temperature: float,
    key: tuple[int, ...],
    max_tokens: int | None = None,
) -> AsyncGenerator[Event, None]:
    """The events of one episode. The last is `Finished`, with stop `length` once the model would exceed `max_tokens`.
    Raises `Refused`, before any event, for an unusable message or one that leaves no room to answer; it names the
    request's `field` that holds the message."""
    parser, segments = StreamParser(agent.dialect), list[Segment]()
    written = thought = 0
    task = agent.make_task(message, field)
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
                            yield _over(
                                agent, task, segments, TrajectoryEnd(actions=(), stop="length"), written, thought
                            )
                            return
                        written += len(part.tokens)
                        thought += len(part.tokens) if parser.part == "thought" else 0
                        for delta in parser.feed(part.text):
                            yield delta
                    case Segment(author="policy"):
                        segments.append(part)
                        for delta in parser.end():
                            yield delta
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
                        yield _over(agent, task, segments, part, written, thought)
    except PromptTooLong as error:
        raise Refused(400, str(error), param=field, code=TOO_LONG) from None


def _over(
    agent: Agent, task: Task, segments: Sequence[Segment], ended: TrajectoryEnd, written: int, thought: int
) -> Finished:
    trajectory = Trajectory(segments=tuple(segments), actions=ended.actions, stop=ended.stop)
    answers = [action.text for action in ended.actions if action.kind == "answer"]
    return Finished(
        stop=ended.stop,
        citations=citations_of(task, answers[-1], trajectory, agent.dialect) if answers else (),
        prompt_tokens=sum(len(segment.tokens) for segment in segments if segment.author != "policy"),
        completion_tokens=written,
        thought_tokens=thought,
    )
