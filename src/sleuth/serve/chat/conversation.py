"""One question answered by the rollout loop, as a stream of events: thoughts, searches, results, the answer."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from sleuth.dialect import Dialect
from sleuth.read.dialect import QUOTED
from sleuth.rollout import PromptTooLong, TrajectoryEnd, play
from sleuth.serve.chat.agent import Agent
from sleuth.serve.chat.citations import Citation, citations_of
from sleuth.serve.http.refused import TOO_LONG, Refused
from sleuth.types import Action, Chunk, Passage, Segment, Trajectory

Part = Literal["thought", "query", "draft"]

MAYBE_QUOTED = re.compile(r"\s*(?:\[[^\[\]]*\]?\s*)?\Z")
"""What may become a quotation, `QUOTED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """Text of the policy: `TextDelta(part="query", text="Ada Voss")`. A draft becomes an answer, and a query a search,
    only when the environment accepts it."""

    part: Part
    text: str


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


class StreamParser:
    """Parses the turns of one conversation by the tags of `dialect`, which are dropped: text between search tags is a
    query, between answer tags a draft, and all else thought. A line break separates the thoughts of two turns. The
    quotation at the end of a draft is dropped too, in dialects whose answers quote."""

    def __init__(self, dialect: Dialect) -> None:
        self._tags: dict[str, Part] = {tag: "thought" for tag in dialect.tags}
        self._tags |= {dialect.search.open: "query", dialect.answer.open: "draft"}
        longest_first = sorted(self._tags, key=len, reverse=True)
        self._tag = re.compile("|".join(map(re.escape, longest_first)))
        self._quotes = dialect.cites
        self.part: Part = "thought"  # that the next text belongs to
        self._held = ""
        self._thought = False  # in an earlier turn
        self._thinks = False  # in this one

    def begin(self, before: str) -> None:
        """Starts a turn after the text `before`, which may end with an opening tag."""
        self.part = "thought"
        for tag, part in self._tags.items():
            if before.rstrip().endswith(tag):
                self.part = part
        self._thought, self._thinks = self._thought or self._thinks, False

    def feed(self, text: str) -> Iterator[TextDelta]:
        """The parts of `text`. What may be the beginning of a tag, or a quotation, is held back."""
        text, self._held = self._held + text, ""
        while tag := self._tag.search(text):
            yield from self._said(self._without_quotation(text[: tag.start()]))
            self.part, text = self._tags[tag[0]], text[tag.end() :]
        settled = len(text) - partial_match_length(text, self._tags)
        if self._quotes and self.part == "draft" and (quotation := MAYBE_QUOTED.search(text, 0, settled)) is not None:
            settled = quotation.start()
        self._held = text[settled:]
        yield from self._said(text[:settled])

    def end(self) -> Iterator[TextDelta]:
        """The text held back, at the end of the turn."""
        held, self._held = self._held, ""
        yield from self._said(self._without_quotation(held))

    def _without_quotation(self, text: str) -> str:
        return QUOTED.sub("", text) if self._quotes and self.part == "draft" else text

    def _said(self, text: str) -> Iterator[TextDelta]:
        if not text:
            return
        if self.part == "thought":
            if self._thought and not self._thinks:
                text = "\n" + text
            self._thinks = True
        yield TextDelta(part=self.part, text=text)


def partial_match_length(text: str, strings: Collection[str]) -> int:
    """The number of characters at the end of `text` that may be the beginning of one of `strings`."""
    longest = max(map(len, strings), default=0)
    ends = (text[start:] for start in range(max(0, len(text) - longest + 1), len(text)))
    return next((len(end) for end in ends if any(one.startswith(end) and one != end for one in strings)), 0)


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
    parts = play(
        agent.env(task),
        agent.engine,
        agent.renderer,
        context=agent.context,
        temperature=temperature,
        key=key,
        stream=True,
    )

    def over(ended: TrajectoryEnd) -> Finished:
        trajectory = Trajectory(segments=tuple(segments), actions=ended.actions, stop=ended.stop)
        answers = [action.text for action in ended.actions if action.kind == "answer"]
        return Finished(
            stop=ended.stop,
            citations=citations_of(task, answers[-1], trajectory, agent.dialect) if answers else (),
            prompt_tokens=sum(len(segment.tokens) for segment in segments if segment.author != "policy"),
            completion_tokens=written,
            thought_tokens=thought,
        )

    try:
        async with aclosing(parts):
            async for part in parts:
                match part:
                    case Chunk():
                        if max_tokens is not None and written + len(part.tokens) > max_tokens:
                            yield over(TrajectoryEnd(actions=(), stop="length"))
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
                        yield over(part)
    except PromptTooLong as error:
        raise Refused(400, str(error), param=field, code=TOO_LONG) from None
