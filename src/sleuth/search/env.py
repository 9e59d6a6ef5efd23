"""The search environment: the policy searches, gets passages, and ends the episode with an answer; and retrievers for
control arms, which show what a model takes from its results."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from sleuth.data.spans import best_sentences
from sleuth.dialect import Dialect
from sleuth.episodes.calls import ERROR, calls_in, queries_of
from sleuth.episodes.frames import Frame, Framed, TextFrame
from sleuth.host.connections import CallClock
from sleuth.types import Action, Passage, Piece, Reply, RetrievalFailed, Retriever, StopReason, Task

NONE_LEFT = "this call was not made: none is left"
"""What the policy reads of a call beyond the limit; one more turn follows."""


class SearchEnv:
    """The environment of one episode in a dialect; `frame` formats its replies as text or chat messages.

    All calls of a message are made, in their order. After the dialect's number of searches there is one last turn; a
    search in it, or in the last of the dialect's turns, ends the episode with the stop reason `turns`. With
    `forced_search` the environment starts the first turn with an opening search tag; with `closed_book` it starts it
    with an opening answer tag, and allows no search. If the retriever fails, the episode ends as `failed`, with the
    query in its last action.
    """

    call_kind: ClassVar[Literal["search", "call"]] = "search"
    """The kind of an action that is no answer."""

    def __init__(
        self,
        task: Task,
        dialect: Dialect,
        prompt: str,
        retriever: Retriever,
        *,
        forced_search: bool = False,
        closed_book: bool = False,
        frame: Frame | None = None,
        clock: CallClock | None = None,
    ) -> None:
        self.task = task
        self.clock = clock or CallClock()
        self.dialect = replace(dialect, searches=0) if closed_book else dialect
        self.prompt = prompt
        self.retriever = retriever
        self.prefix = dialect.answer.open if closed_book else dialect.search.open if forced_search else ""
        self.frame = frame or TextFrame(dialect)
        self.turns = 0
        self.searches = 0
        self.hints = 0

    async def open(self) -> Reply:
        """The prompt filled with the question, or with the task's own prompt, which counts as template."""
        pieces = self.frame.open(self.prompt, *self._question())
        if self.prefix:
            pieces.append(Piece(text=self.prefix))
        return self._next(Framed(pieces=tuple(pieces)))

    def _question(self) -> list[Piece]:
        own = self.task.prompt
        return [Piece(text=own, author="template") if own else Piece(text=self.task.question, quoted=True)]

    async def reply(self, text: str, stop: StopReason) -> Reply:
        """Parses the action of this turn and answers it."""
        turn, self.prefix = self.prefix + text, ""
        self.turns += 1
        if stop == "length" and self.dialect.cut_ends:
            return Reply(action=Action(kind="invalid", text=turn.strip()), done="length")
        match = self.dialect.find_action(turn)
        if match is None:
            return self._invalid(turn, stop, may_retry=self.dialect.frame == "text")
        if match["kind"] == "answer":
            return self._answer(match["text"].strip(), turn, stop)
        calls = calls_in(turn, match, self.dialect)
        queries = [queries_of(call, self.dialect.tool) for call in calls]
        if not any(queries):
            return self._invalid(turn, stop)
        if self._searches_left() <= 0:
            *earlier, last = (Action(kind=self.call_kind, text="\n".join(query)) for query in queries if query)
            return Reply(earlier=tuple(earlier), action=last, done="turns")
        return await self._reply_to(calls, queries, turn, stop)

    async def _reply_to(
        self, calls: Sequence[str], queries: Sequence[Sequence[str]], turn: str, stop: StopReason
    ) -> Reply:
        """The results of the calls of a turn, in their order."""
        actions, shown = list[Action](), list[Sequence[Piece]]()
        for call, query in zip(calls, queries, strict=True):
            if not query:
                action, pieces = Action(kind="invalid", text=call), [Piece(text=self.dialect.hint)]
            elif self._searches_left() <= 0:
                action, pieces = await self._beyond_limit(query)
            else:
                self.searches += 1
                action, pieces = await self._search(query)
            actions.append(action)
            if pieces is None:
                return Reply(earlier=tuple(actions[:-1]), action=action, done="failed")
            shown.append(pieces)
        reply = self._next(self.frame.results(turn, stop, *shown), actions[-1])
        return replace(reply, earlier=tuple(actions[:-1]))

    async def _beyond_limit(self, queries: Sequence[str]) -> tuple[Action, Sequence[Piece]]:
        """The action of a call for which the earlier ones of its message left no room, and what the policy reads."""
        return Action(kind="invalid", text="\n".join(queries)), [Piece(text=f"{ERROR}{NONE_LEFT}")]

    def _answer(self, content: str, turn: str, stop: StopReason) -> Reply:
        if self.dialect.answer_inner is not None:
            inner = self.dialect.find_answer(content)
            if inner is None:
                return self._invalid(turn, stop)
            content = inner["text"].strip()
        return Reply(action=Action(kind="answer", text=content), done="answered")

    async def _search(self, queries: Sequence[str]) -> tuple[Action, Sequence[Piece] | None]:
        """The action of a search and the pieces of its results; no pieces if it failed."""
        action = Action(kind="search", text="\n".join(queries))
        try:
            with self.clock.waiting():
                results = await find_results(self.retriever, queries, self.dialect)
        except RetrievalFailed as error:
            return replace(action, failure=str(error)), None
        action = replace(action, passages=tuple(passage for passages in results for passage in passages))
        return action, list(result_pieces(self.dialect, results))

    def _invalid(self, turn: str, stop: StopReason, *, may_retry: bool = True) -> Reply:
        """The dialect's hint if one is left, else the end. A chat message without a call is always the last."""
        action = Action(kind="invalid", text=turn.strip())
        hints = self.dialect.hints
        left = self._searches_left() if hints is None else self._left(hints, self.hints)
        if not may_retry or left <= 0:
            return Reply(action=action, done="turns")
        self.hints += 1
        return self._next(self.frame.hint(turn, stop, self.dialect.hint), action)

    def _searches_left(self) -> float:
        used = self.searches + (self.hints if self.dialect.hints is None else 0)
        return self._left(self.dialect.searches, used)

    def _left(self, limit: int | None, used: int) -> float:
        """What a limit, and that of turns, leaves."""
        limits = ((limit, used), (self.dialect.turns, self.turns))
        return min(math.inf if most is None else most - so_far for most, so_far in limits)

    def _next(self, framed: Framed, action: Action | None = None) -> Reply:
        return Reply(
            pieces=framed.pieces,
            restarts=framed.restarts,
            action=action,
            max_tokens=self.dialect.turn_tokens,
            stops=self.dialect.stops,
            response_tokens=self.dialect.response_tokens,
        )


async def find_results(retriever: Retriever, queries: Sequence[str], dialect: Dialect) -> list[list[Passage]]:
    """What the policy is shown for each query: passages, or sentences of them. Raises RetrievalFailed."""
    results = await retriever.search(queries, dialect.sentences_of or dialect.top_k)
    if dialect.sentences_of is None:
        return results
    return [best_sentences(query, found, dialect.top_k) for query, found in zip(queries, results, strict=True)]


def result_pieces(
    dialect: Dialect, results: Sequence[Sequence[Passage]], removed: Container[int] = ()
) -> Iterator[Piece]:
    """The passages of each query, formatted: one piece for all, unless each passage has its own budget. `removed`
    passages, numbered over all queries, are left out; the others keep their ranks."""
    lines = list(_lines(dialect, results, removed))
    if dialect.passage_tokens is None or dialect.results_tokens is not None or dialect.results_key is not None:
        text = dialect.between_queries.join(dialect.between.join(query_lines) for query_lines in lines)
        if dialect.results_key is not None:
            text = json.dumps({dialect.results_key: text}, ensure_ascii=False)
        if text:
            yield Piece(text=text, budget=dialect.results_tokens, quoted=True)
        return
    for query, query_lines in enumerate(lines):
        if query:
            yield Piece(text=dialect.between_queries)
        for at, line in enumerate(query_lines):
            if at:
                yield Piece(text=dialect.between)
            yield Piece(text=line, budget=dialect.passage_tokens, quoted=True)


def _lines(dialect: Dialect, results: Sequence[Sequence[Passage]], removed: Container[int]) -> Iterator[list[str]]:
    """For each query a list with one line per passage."""
    number = 0
    for passages in results:
        lines = []
        for rank, passage in enumerate(passages, 1):
            if number not in removed:
                lines.append(dialect.passage.format(rank=rank, title=passage.title, text=passage.text))
            number += 1
        yield lines


class EmptyRetriever:
    """Never finds anything."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [[] for _ in queries]


class ShuffledRetriever:
    """Returns the results of another question for each query: real passages about something else.

    The other question is a hash of the query, so equal queries get equal passages.
    """

    def __init__(self, inner: Retriever, questions: Sequence[str]) -> None:
        self.inner = inner
        self.questions = questions

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        others = [self.questions[zlib.crc32(query.encode()) % len(self.questions)] for query in queries]
        return await self.inner.search(others, k)


class GoldRetriever:
    """Returns the same passages for every query: the gold ones of a question."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = list(passages)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [self.passages[:k] for _ in queries]


class WithoutRetriever:
    """Never finds the passages with the `hidden` ids."""

    def __init__(self, inner: Retriever, hidden: Collection[str]) -> None:
        self.inner = inner
        self.hidden = hidden

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        found = await self.inner.search(queries, k + len(self.hidden))
        return [[one for one in passages if one.id not in self.hidden][:k] for passages in found]
