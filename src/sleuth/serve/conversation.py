"""One question answered by the rollout loop, as a stream of events: thoughts, searches, results, the answer."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from sleuth.answers.answer import cited_passage, find_words, passages_with, quotation
from sleuth.answers.match import appears_in, normalise
from sleuth.cite.claims import tagged
from sleuth.data.spans import STOP_WORDS, WORD, sentences
from sleuth.dialect import Dialect
from sleuth.episodes.agent import RequestEnv
from sleuth.episodes.agent_messages import Turn
from sleuth.evaluation.certainty import signals_of
from sleuth.evaluation.intervals import Measured
from sleuth.read.dialect import QUOTED
from sleuth.rollout import PromptTooLong, TrajectoryEnd, play
from sleuth.serve.agent import Agent
from sleuth.serve.refused import TOO_LONG, Refused
from sleuth.types import Action, Chunk, Passage, Segment, Task, Trajectory

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


NOTHING_FOUND = "I found nothing about that in these documents."


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end. `stop` is that of a `Trajectory`. `citations` are those of the answer. `prompt_tokens` include results,
    `completion_tokens` are the model's own. Where the agent has a certainty, `certainty` is the share of such answers
    that are right, and `withheld` the answer that `NOTHING_FOUND` stands for."""

    stop: str
    citations: tuple[Citation, ...]
    prompt_tokens: int
    completion_tokens: int
    certainty: Measured | None = None
    withheld: str | None = None
    failure: str | None = None
    """Why an environment of the user failed."""


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
    searches = list[Action]()
    written = 0
    certainty: Measured | None = None
    withheld: str | None = None
    answered: Action | None = None
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
        shown = answers if withheld is None else []
        failures = [action.failure for action in ended.actions if action.kind == "invalid"]
        return Finished(
            stop=ended.stop,
            citations=citations_of(task, answers[-1], trajectory, agent.dialect) if shown else (),
            prompt_tokens=sum(len(segment.tokens) for segment in segments if segment.author != "policy"),
            completion_tokens=written,
            certainty=certainty,
            withheld=withheld,
            failure=failures[-1] if failures else None,
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
                        for delta in parser.feed(part.text):
                            yield delta
                    case Segment(author="policy"):
                        segments.append(part)
                        for delta in parser.end():
                            yield delta
                    case Segment():
                        if task.evidence is not None and not segments:
                            yield Given(passages=task.evidence.snippets)
                        if answered is not None:  # the user's environment goes on after it
                            answered = None
                            yield Misunderstood()
                        segments.append(part)
                        parser.begin(part.text)
                    case Action(kind="search"):
                        searches.append(part)
                        yield Searched(query=part.text, passages=part.passages)
                    case Action(kind="answer"):
                        answered = part
                    case Action():
                        yield Misunderstood()
                    case TrajectoryEnd(stop="rewritten"):
                        pass
                    case TrajectoryEnd():
                        if answered is not None:
                            episode = Trajectory(segments=tuple(segments), actions=(*searches, answered))
                            certainty, withheld = _weighed(agent, task, answered.text, episode)
                            yield Answered(text=answered.text if withheld is None else NOTHING_FOUND)
                        yield over(part)
    except PromptTooLong as error:
        raise Refused(400, str(error), param=field, code=TOO_LONG) from None


async def turn(
    agent: Agent, env: RequestEnv, *, temperature: float, key: tuple[int, ...]
) -> AsyncGenerator[Turn, None]:
    """The model's turn after a history. Raises `Refused` where that leaves no room in the context."""
    limits = {"context": agent.context, "temperature": temperature, "key": key}
    try:
        async for _ in play(env, agent.engine, agent.renderer, **limits):
            pass
    except PromptTooLong as error:
        raise Refused(400, str(error), param="messages", code=TOO_LONG) from None
    assert env.turn is not None
    yield env.turn


def _weighed(agent: Agent, task: Task, answer: str, episode: Trajectory) -> tuple[Measured | None, str | None]:
    """How sure an answer is, if the agent knows that, and the answer itself where it is not sure enough to be given."""
    if agent.certainty is None or (signals := signals_of(task.question, answer, episode, agent.dialect)) is None:
        return None, None
    return agent.certainty.share_right(signals), answer if agent.certainty.withholds(signals) else None


# -- citations ---------------------------------------------------------------------------------------------------------


ABBREVIATED = re.compile(r"(?<![.\w])(?:[A-Z]|Dr|Mrs?|Ms|Prof|St|Gen|Col|Lt|Capt|Sen|Gov|Rev|Mt|No|vs)\.\Z")
"""The end of a sentence that is none: of `John F. Kennedy`, `St. Louis`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A cited passage. The characters [begin, stop) of its text are the sentence with the answer; None if its text does
    not contain the answer. `Citation(passage=passage, sentence=(28, 54))`."""

    passage: Passage
    sentence: tuple[int, int] | None = None

    @property
    def text(self) -> str | None:
        """The sentence itself."""
        return None if self.sentence is None else self.passage.text[slice(*self.sentence)]


def citations_of(task: Task, answer: str, trajectory: Trajectory, dialect: Dialect) -> tuple[Citation, ...]:
    """The citations of a finished answer, each passage once: the snippets that a refiner names; the passage that the
    answer quotes, in dialects whose answers do; in others every shown passage that contains the answer."""
    if task.evidence is not None:
        named = tagged(answer).ids
        return tuple(Citation(passage=snippet) for snippet in task.evidence.snippets if snippet.id in named)
    if dialect.cites:
        cited = cited_passage(trajectory, dialect)
        if cited is None:
            return ()
        return (Citation(passage=cited, sentence=quoted_sentence(quotation(trajectory, dialect), cited.text)),)
    passages = {passage.id: passage for passage in passages_with(answer, trajectory)}.values()
    shown = "\n".join(segment.text for segment in trajectory.segments if segment.author != "policy")
    return tuple(
        Citation(passage=passage, sentence=answer_sentence(answer, passage.text, task.question, shown))
        for passage in passages
    )


def quoted_sentence(quoted: str, text: str) -> tuple[int, int] | None:
    """The characters [begin, stop) of the sentence of `text` in which a quotation begins; None if it is not in it."""
    found = find_words(quoted, text)
    return found and max(place for place in whole_sentences(text) if place[0] <= found.start())


def answer_sentence(answer: str, text: str, question: str = "", shown: str = "") -> tuple[int, int] | None:
    """The characters [begin, stop) of the sentence of `text` that contains the words of the answer, or of neighbouring
    sentences that do together; None without any. Of several, one that is in `shown`, the text that the policy read, and
    of those the one with most words of the question, stop words aside; the first of equals."""
    asked = content_words(question)

    def fit(place: tuple[int, int]) -> tuple[bool, int]:
        sentence = text[slice(*place)]
        return sentence in shown, len(asked & content_words(sentence))

    found = whole_sentences(text)
    for together in range(1, len(normalise(answer).split()) + 1):
        runs = [(first[0], last[1]) for first, last in zip(found, found[together - 1 :], strict=False)]
        if holding := [place for place in runs if appears_in(answer, text[slice(*place)])]:
            return max(holding, key=fit)
    return None


def whole_sentences(text: str) -> list[tuple[int, int]]:
    """The sentences of a text as characters [begin, stop), none cut behind an initial or an abbreviation."""
    found: list[tuple[int, int]] = []
    for begin, stop in sentences(text):
        if found and ABBREVIATED.search(text, found[-1][0], found[-1][1]) is not None:
            begin, _ = found.pop()
        found.append((begin, stop))
    return found


def content_words(text: str) -> set[str]:
    """The distinct words of a text in lower case, without stop words."""
    return {word.lower() for word in WORD.findall(text)} - STOP_WORDS
