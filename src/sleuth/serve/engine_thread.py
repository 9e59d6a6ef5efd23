"""A thread with its own event loop that runs conversations, environments and searches included, so that the server can
send events while the model computes; and long answers, which end when the client disconnects.

The engine batches all conversations in one forward.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from threading import Thread
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sleuth.serve.access import Limits
from sleuth.serve.refused import SOON, Refused
from sleuth.types import SleuthError

Event = TypeVar("Event")
Result = TypeVar("Result")


class Admission:
    """A first-come semaphore of `count` places in one event loop."""

    def __init__(self, count: int, limits: Limits) -> None:
        self.count = count
        self.active = 0
        self.waiting = 0
        self._limits = limits
        self._free = asyncio.Semaphore(count)

    async def acquire(self) -> None:
        """Waits for a place. Raises `Refused`: 429 if too many wait already, 503 if none was free in time."""
        if self._free.locked() and self.waiting >= self._limits.waiting:
            line = f"{self.count} conversations are running and {self.waiting} are waiting; retry later"
            raise Refused(429, line, headers=SOON)
        self.waiting += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                await self._free.acquire()
        except TimeoutError:
            line = f"no slot was free within {self._limits.seconds:g} seconds; retry later"
            raise Refused(503, line, headers=SOON) from None
        finally:
            self.waiting -= 1
        self.active += 1

    def release(self) -> None:
        """Frees a place."""
        self.active -= 1
        self._free.release()


class EngineThread:
    """Runs at most `conversations` concurrent conversations, from `start` to `stop`."""

    def __init__(self, conversations: int, limits: Limits) -> None:
        self.admission = Admission(conversations, limits)
        self._limits = limits
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="engine", daemon=True)

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Cancels all conversations and ends the thread."""

        async def end_all() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._loop.shutdown_asyncgens()  # closes connections to servers

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(end_all(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()

    async def run(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """Runs `events` in the engine's thread and yields its events here. Closing this cancels it there.

        Its place in `admission` is released when it has ended there, however slowly it is read here. Raises `Refused`
        as `Admission.acquire` and `events` do, with 503 if the engine failed, and with 504 on a timeout.
        """
        await self.admission.acquire()
        here = asyncio.get_running_loop()
        inbox: asyncio.Queue[Event | asyncio.Task[None]] = asyncio.Queue()
        tasks: list[asyncio.Task[None]] = []  # one, once started

        async def send_all() -> None:
            async with asyncio.timeout(self._limits.seconds), aclosing(events):
                async for event in events:
                    here.call_soon_threadsafe(inbox.put_nowait, event)

        def ended(task: asyncio.Task[None]) -> None:
            self.admission.release()
            inbox.put_nowait(task)

        def start() -> None:
            tasks.append(self._loop.create_task(send_all()))
            tasks[0].add_done_callback(lambda task: here.call_soon_threadsafe(ended, task))

        self._loop.call_soon_threadsafe(start)
        try:
            while not isinstance(event := await inbox.get(), asyncio.Task):
                yield event
            self._raise_for(event)
        finally:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())

    def _raise_for(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            raise Refused(503, "the server is stopping")
        error = task.exception()
        if isinstance(error, Refused):
            raise error
        if isinstance(error, TimeoutError):
            raise Refused(504, f"no end within {self._limits.seconds:g} seconds; ask for less")
        if error is not None:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            traced = None if isinstance(error, SleuthError) else error  # which says all in one line
            logging.getLogger("sleuth.serve").error("the engine failed: %s", reason, exc_info=traced)
            raise Refused(503, f"the engine failed: {reason}")


class ClientDisconnected(Exception):  # noqa: N818
    """The client has disconnected before its answer."""


class EventStream(StreamingResponse):
    """Server-sent events. `events` is closed at its end, when the client disconnects, or after `seconds`."""

    def __init__(self, events: AsyncGenerator[str, None], seconds: float) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # proxies must not cache or hold back
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events = events
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(TimeoutError):  # closing the connection ends the stream
            async with aclosing(self._events), asyncio.timeout(self._seconds):
                await super().__call__(scope, receive, send)


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`. If the client disconnects first, cancels it and raises `ClientDisconnected`."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnected
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    """Returns when the client has disconnected. Its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
