"""A thread with its own event loop that runs conversations, environments and searches included, so that the server can
send events while the model computes. The engine batches all conversations in one forward."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from threading import Thread
from typing import TypeVar

from sleuth.serve.http.limits import Admission, Limits
from sleuth.serve.http.refused import Refused
from sleuth.types import SleuthError

Event = TypeVar("Event")


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
