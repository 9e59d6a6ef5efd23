"""A pool of chat completion servers of one model: retries, adaptive concurrency, a call budget."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from sleuth.host.connections import Answer, Replica, Replicas, RequestFailedError, RetryBudget, UnreachableError, ask
from sleuth.host.escapes import replace_surrogates

ATTEMPTS = 4
FAILURES_TO_REST = 10
"""Consecutive failures until a replica rests: with many concurrent calls three would mean little."""
BUSY, TOO_SLOW = 429, 408
RESTART_PAUSE = 1.0
"""Seconds until a server that is being started again is asked again."""
THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
DATED = r"-\d{4}(-?\d{2}-?\d{2})?"
"""The release date that a provider may append to a model's name."""


class NoAnswerError(Exception):
    """The server could not be asked or did not answer; the message says why."""


class RefusedError(NoAnswerError):
    """The server rejected the request as invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The text of a completion. `cut`: it ended because its tokens were spent."""

    text: str
    cut: bool


class ServerPool:
    """Gets completions from the replicas of a model.

    A failed attempt (no connection, no answer within `timeout` seconds, status 408, 429 or 5xx, an answer of another
    shape or by another model) is retried, if possible at another replica, up to `ATTEMPTS` attempts and within a retry
    budget; a replica that keeps failing rests for a while. Once no replica has answered for as long as all attempts of
    a question may take, further questions fail at once, except for single trials.

    Servers that the run starts again when they die take `restart` seconds at most for that; a question waits for them,
    and that they are not there is no attempt. Nobody else asks them, so that they need no retry budget.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout: float,
        at_once: int,
        ledger: Ledger,
        key: str | None,
        restart: float = 0.0,
    ) -> None:
        self.down_timeout = timeout * ATTEMPTS + restart
        self._restart = restart
        self._timeout = timeout
        self._at_once = at_once
        self._ledger = ledger
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._replicas = Replicas([base_url(url) for url in urls], failures_to_open=FAILURES_TO_REST)
        self._retries = RetryBudget()
        self._down_since = math.inf
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """Waits for a free slot and yields the deadline (monotonic clock) for what is asked in it."""
        self._connect()
        async with self._concurrency.slot():
            yield time.monotonic() + self.down_timeout

    async def ask(self, body: Mapping[str, Any], deadline: float) -> Reply:
        """One completion. Raises NoAnswerError if there is none by the deadline."""
        tried: list[Replica] = []
        reason = "every replica is resting after failures"
        self._retries.record_request()
        while len(tried) < ATTEMPTS and (replica := await self._next(tried, deadline)) is not None:
            if tried and not self._restart and not self._retries.spend():
                reason += "; too many calls fail for another attempt"
                break
            tried.append(replica)
            try:
                self._ledger.spend()
                return await self._attempt(replica, body, deadline)
            except _AttemptError as error:
                reason, pause = f"{replica.url}: {error}", error.pause
                if error.gone and time.monotonic() < self._down_since + self._restart:
                    tried.pop()
                    pause = max(pause, RESTART_PAUSE)
                await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        raise NoAnswerError(f"no answer after {len(tried)} attempts: {reason}")

    async def _attempt(self, replica: Replica, body: Mapping[str, Any], deadline: float) -> Reply:
        """One call; its outcome updates the replica's health and the concurrency."""
        replica.in_flight += 1
        try:
            reply = await self._post(replica, body, deadline)
        except RefusedError:
            self._answered(replica)
            raise
        except _AttemptError:
            self._replicas.failed(replica)
            self._down_since = min(self._down_since, time.monotonic())
            self._concurrency.record(succeeded=False)
            raise
        finally:
            replica.in_flight -= 1
        self._answered(replica)
        return reply

    def _answered(self, replica: Replica) -> None:
        self._replicas.succeeded(replica)
        self._down_since = math.inf
        self._concurrency.record(succeeded=True)

    async def _next(self, tried: Sequence[Replica], deadline: float) -> Replica | None:
        """A replica to ask, after a wait if all of them rest; None at the deadline."""
        while time.monotonic() < deadline:
            if (replica := self._replicas.pick(tried[-1:])) is not None:
                return replica
            pause = self._replicas.seconds_until_next()
            if time.monotonic() + pause > min(deadline, self._down_since + self.down_timeout):
                return None
            await asyncio.sleep(pause)
        return None

    async def _post(self, replica: Replica, body: Mapping[str, Any], deadline: float) -> Reply:
        seconds = min(self._timeout, deadline - time.monotonic())
        try:
            async with asyncio.timeout(seconds):
                response = await ask("POST", f"{replica.url}/chat/completions", body=body, headers=self._headers)
        except RequestFailedError as error:
            raise _AttemptError(str(error), gone=isinstance(error, UnreachableError)) from None
        except TimeoutError:
            raise _AttemptError(f"no answer within {seconds:.3g} seconds") from None
        status = response.status
        if 400 <= status < 500 and status not in (BUSY, TOO_SLOW):
            raise RefusedError(f"{replica.url}: refused with {status}: {response.detail()}")
        if status != HTTPStatus.OK:
            gone = status == HTTPStatus.SERVICE_UNAVAILABLE  # while it loads its model
            raise _AttemptError(f"status {status}: {response.detail()}", _retry_after(response), gone=gone)
        try:
            answer = response.json()
            [choice, *_] = answer["choices"]
            reply = reply_of(choice)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _AttemptError(f"an answer of another shape ({type(error).__name__}: {error})") from None
        if not same_model(body["model"], model := answer.get("model")):
            raise _AttemptError(f"answered by {model}, not by {body['model']}")
        return reply

    def _connect(self) -> None:
        """Begins to count anew in another event loop, since calls of the one before ended with it."""
        if self._loop is not asyncio.get_running_loop():
            self._loop = asyncio.get_running_loop()
            self._concurrency = AdaptiveConcurrency(self._at_once)
            for replica in self._replicas.members:
                replica.in_flight = 0


class _AttemptError(Exception):
    """A failed call that may be retried after `pause` seconds. `gone`: the server does not run, or not yet."""

    def __init__(self, message: str, pause: float = 0.0, *, gone: bool = False) -> None:
        super().__init__(message)
        self.pause, self.gone = pause, gone


def base_url(url: str) -> str:
    """`http://host:8000/v1` of an address that may name no version, or the endpoint too."""
    url = url.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    return url if re.search(r"/v\d+$", url) else f"{url}/v1"


def reply_of(choice: Mapping[str, Any]) -> Reply:
    """The text of the message without a leading thought. If the content is empty, the reasoning field: a server's
    reasoning parser may have put the whole answer there."""
    message = choice["message"]
    fields = (message.get(field) for field in ("content", "reasoning_content", "reasoning"))
    content = next((text for text in fields if isinstance(text, str) and text.strip()), "")
    return Reply(
        text=THOUGHT.sub("", replace_surrogates(content), count=1).strip(), cut=choice.get("finish_reason") == "length"
    )


def same_model(requested: str, answered: object) -> bool:
    """Whether the model named in an answer, if any, is the requested one; `gpt-5-2026-01-30` is `gpt-5`."""
    dated = f"{re.escape(requested)}({DATED})?"
    return answered is None or (isinstance(answered, str) and re.fullmatch(dated, answered) is not None)


def _retry_after(response: Answer) -> float:
    """The Retry-After header in seconds; 0 if it is absent or a date."""
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if seconds.isdecimal() else 0.0


INITIAL_SLOTS = 16
MAX_FAILED_SHARE = 0.15
"""Above it the concurrency is halved: single failures happen, an overloaded server fails by the dozen."""
GROWTH = 1 / 8  # of the maximum, per step after the first halving


class AdaptiveConcurrency:
    """Slots for concurrent calls, at most `max_slots`. Whenever as many calls have ended as there are slots, their
    number is halved if more than `MAX_FAILED_SHARE` of the calls failed; otherwise it doubles until the first halving
    and then grows by a fixed step. Belongs to one event loop."""

    def __init__(self, max_slots: int) -> None:
        self.max_slots = max_slots
        self.slots = min(INITIAL_SLOTS, max_slots)
        self.taken = 0
        self._doubles = True
        self._ended = self._failed = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Waits for a slot, first come, first served, and holds it while the block runs."""
        await self._take()
        try:
            yield
        finally:
            self._leave()

    def record(self, succeeded: bool) -> None:
        """Counts the end of a call and adapts the number of slots."""
        self._ended += 1
        self._failed += not succeeded
        if self._ended < self.slots:
            return
        if self._failed > MAX_FAILED_SHARE * self._ended:
            self.slots, self._doubles = max(1, self.slots // 2), False
        else:
            step = self.slots if self._doubles else max(1, int(self.max_slots * GROWTH))
            self.slots = min(self.max_slots, self.slots + step)
        self._ended = self._failed = 0
        self._admit()

    async def _take(self) -> None:
        if self.taken < self.slots and not self._waiting:
            self.taken += 1
            return
        called = asyncio.get_running_loop().create_future()
        self._waiting.append(called)
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():  # admitted at the moment of the cancellation
                self._leave()
            raise

    def _leave(self) -> None:
        self.taken -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.taken < self.slots:
            called = self._waiting.popleft()
            if not called.done():
                self.taken += 1
                called.set_result(None)


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Counts `calls`. `budget` limits them; None is no limit. `count` counts a call within the budget where it outlives
    the process, and returns those of all processes before it."""

    budget: int | None = None
    calls: int = 0
    count: Callable[[], int] | None = None

    def spend(self) -> None:
        """Counts a call. Raises NoAnswerError if none is left."""
        made = self.calls if self.count is None else self.count()
        if self.budget is not None and made >= self.budget:
            raise NoAnswerError(f"the budget of {self.budget:,} calls is spent; raise `budget` for more")
        self.calls += 1
