"""The queries of a search action, as text or a native tool call; and the calls of tools that an episode makes."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sleuth.dialect import Dialect, Tool
from sleuth.host.escapes import replace_surrogates
from sleuth.own.calls import delaying_engine
from sleuth.types import Action, EpisodeKey, Group, Score, Task

ERROR = "error: "
"""What the policy reads before the reason why a call has no result."""


def calls_in(turn: str, match: re.Match[str], dialect: Dialect) -> list[str]:
    """The texts of the calls in a turn, of which the first is matched: all of a message in a conversation."""
    calls, more = [match["text"].strip()], match
    while dialect.frame == "conversation":
        turn = turn[more.end() :]
        if (more := dialect.find_action(turn)) is None or more["kind"] == "answer":
            break
        calls.append(more["text"].strip())
    return calls


def queries_of(text: str, tool: Tool | None) -> tuple[str, ...]:
    """The queries of a search action; empty if `text` is not a valid call of the `tool`.

    A call is `{"name": ..., "arguments": {...}}`; the arguments may be JSON text, as some models write them.
    """
    if tool is None:
        return (text,)
    call = parsed(text)
    if not isinstance(call, dict) or call.get("name") != tool.name:
        return ()
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        arguments = parsed(arguments)
    value = arguments.get(tool.argument) if isinstance(arguments, dict) else None
    queries = value if tool.several else [value]
    if not isinstance(queries, list):
        return ()
    words = tuple(replace_surrogates(query.strip()) for query in queries if isinstance(query, str))
    return words if len(words) == len(queries) and all(words) else ()


def call_of(queries: Sequence[str], tool: Tool | None) -> str:
    """The text of a search action for `queries`, the inverse of `queries_of`. Raises ValueError for several queries
    unless the tool takes several."""
    if tool is not None and tool.several:
        return json.dumps({"name": tool.name, "arguments": {tool.argument: [*queries]}}, ensure_ascii=False)
    [query] = queries
    if tool is None:
        return query
    return json.dumps({"name": tool.name, "arguments": {tool.argument: query}}, ensure_ascii=False)


def parsed(text: str) -> object:
    """The JSON value of a text; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a policy may write ten thousand opening brackets
        return None


class CallRecord:
    """The calls of one step: those of its episodes when it was `played` before, in their order, and the results that
    episodes of a question share."""

    def __init__(self, played: Mapping[int, Group]) -> None:
        self.recorded: dict[EpisodeKey, list[Action]] = {
            (prompt, episode.sample): [
                action for action in episode.trajectory.actions if action.kind == "call" and action.result is not None
            ]
            for prompt, group in played.items()
            for episode in group.episodes
        }
        self.ended = {
            (prompt, episode.sample): episode.trajectory
            for prompt, group in played.items()
            for episode in group.episodes
        }
        self._running: dict[tuple[str, str], asyncio.Future[str]] = {}

    async def shared(self, task: Task, call: str, make: Callable[[], Awaitable[str]]) -> str:
        """The result of a call that is made once for all episodes of the task."""
        if (task.id, call) not in self._running:
            self._running[task.id, call] = asyncio.ensure_future(make())
        with delaying_engine():  # else it may go on before all of them have read the result
            return await asyncio.shield(self._running[task.id, call])


class EpisodeCalls:
    """The calls of one episode. `objects` are those of tools that live as long as it, by their classes and servers.

    With the `record` of a step that was played before, the episode gets the results that it got then, call by call, its
    end and its score, and the calls are not made again. If it takes another course, those that were left out are made
    before the next one, so that its tools know of them.
    """

    def __init__(self, task: Task, key: EpisodeKey = (0, 0), record: CallRecord | None = None) -> None:
        self.task = task
        self.objects: dict[Any, Any] = {}
        self._record = record
        self._recorded = deque(record.recorded.get(key, ())) if record is not None else deque[Action]()
        self._ended = record.ended.get(key) if record is not None else None  # None too once it took another course
        self._left_out: list[Callable[[], Awaitable[str]]] = []

    async def result(self, call: str, make: Callable[[], Awaitable[str]], *, shared: bool) -> str:
        """The result of the episode's next call, which is the same in all episodes of the task if it is `shared`."""
        if self._recorded and self._recorded[0].text == call:
            if not shared:
                self._left_out.append(make)
            return str(self._recorded.popleft().result)
        self._recorded.clear()
        self._ended = None
        if shared and self._record is not None:
            return await self._record.shared(self.task, call, make)
        await self._catch_up()
        return await make()

    async def is_done(self, ask: Callable[[], Awaitable[bool]]) -> bool:
        """Whether an environment has ended the episode after its last call."""
        if self._ended is None:
            return await ask()
        return not self._recorded and self._ended.stop == "answered" and self._ended.actions[-1].kind == "call"

    async def score(self, ask: Callable[[], Awaitable[Score | None]]) -> Score | None:
        """What an environment gives for the episode."""
        if self._ended is not None and not self._recorded:
            return self._ended.score
        await self._catch_up()
        return await ask()

    async def _catch_up(self) -> None:
        while self._left_out:
            await self._left_out.pop(0)()
