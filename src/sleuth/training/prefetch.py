"""Episodes that are played while the learner computes: one step ahead, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import Any, Generic, TypeVar

from sleuth.types import Group, SleuthError

Result = TypeVar("Result")


class Prefetcher(Generic[Result]):
    """What `work` comes to, begun now. `result` waits for it; `cancel` ends it."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[Result] | None = None
        self._cancelled = False
        self._done: Future[Result] = Future()
        self._thread = Thread(target=self._run, args=(work,), name="ahead", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it is done, well or not: then nothing of it is under way any more."""
        self._thread.join()

    def result(self) -> Result:
        """What it came to; raises what it raised."""
        self.wait()
        return self._done.result()

    def cancel(self) -> None:
        """End it, and wait for its end."""
        self._cancelled = True
        with suppress(RuntimeError):  # its loop is closed: it has ended
            self._loop.call_soon_threadsafe(lambda: self._task.cancel() if self._task is not None else None)
        self.wait()

    def _run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> None:
        async def main() -> Result:
            self._task = asyncio.current_task()
            if self._cancelled:
                raise asyncio.CancelledError
            return await work()

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                self._done.set_result(runner.run(main()))
            except BaseException as error:  # it is raised where the result is asked for
                self._done.set_exception(error)


def off_policy_fraction(groups: Sequence[Group], newest: int, *, max_policy_lag: int) -> float | None:
    """The share of sampled tokens that older weights than version `newest` wrote; None where no version is told. Raises
    SleuthError where they are older than by `max_policy_lag` versions."""
    counts = {
        version: count
        for version, count in _tokens_by_version(groups).items()
        if version is not None  # nobody sampled
    }
    if not counts:
        return None
    if min(counts) < newest - max_policy_lag:
        raise SleuthError(
            f"an episode was written with the weights of version {min(counts)}, and the learner is at {newest}: more "
            f"than engine.max_policy_lag = {max_policy_lag} allows"
        )
    return sum(count for version, count in counts.items() if version < newest) / sum(counts.values())


def _tokens_by_version(groups: Sequence[Group]) -> dict[int | None, int]:
    counts: dict[int | None, int] = {}
    for group in groups:
        for episode in group.episodes:
            for trajectory in episode.trajectories:
                for segment in trajectory.segments:
                    if segment.author == "policy":
                        before = counts.get(segment.policy_version, 0)
                        counts[segment.policy_version] = before + len(segment.tokens)
    return counts
