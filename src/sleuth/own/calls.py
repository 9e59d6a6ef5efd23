"""Calls of a user's functions within a time limit, whether they are asynchronous or not."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from numbers import Real
from threading import Lock, Thread
from typing import Any, cast
from weakref import WeakKeyDictionary

from sleuth.own.commands import AgentCommand
from sleuth.own.functions import UserCodeError, UserFunction
from sleuth.own.permission import prints_to_stderr

THREADS = 64
"""Limit on the calls that run at the same time where each has an object of its own, as in environments."""
UNRESPONSIVE = 1.0
"""Seconds in which the loop of asynchronous calls must react; else one of them blocks it, and a new loop is used."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a call returned, or raised."""

    value: Any = None
    error: BaseException | None = None


class Caller:
    """Calls a user's function, `at_once` calls at a time unless it is asynchronous.

    A call runs in a thread of its own; asynchronous ones share a thread with an event loop that lives as long as the
    process, so that clients of web services stay open between steps. A call that takes longer than `seconds` is
    abandoned: nothing waits for it, and it does not keep the process alive. The in-process engine waits for a call that
    `delays_engine` (see `calls_returned`). More than one `at_once` is for calls that share no object of the user's.
    """

    def __init__(
        self, function: UserFunction | AgentCommand, *, seconds: float, delays_engine: bool = False, at_once: int = 1
    ) -> None:
        self.function = cast("UserFunction", function)  # a command has what a caller needs of one: call, error, raised
        self.seconds = seconds
        self.delays_engine = delays_engine
        self._threads = _Threads(at_once)

    async def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """What the function returns. Raises UserCodeError with file and line if it raises or takes too long."""
        return await self.run(self.function.call, *arguments, **keywords)

    async def run(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """The same for another callable of the user's, such as a method of an object that the function made."""
        run = self._run_in_loop if _is_asynchronous(call) else self._run_in_thread
        with delaying_engine() if self.delays_engine else nullcontext():
            outcome = await run(call, arguments, keywords)
        if isinstance(outcome.error, UserCodeError):
            raise outcome.error
        if outcome.error is not None:
            raise self.function.raised(outcome.error) from outcome.error
        return outcome.value

    async def _run_in_thread(self, call: Callable[..., Any], arguments: Any, keywords: Any) -> _Outcome:
        started, done = Future[None](), Future[_Outcome]()
        held = [self._threads]

        def release() -> None:
            with suppress(IndexError):  # released before, by this thread or by the one that waits
                held.pop().release()

        def run() -> None:
            try:
                with suppress(InvalidStateError):  # the caller has gone
                    started.set_result(None)
                    done.set_result(_outcome(call, arguments, keywords))
            finally:
                release()

        self._threads.start(Thread(target=run, name=f"user code: {self.function.name}", daemon=True))
        await asyncio.wrap_future(started)
        try:
            return await self._wait(done)
        finally:
            release()

    async def _run_in_loop(self, call: Callable[..., Any], arguments: Any, keywords: Any) -> _Outcome:
        loop = _user_loop()
        done = asyncio.run_coroutine_threadsafe(_awaited(call, arguments, keywords), loop)
        try:
            return await self._wait(done)
        except (UserCodeError, asyncio.CancelledError):  # cancelled: by who waits no longer, as for an agent
            await _leave_if_blocked(loop)
            raise

    async def _wait(self, done: Future[_Outcome]) -> _Outcome:
        future = asyncio.wrap_future(done)
        try:
            await asyncio.wait([future], timeout=self.seconds)
            if future.done() and not future.cancelled():
                return future.result()
            cancelled = future.cancelled()
        finally:
            future.cancel()
        raise self.function.error(
            "cancelled itself" if cancelled else f"did not return within {self.seconds:g} seconds"
        )


class _Threads:
    """Starts threads in the order in which they come, `limit` of them before one is released."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting = deque[Thread]()
        self._lock = Lock()

    def start(self, thread: Thread) -> None:
        """Starts the thread, at once or when another is released."""
        with self._lock:
            if not self._free:
                self._waiting.append(thread)
                return
            self._free -= 1
        thread.start()

    def release(self) -> None:
        """Counts a thread as ended, whether its call has returned or was abandoned."""
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            thread = self._waiting.popleft()
        thread.start()


def _outcome(call: Callable[..., Any], arguments: Any, keywords: Any) -> _Outcome:
    try:
        with prints_to_stderr():
            return _Outcome(value=call(*arguments, **keywords))
    except BaseException as error:  # even SystemExit: it must not end the process
        return _Outcome(error=error)


async def _awaited(call: Callable[..., Any], arguments: Any, keywords: Any) -> _Outcome:
    try:
        with prints_to_stderr():
            return _Outcome(value=await call(*arguments, **keywords))
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # as above; it would end the loop
        return _Outcome(error=error)


def _is_asynchronous(call: Callable[..., Any]) -> bool:
    if isinstance(call, type):  # making an object is not asynchronous, even if calling the object is
        return False
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004


_IN_FLIGHT: WeakKeyDictionary[asyncio.AbstractEventLoop, set[asyncio.Future[None]]] = WeakKeyDictionary()
"""The calls that delay the engine, by the loop that waits for them."""


@contextmanager
def delaying_engine() -> Iterator[None]:
    """Until this ends, the in-process engine of the event loop waits (see `calls_returned`)."""
    loop = asyncio.get_running_loop()
    calls, call = _IN_FLIGHT.setdefault(loop, set()), loop.create_future()
    calls.add(call)
    try:
        yield
    finally:
        calls.discard(call)
        call.set_result(None)


async def calls_returned() -> bool:
    """Returns when no call that delays the engine is in flight in this event loop; whether there was one.

    An engine that goes on meanwhile would compute other batches in each run, with other last bits."""
    calls = _IN_FLIGHT.get(asyncio.get_running_loop())
    if not calls:
        return False
    while calls:
        await asyncio.wait(calls)
    return True


_LOOPS: list[asyncio.AbstractEventLoop] = []
"""The loop of asynchronous calls is the last one; a blocked one is never used again."""


def _user_loop() -> asyncio.AbstractEventLoop:
    if not _LOOPS:
        _LOOPS.append(background_loop("user code"))
    return _LOOPS[-1]


def background_loop(name: str) -> asyncio.AbstractEventLoop:
    """An event loop that runs in a thread of its own, called `name`, until the process ends."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name=name, daemon=True).start()
    return loop


async def _leave_if_blocked(loop: asyncio.AbstractEventLoop) -> None:
    """Makes the next call start a new loop if a call blocks this one."""
    answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop))
    await asyncio.wait([answer], timeout=UNRESPONSIVE)
    if not answer.done() and loop in _LOOPS:
        _LOOPS.remove(loop)
    answer.cancel()


# -- what they return --------------------------------------------------------------------------------------------------


def finite_number(value: Any) -> float | None:
    """A finite number as a float; None for anything else."""
    value = plain(value)
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:  # an integer that no float holds
        return None
    return number if math.isfinite(number) else None


def plain(value: Any) -> Any:
    """Arrays and tensors as lists or numbers; other values as they are."""
    return value.tolist() if hasattr(value, "tolist") else value


def shown_value(value: Any) -> str:
    """A value as messages repeat it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
