"""Where conversations are played: a thread with an event loop of its own, so that answers flow while the model
computes.

All of a conversation happens there, environment and searches too, as in training: what it says crosses to the server's
loop once. The engine gathers the tokens of all conversations in one forward.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from threading import Thread
from typing import TypeVar

from sleuth.serve.http.limits import Admission, Limits
from sleuth.serve.http.refused import Refused

Event = TypeVar("Event")


class EngineThread:
    """Plays at most as many conversations at once as `conversations` says. Open from `start` to `stop`."""

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
        """End all conversations, and the thread."""

        async def end_all() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(end_all(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()

    async def hear(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """What `events` yields in the engine's thread, here. Closing this ends the conversation there, and its slot is
        free. Its seat is given back when it has ended there, however slowly it is read here.

        Raises `Refused`: as `Admission.take` and `events` do, 503 where the engine failed, 504 where it took too long.
        """
        await self.admission.take()
        here = asyncio.get_running_loop()
        inbox: asyncio.Queue[Event | asyncio.Task[None]] = asyncio.Queue()
        tasks: list[asyncio.Task[None]] = []  # one, once it has begun

        async def tell() -> None:
            async with asyncio.timeout(self._limits.seconds), aclosing(events):
                async for event in events:
                    here.call_soon_threadsafe(inbox.put_nowait, event)

        def ended(task: asyncio.Task[None]) -> None:
            self.admission.give_back()
            inbox.put_nowait(task)

        def begin() -> None:
            tasks.append(self._loop.create_task(tell()))
            tasks[0].add_done_callback(lambda task: here.call_soon_threadsafe(ended, task))

        self._loop.call_soon_threadsafe(begin)
        try:
            while not isinstance(event := await inbox.get(), asyncio.Task):
                yield event
            self._tell_problem(event)
        finally:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())

    def _tell_problem(self, ended: asyncio.Task[None]) -> None:
        if ended.cancelled():
            raise Refused(503, "the server is stopping")
        error = ended.exception()
        if isinstance(error, Refused):
            raise error
        if isinstance(error, TimeoutError):
            raise Refused(504, f"no end within {self._limits.seconds:g} seconds; ask for less")
        if error is not None:
            logging.getLogger("sleuth.serve").error("the engine failed", exc_info=error)
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise Refused(503, f"the engine failed: {reason}")
