"""Servers that speak OpenAI's chat completions and serve one and the same model: one question put to them, retries and
all."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from sleuth.judges.forms import sound
from sleuth.retrieval.connections import Connections
from sleuth.retrieval.replicas import Replica, Replicas, RetryBudget
from sleuth.types import Verdict

ATTEMPTS = 4
FAILURES_TO_REST = 10
"""In a row. Many are under way at once, so that three failures in a row say little here."""
BUSY, TOO_SLOW = 429, 408
THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
DATED = r"-\d{4}(-?\d{2}-?\d{2})?"
"""What a provider may put behind the name of a model that it was asked for: the day of its release."""


class NoAnswerError(Exception):
    """The judge could not be asked, or did not answer; the message says why."""


class RefusedError(NoAnswerError):
    """The request itself is wrong in the eyes of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a judge wrote. `cut`: its tokens were spent before it came to an end."""

    text: str
    cut: bool


class Pool:
    """Asks for one completion at a time of each caller, of a replica that answers.

    An attempt that fails (no connection, no answer within `timeout` seconds, status 429 or 5xx, an answer of another
    shape or by another model) is made again, if possible at another replica, `ATTEMPTS` times in all and within a
    budget of retries; a replica that fails again and again is left alone for a while. Once no replica has answered for
    as long as all attempts of a question may take, those that follow fail at once, but for single trials.
    """

    def __init__(self, urls: Sequence[str], *, timeout: float, at_once: int, ledger: Ledger, key: str | None) -> None:
        self.down_timeout = timeout * ATTEMPTS
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
        """Wait for one of the seats that the servers can bear; the time on the monotonic clock by which what is asked
        from it should be answered."""
        self._connect()
        async with self._pace.slot():
            yield time.monotonic() + self.down_timeout

    async def ask(self, body: Mapping[str, Any], deadline: float) -> Reply:
        """One completion. Raises NoAnswerError where there is none by the deadline."""
        tried: list[Replica] = []
        reason = "every replica is resting after failures"
        self._retries.record_request()
        while len(tried) < ATTEMPTS and (replica := await self._next(tried, deadline)) is not None:
            if tried and not self._retries.spend():
                reason += "; too many calls fail for another attempt"
                break
            tried.append(replica)
            try:
                self._ledger.spend()
                return await self._attempt(replica, body, deadline)
            except BudgetSpentError as error:
                raise NoAnswerError(str(error)) from None
            except _AttemptError as error:
                reason = f"{replica.url}: {error}"
                await asyncio.sleep(min(error.pause, max(0.0, deadline - time.monotonic())))
        raise NoAnswerError(f"no answer after {len(tried)} attempts: {reason}")

    async def _attempt(self, replica: Replica, body: Mapping[str, Any], deadline: float) -> Reply:
        """One call, its outcome told to all who mind the replica."""
        replica.in_flight += 1
        try:
            reply = await self._post(replica, body, deadline)
        except RefusedError:
            self._answered(replica)
            raise
        except _AttemptError:
            self._ledger.failed += 1
            self._replicas.failed(replica)
            self._down_since = min(self._down_since, time.monotonic())
            self._pace.ended(well=False)
            raise
        finally:
            replica.in_flight -= 1
        self._answered(replica)
        return reply

    def _answered(self, replica: Replica) -> None:
        self._replicas.succeeded(replica)
        self._down_since = math.inf
        self._pace.ended(well=True)

    async def _next(self, tried: Sequence[Replica], deadline: float) -> Replica | None:
        """A replica to ask, waited for if all of them rest; None when the time is over."""
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
                response = await self._client.post(f"{replica.url}/chat/completions", json=body, headers=self._headers)
        except (httpx.HTTPError, TimeoutError) as error:
            raise _AttemptError(str(error) or f"no answer within {seconds:.3g} seconds") from None
        status = response.status_code
        if 400 <= status < 500 and status not in (BUSY, TOO_SLOW):
            raise RefusedError(f"{replica.url}: refused with {status}: {_detail(response)}")
        if status != httpx.codes.OK:
            raise _AttemptError(f"status {status}: {_detail(response)}", _asked_to_wait(response))
        try:
            answer = response.json()
            [choice, *_] = answer["choices"]
            written = reply_of(choice)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _AttemptError(f"an answer of another shape ({type(error).__name__}: {error})") from None
        if not same_model(body["model"], told := answer.get("model")):
            raise _AttemptError(f"answered by {told}, not by {body['model']}")
        return written

    def _connect(self) -> None:
        """Connections cannot outlive the event loop that they were made in."""
        if self._loop is not asyncio.get_running_loop():
            self._loop = asyncio.get_running_loop()
            self._client = httpx.AsyncClient(
                transport=Connections(), timeout=None, trust_env=False
            )  # `_post` keeps the time
            self._pace = Pace(self._at_once)
            for replica in self._replicas.members:
                replica.in_flight = 0


class _AttemptError(Exception):
    """This call was not answered; another may be, after a pause of some seconds."""

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


def base_url(url: str) -> str:
    """`http://host:8000/v1` of an address that may name no version, or the endpoint too."""
    url = url.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    return url if re.search(r"/v\d+$", url) else f"{url}/v1"


def reply_of(choice: Mapping[str, Any]) -> Reply:
    """What stands in the message, behind a thought that the server left in it. Where it holds nothing, what the server
    took for reasoning: a parser of thoughts may have put the whole answer there."""
    message = choice["message"]
    fields = (message.get(field) for field in ("content", "reasoning_content", "reasoning"))
    written = next((text for text in fields if isinstance(text, str) and text.strip()), "")
    return Reply(text=THOUGHT.sub("", sound(written), count=1).strip(), cut=choice.get("finish_reason") == "length")


def same_model(asked: str, told: object) -> bool:
    """Whether an answer is by the model that was asked, as far as it tells; `gpt-5-2026-01-30` is `gpt-5`."""
    return told is None or (isinstance(told, str) and re.fullmatch(f"{re.escape(asked)}({DATED})?", told) is not None)


def _asked_to_wait(response: httpx.Response) -> float:
    """Seconds; a server that names a day instead is not waited for."""
    told = response.headers.get("retry-after", "")
    return float(told) if told.isdecimal() else 0.0


def _detail(response: httpx.Response) -> str:
    return " ".join(response.text.split())[:200]


FIRST = 16
TOLERATED = 0.15
"""The share of failures that a pace is kept at: single ones happen, a server that is overrun fails by the dozen."""
GROWTH = 1 / 8  # of the greatest pace, after the first retreat


class Pace:
    """Seats for what is under way, at most `most`. Each time as many calls have ended as there are seats, their number
    is halved if more than `TOLERATED` of them failed, else it grows: doubled until the first retreat, then by a fixed
    step. Belongs to one event loop."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.slots = min(FIRST, most)
        self.taken = 0
        self._doubles = True
        self._ended = self._failed = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a seat, first come, first served, and keep it while the block runs."""
        await self._take()
        try:
            yield
        finally:
            self._leave()

    def ended(self, well: bool) -> None:
        """A call has ended."""
        self._ended += 1
        self._failed += not well
        if self._ended < self.slots:
            return
        if self._failed > TOLERATED * self._ended:
            self.slots, self._doubles = max(1, self.slots // 2), False
        else:
            step = self.slots if self._doubles else max(1, int(self.most * GROWTH))
            self.slots = min(self.most, self.slots + step)
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
            if called.done() and not called.cancelled():  # was called at the very moment of giving up
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


class BudgetSpentError(Exception):
    """No further call may be made."""


@dataclass(slots=True, kw_only=True)
class Ledger:
    """`calls` were made, `failed` of them without an answer, `asked_again` because the answer was no verdict. Every
    question ends as one of `scored`, `missing` and `invalid`. At most `budget` calls are made; None is no limit."""

    budget: int | None = None
    calls: int = 0
    failed: int = 0
    asked_again: int = 0
    scored: int = 0
    missing: int = 0
    invalid: int = 0

    def spend(self) -> None:
        """One more call. Raises BudgetSpentError where none is left."""
        if self.budget is not None and self.calls >= self.budget:
            raise BudgetSpentError(f"the budget of {self.budget:,} judge calls is spent")
        self.calls += 1

    def enter(self, verdict: Verdict) -> Verdict:
        """Count how a question ended."""
        if verdict.score is not None:
            self.scored += 1
        elif verdict.invalid:
            self.invalid += 1
        else:
            self.missing += 1
        return verdict
