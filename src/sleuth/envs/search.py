"""The search environment: the policy asks, passages come back, and an answer ends it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Iterator, Sequence

from sleuth.dialects import Dialect
from sleuth.envs.calls import queries_of
from sleuth.envs.frames import Frame, Framed, TextFrame
from sleuth.types import Action, Passage, Piece, Reply, RetrievalFailed, Retriever, StopReason, Task


class SearchEnv:
    """Answers one episode in the protocol of a dialect; `frame` puts its words where the policy reads them.

    After the dialect's number of searches one last turn is granted; a search in it ends the episode with the stop
    `turns`, and so does one in the last of its turns. With `forced_search` the first turn begins behind an opening
    search tag that the environment wrote, with `closed_book` behind an opening answer tag. A retriever that could not
    look ends the episode as `failed`, with the query that it was asked.
    """

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
    ) -> None:
        self.task = task
        self.dialect = dialect
        self.prompt = prompt
        self.retriever = retriever
        self.prefix = dialect.answer.open if closed_book else dialect.search.open if forced_search else ""
        self.frame = frame or TextFrame(dialect)
        self.turns = 0
        self.searches = 0
        self.hints = 0

    async def open(self) -> Reply:
        """The prompt, with the question in its place, or with what the data brings instead, which is template too."""
        own = self.task.prompt
        asked = Piece(text=own, author="template") if own else Piece(text=self.task.question)
        pieces = self.frame.open(self.prompt, asked)
        if self.prefix:
            pieces.append(Piece(text=self.prefix))
        return self._next(Framed(pieces=tuple(pieces)))

    async def reply(self, text: str, stop: StopReason) -> Reply:
        """Read the action off what the policy wrote in this turn, and answer it."""
        turn, self.prefix = self.prefix + text, ""
        self.turns += 1
        if stop == "length" and self.dialect.cut_ends:
            return Reply(action=Action(kind="invalid", text=turn.strip()), done="length")
        match = re.search(self.dialect.action, turn)
        if match is None:
            return self._bad(turn, stop, forgiven=self.dialect.frame == "text")
        if match["kind"] == "answer":
            return self._answer(match["text"].strip(), turn, stop)
        queries = queries_of(match["text"].strip(), self.dialect.tool)
        if not queries:
            return self._bad(turn, stop)
        if self._searches_left() <= 0:
            return Reply(action=Action(kind="search", text="\n".join(queries)), done="turns")
        return await self._search(queries, turn, stop)

    def _answer(self, content: str, turn: str, stop: StopReason) -> Reply:
        if self.dialect.answer_inner is not None:
            inner = re.search(self.dialect.answer_inner, content)
            if inner is None:
                return self._bad(turn, stop)
            content = inner["text"].strip()
        return Reply(action=Action(kind="answer", text=content), done="answered")

    async def _search(self, queries: Sequence[str], turn: str, stop: StopReason) -> Reply:
        self.searches += 1
        action = Action(kind="search", text="\n".join(queries))
        try:
            found = await self.retriever.search(queries, self.dialect.top_k)
        except RetrievalFailed:
            return Reply(action=action, done="failed")
        shown = Action(kind="search", text=action.text, passages=tuple(p for passages in found for p in passages))
        return self._next(self.frame.results(turn, stop, list(result_pieces(self.dialect, found))), shown)

    def _bad(self, turn: str, stop: StopReason, *, forgiven: bool = True) -> Reply:
        """A turn in messages that calls nothing is the last; any other bad one may be forgiven."""
        action = Action(kind="invalid", text=turn.strip())
        if not forgiven or self._hints_left() <= 0:
            return Reply(action=action, done="turns")
        self.hints += 1
        return self._next(self.frame.remark(turn, stop, self.dialect.hint), action)

    def _searches_left(self) -> float:
        used = self.searches + (self.hints if self.dialect.hints is None else 0)
        return min(_limit(self.dialect.searches) - used, self._turns_left())

    def _hints_left(self) -> float:
        if self.dialect.hints is None:
            return self._searches_left()
        return min(self.dialect.hints - self.hints, self._turns_left())

    def _turns_left(self) -> float:
        return _limit(self.dialect.turns) - self.turns

    def _next(self, framed: Framed, action: Action | None = None) -> Reply:
        return Reply(
            pieces=framed.pieces,
            restarts=framed.restarts,
            action=action,
            max_tokens=self.dialect.turn_tokens,
            stops=self.dialect.stops,
            response_tokens=self.dialect.response_tokens,
        )


def _limit(number: int | None) -> float:
    return math.inf if number is None else number


def result_pieces(
    dialect: Dialect, found: Sequence[Sequence[Passage]], removed: Container[int] = ()
) -> Iterator[Piece]:
    """The passages of each query in pieces: one for all, unless each has its own budget. Those `removed`, numbered
    through all queries, are left out; the others keep their ranks."""
    lines = list(_lines(dialect, found, removed))
    if dialect.passage_tokens is None or dialect.results_tokens is not None or dialect.results_key is not None:
        text = dialect.between_queries.join(dialect.between.join(of_query) for of_query in lines)
        if dialect.results_key is not None:
            text = json.dumps({dialect.results_key: text}, ensure_ascii=False)
        if text:
            yield Piece(text=text, budget=dialect.results_tokens)
        return
    for at, of_query in enumerate(lines):
        if at:
            yield Piece(text=dialect.between_queries)
        for place, line in enumerate(of_query):
            if place:
                yield Piece(text=dialect.between)
            yield Piece(text=line, budget=dialect.passage_tokens)


def _lines(dialect: Dialect, found: Sequence[Sequence[Passage]], removed: Container[int]) -> Iterator[list[str]]:
    """One line a passage, query by query."""
    number = 0
    for passages in found:
        of_query = []
        for rank, passage in enumerate(passages, 1):
            if number not in removed:
                of_query.append(dialect.passage.format(rank=rank, title=passage.title, text=passage.text))
            number += 1
        yield of_query
