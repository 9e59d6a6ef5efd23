"""Steps of training played out in events, from measured or assumed parts: which of them makes the others wait, and how
many servers beside how many ranks are best. Time is that of an event loop whose clock jumps to the next event.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from sleuth.plan.parts import Parts, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Servers, each with so many turns under way at most, beside ranks; and what a step has, as a recipe says it."""

    servers: int
    ranks: int
    slots: int
    prompts: int
    samples: int
    lag: int

    @property
    def live(self) -> int:
        """Episodes that are under way at once, at most."""
        return self.prompts * self.samples * (1 if self.lag < 2 else self.lag + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Seconds of a step, and by part the share of the time in which it works: `servers` of the turns that they may have
    under way, `trainer`, `retriever`, `judges`, and `client`, the process that sends turns."""

    split: Split
    step: float
    busy: dict[str, float]

    @property
    def limit(self) -> str:
        """The part that works most, for which the others wait."""
        return max(self.busy, key=lambda part: self.busy[part])


def simulate(parts: Parts, split: Split, *, steps: int = 12, whole: bool = False) -> Simulated:
    """The mean of `steps` steps, after those in which the pipeline fills; or of a `whole` run of so many, in which
    steps ahead begin together, and the last ones have the servers to themselves."""
    clock = _Clock()
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = lambda: clock.now  # type: ignore[method-assign]
    try:
        return loop.run_until_complete(_Run(parts, split, loop).play(steps, whole=whole))
    finally:
        loop.close()


class _Clock(selectors.DefaultSelector):
    """Has an event loop, for which nothing comes from outside, jump to the next event in place of waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None  # else nothing would ever happen
        self.now += timeout
        return super().select(0)


class _Station:
    """Serves one after the other. `worked`: its seconds of work."""

    def __init__(self) -> None:
        self.worked, self._free = 0.0, asyncio.Lock()

    async def serve(self, seconds: float) -> None:
        if seconds:
            async with self._free:
                self.worked += seconds
                await asyncio.sleep(seconds)


class _Server:
    """Turns under way together get their tokens at one pace, which depends on their number. `worked`: the seconds of
    all turns. `version` counts the updates of its weights, each of which drops what it has cached."""

    def __init__(self, token: Callable[[int], float], slots: int, loop: asyncio.AbstractEventLoop) -> None:
        self.free, self.in_flight, self.worked, self.version = asyncio.Semaphore(slots), 0, 0.0, 0
        self.is_open = asyncio.Event()
        self.is_open.set()
        self._token, self._numbers, self._loop = token, itertools.count(), loop
        self._given = self._since = 0.0  # tokens of a turn that was always there, and when it had them
        self._ends: list[tuple[float, int, float, asyncio.Future[float]]] = []
        self._timer: asyncio.TimerHandle | None = None

    async def write(self, tokens: float, slow: float) -> float:
        """The tokens of a turn that are left when it ends, or when an update interrupts it."""
        ended: asyncio.Future[float] = self._loop.create_future()
        self._advance()
        heappush(self._ends, (self._given + slow * tokens, next(self._numbers), slow, ended))
        self._schedule()
        return await ended

    def interrupt(self) -> None:
        """Ends the turns under way, and lets none begin until it is open again."""
        self._advance()
        for end, _, slow, ended in self._ends:
            ended.set_result((end - self._given) / slow)
        self._ends.clear()
        self.is_open.clear()

    def _advance(self) -> None:
        seconds, self._since = self._loop.time() - self._since, self._loop.time()
        self.worked += seconds * len(self._ends)
        if self._ends:
            self._given += seconds / self._token(len(self._ends))
        while self._ends and self._ends[0][0] <= self._given + 1e-6:
            heappop(self._ends)[-1].set_result(0.0)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._ends:
            seconds = (self._ends[0][0] - self._given) * self._token(len(self._ends))
            self._timer = self._loop.call_later(seconds, self._end)

    def _end(self) -> None:
        self._advance()
        self._schedule()


class _Run:
    """The order of a run's steps, as `RolloutWorker` and `GRPOTrainer` have it. What a step has is taken from those
    that were measured in their order, so that few steps are as those were; what a turn has is drawn."""

    def __init__(self, parts: Parts, split: Split, loop: asyncio.AbstractEventLoop) -> None:
        self.parts, self.split, self.loop, self.draw = parts, split, loop, random.Random(0).choice
        self.servers = [_Server(parts.token, split.slots, loop) for _ in range(split.servers)]
        self.homes, self.numbers = dict[int, _Server](), itertools.count()  # of groups, until the next update
        self.stations = {part: _Station() for part in ("retriever", "judges", "client")}
        self.groups, self.slows = itertools.cycle(parts.groups), itertools.cycle(parts.slow)
        self.updates, self.publishes = itertools.cycle(parts.updates), itertools.cycle(parts.publishes)

    async def play(self, steps: int, *, whole: bool) -> Simulated:
        split, loop, ahead = self.split, self.loop, deque[asyncio.Task[None]]()
        filled = 0 if whole else split.lag + 1
        begun, trained, before, last = 0.0, 0.0, self._worked(), filled + steps - 1
        for step in range(filled + steps):
            self.slow = next(self.slows)
            if step == filled:
                begun, trained, before = loop.time(), 0.0, self._worked()

            def begin(until: int, first: int = step) -> None:
                for _ in range(first + len(ahead), (min(until, last) if whole else until) + 1):
                    ahead.append(loop.create_task(self._step()))

            begin(step + split.lag if split.lag > 1 else step)
            await ahead.popleft()
            begin(step + split.lag, step + 1)
            update, publish = next(self.updates) / split.ranks, next(self.publishes)
            await asyncio.sleep(update)
            if split.lag == 1 and ahead:
                await asyncio.wait(ahead)
            for server in self.servers:
                server.interrupt()
            await asyncio.sleep(publish)
            self.homes.clear()
            for server in self.servers:
                server.version += 1
                server.is_open.set()
            trained += update + publish
        seconds = loop.time() - begun
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)
        busy = {"servers": 0.0, "trainer": trained / seconds}
        busy |= {part: (worked - before[part]) / seconds for part, worked in self._worked().items()}
        busy["servers"] /= min(split.slots, -(-split.live // split.servers)) * split.servers
        return Simulated(split=split, step=seconds / steps, busy=busy)

    def _worked(self) -> dict[str, float]:
        stations = {part: station.worked for part, station in self.stations.items()}
        return {"servers": sum(server.worked for server in self.servers)} | stations

    async def _step(self) -> None:
        await asyncio.gather(*(self._group(next(self.groups)) for _ in range(self.split.prompts)))

    async def _group(self, episodes: Sequence[Sequence[Turn]]) -> None:
        played, group = itertools.islice(itertools.cycle(episodes), self.split.samples), next(self.numbers)
        await asyncio.gather(*(self._episode(group, turns) for turns in played))
        judge, questions = self.stations["judges"], range(self.parts.questions)
        await asyncio.gather(*(judge.serve(self.draw(self.parts.judges)) for _ in questions))

    async def _episode(self, group: int, turns: Sequence[Turn]) -> None:
        context, cached = 0.0, None  # tokens, and the server and version whose cache has them
        for read, sampled, searches in turns:
            left, context = float(sampled), context + read
            while left > 0:
                server = self.homes.setdefault(group, min(self.servers, key=lambda one: one.in_flight))
                server.in_flight += 1
                slow = self.draw(self.slow)
                await self.stations["client"].serve(self.draw(self.parts.client))
                async with server.free:
                    await server.is_open.wait()
                    begins = read if cached == (server, server.version) else context
                    cached = server, server.version
                    await asyncio.sleep(slow * begins * self.parts.prefill)
                    before, left = left, await server.write(left, slow)
                server.in_flight -= 1
                context += before - left
            if searches:
                await self.stations["retriever"].serve(self.draw(self.parts.searches))


def best_split(parts: Parts, cards: int, split: Split, *, least_ranks: int = 1) -> Simulated:
    """The fastest split of so many cards, each with a server or with a rank, of which the learner needs `least_ranks`,
    of eighths of them. A single card has both, in turns."""
    if cards == 1:
        return simulate(parts, replace(split, servers=1, ranks=1, lag=0))
    counts = sorted({min(max(1, cards * eighths // 8), cards - least_ranks) for eighths in range(1, 8)})
    splits = (replace(split, servers=servers, ranks=cards - servers) for servers in counts)
    return min((simulate(parts, one, steps=2) for one in splits), key=lambda found: found.step)
