"""An engine on a pool of servers, for training: load balancing, group affinity, retries and weight updates."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.remote.completions import ABORTED, Aborted, RawCompletion, read_completion
from sleuth.engines.remote.http_client import HttpClientError, RefusedError, UnavailableError
from sleuth.engines.remote.published import Published
from sleuth.engines.remote.roster import Roster
from sleuth.engines.remote.server import DiscoveredServer, wake
from sleuth.engines.remote.weight_sync import EngineReplica, Ways, WeightSync
from sleuth.engines.remote.weight_transfer import Transfer
from sleuth.engines.sampling import max_new_tokens, whole_chunk
from sleuth.host.connections import Replica, Replicas
from sleuth.learn.adapters import has_adapters
from sleuth.learn.master_weights import WeightSource
from sleuth.ranks import ALONE, Ranks
from sleuth.types import Chunk, Completion, Sampling, SleuthError

ATTEMPTS = 8
"""Per turn, not counting refused requests: a turn that fails this often is assumed to cause the failure."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds before a turn that was refused twice is retried; doubled each time."""

SILENT_SECONDS = 4.0
"""Without an answer of any server, before the pool says so."""
SAID_SECONDS = 60.0
"""Between two such lines; and without the end of any request, before the pool says so although servers answer."""
PING_AFTER, WATCH_SECONDS = 2.0, 1.0
"""Seconds without an answer after which servers are pinged, as turns may be long, and between two looks."""

TURNS = 64
"""Of a step, about so many are recorded with their times."""

Result = TypeVar("Result")
Group = tuple[int, ...]
"""The key of a group: a request's key without sample and turn."""
Outcome = tuple[str | None, str, bool, bool, str]
"""Of an update of a server: the reason if it does not answer, else None; its label; whether its last load completed;
whether it is asleep; and its adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Concurrency and timeouts of a pool; see `PoolRecipe`."""

    requests_at_once: int
    seconds: float
    unavailable_timeout: float
    sleeps: bool
    max_policy_lag: int = 0

    @property
    def interrupts(self) -> bool:
        """Whether turns go on across an update of the weights."""
        return self.max_policy_lag > 1


class PoolEngine:
    """Continues token sequences on the `servers` of a pool, with the weights of `model`.

    Call `publish` before the first request; it wakes servers that are `asleep`. The siblings of a group go to one
    server, to reuse their prompt; a new group goes to the server with the fewest requests in flight. A turn that a
    server did not finish is sampled again on another one with the same seed and prefix, so no turn is lost or counted
    twice. A server that comes back gets the weights before it generates; a completion by other weights ends the run.

    With a `max_policy_lag` of 2 and more, `publish` may be called while turns are under way in another thread's event
    loop. Servers return what they have of them, load the weights, and continue with it as a part of the prompt, so that
    one version samples each token, and the cache of the old weights is not used by the new ones.

    Each of several `ranks` generates its own episodes, with its share of the requests at once. They call `publish`,
    `sleep` and `figures` at the same time; the first rank writes the weights and has the servers load them.

    With a `roster`, which the first rank has, servers join and leave meanwhile. A server joins when it has loaded the
    weights and was compared with the learner: while the learner rests, between `publish` and `sleep`, or in `publish`;
    of several ranks always there. One that leaves ends the turns that it has begun; if updates interrupt turns, others
    go on with what it has of them.
    """

    def __init__(
        self,
        servers: Sequence[DiscoveredServer],
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        eos_ids: Collection[int],
        context: int,
        temperature: float,
        limits: PoolLimits,
        shared: Path,
        log: Callable[[str], None],
        asleep: bool = False,
        ranks: Ranks = ALONE,
        roster: Roster | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.eos_ids = eos_ids
        self.context = context
        self.limits = limits
        self.policy_version = 0
        self._ranks = ranks
        self._log = log
        self._lines: list[str] = []  # of this rank, if it is not the first, which prints them
        self._weight_sync = WeightSync(
            model,
            tokenizer,
            shared,
            eos_ids=eos_ids,
            temperature=temperature,
            log=log if ranks.first else self._lines.append,
            ranks=ranks,
            transfer=transfer_to(servers, model, limits),
        )
        self._health = Replicas(())
        self._set_members([EngineReplica(server, Replica(server.url)) for server in servers])
        for replica in self._replicas:
            replica.asleep = asleep
        self._roster = roster
        self._joining: list[DiscoveredServer] = []  # without the weights yet
        self._resting = False  # the learner, whose weights are those that were published
        self._learner = threading.Lock()  # held while a server is compared with it
        self._group_replicas: dict[Group, EngineReplica] = {}
        self._retried = 0
        self._resumed = 0
        self._seconds = 0.0  # spent on publishing
        self._turns: list[tuple[float, int, float]] = []  # seconds, tokens, turns under way at the server
        self._last_success = time.monotonic()
        self._last_failure = ""  # the reason
        self._loops: list[asyncio.AbstractEventLoop] = []  # that may be running; the clients are those of the last
        self._pending = 0  # turns and weight updates that wait for servers
        self._last_end = 0.0  # of one of them

    # -- generation --------------------------------------------------------------------------------------------------

    async def stream(self, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        """Continue `tokens`, in one chunk."""
        yield whole_chunk(await self.complete(tokens, sampling))

    async def complete(self, tokens: Sequence[int], sampling: Sampling) -> Completion:
        """Continue `tokens` until a stop. Raises SleuthError if no server does so in time."""
        limit = max_new_tokens(tokens, sampling, self.context)
        if limit < 1:
            return Completion(tokens=(), logprobs=(), text="", stop="length", policy_version=self.policy_version)
        self._connect()
        with self._waiting():
            raw, version, updates = await self._generate_whole(tokens, sampling, limit)
        try:
            whole = read_completion(raw, tokens, sampling, limit=limit, tokenizer=self.tokenizer, eos_ids=self.eos_ids)
        except ValueError as error:
            raise SleuthError(f"engine: a server {error}") from None
        updates = tuple((at, later) for at, later in updates if at < len(whole.tokens))
        return replace(whole, policy_version=version, updates=updates)

    async def _generate_whole(
        self, tokens: Sequence[int], sampling: Sampling, limit: int
    ) -> tuple[RawCompletion, int, list[tuple[int, int]]]:
        """A turn, continued after each update that interrupts it; the version of its first token, and its updates."""
        group, key = sampling.key[:-2], sampling.key
        raw, version = await self._generate(tokens, sampling, limit, group)
        updates: list[tuple[int, int]] = []
        fruitless = 0
        while raw.finish_reason == ABORTED and len(raw.tokens) < limit:
            count = len(raw.tokens)
            more = replace(sampling, key=(*key, count) if count else key)  # else the first draws would be repeated
            part, newer = await self._generate([*tokens, *raw.tokens], more, limit - count, group)
            if not count:
                version = newer
            elif part.tokens and newer != (updates[-1][1] if updates else version):
                updates.append((count, newer))
            raw = joined(raw, part)
            self._resumed += 1
            fruitless = 0 if part.tokens else fruitless + 1
            if fruitless == ATTEMPTS:
                raise SleuthError(
                    f"{ATTEMPTS} updates of the weights interrupted a turn, and no server returned what it had of it: "
                    "set engine.max_policy_lag = 1, with which updates wait for turns"
                )
        return raw, version, updates

    async def _generate(
        self, tokens: Sequence[int], sampling: Sampling, limit: int, group: Group
    ) -> tuple[RawCompletion, int]:
        """A turn, or the part of it before an update, and the version of its weights."""
        failed, started = None, time.monotonic()
        failures = refusals = 0
        while True:
            # None after one refusal, as another server may have room.
            await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (refusals - 2)) if refusals > 1 else 0.0)
            replica = await self._choose_replica(group, failed, started)
            replica.health.in_flight += 1
            try:
                raw, version = await self._send(replica, tokens, sampling, limit)
            except RefusedError as error:
                raise SleuthError(f"{replica.url}: {error}") from None
            except (HttpClientError, Aborted) as error:
                self._record_failure(replica, group, error)
                failed = replica
                refusals += isinstance(error, UnavailableError)
                failures += not isinstance(error, UnavailableError)
                if failures >= ATTEMPTS:
                    raise SleuthError(f"{self._last_failure}; {failures} attempts at this turn failed") from None
            else:
                self._health.succeeded(replica.health)
                self._last_success = time.monotonic()
                return raw, version
            finally:
                replica.health.in_flight -= 1

    async def _send(
        self, replica: EngineReplica, tokens: Sequence[int], sampling: Sampling, limit: int
    ) -> tuple[RawCompletion, int]:
        """One attempt at a turn, and its version. Raises WeightsDifferError if it was generated with other weights than
        the run's."""
        async with replica.semaphore:
            await self._weight_sync.ensure_current_weights(replica)
            while not replica.is_open.is_set():  # it is being updated
                await replica.is_open.wait()
                await self._weight_sync.ensure_current_weights(replica)
            if replica not in self._replicas:
                raise UnavailableError("has left the pool")
            expected = self._weight_sync.published
            began, beside = time.monotonic(), replica.turns
            raw, label = await replica.write(tokens, sampling, limit=limit, eos_ids=self.eos_ids)
            beside = 1 + (beside + replica.turns) / 2
            self._turns.append((round(time.monotonic() - began, 4), len(raw.tokens), beside))
        self._weight_sync.require_weights(replica, label, expected)
        return raw, expected.version

    def _record_failure(self, replica: EngineReplica, group: Group, error: Exception) -> None:
        """Notes that `replica` failed a turn, and frees the group to move to another server."""
        replica.may_have_restarted = True
        self._health.failed(replica.health)
        self._last_failure = f"{replica.url}: {error}"
        self._retried += not isinstance(error, UnavailableError)
        self._group_replicas.pop(group, None)

    async def _choose_replica(self, group: Group, failed: EngineReplica | None, started: float) -> EngineReplica:
        """The group's server if available, else the available one with the fewest requests in flight. Waits while none
        is; raises SleuthError if none has answered for `limits.unavailable_timeout` seconds since `started`."""
        while True:
            current = self._group_replicas.get(group)
            if current is not None and current is not failed and self._health.is_available(current.health):
                return current
            available = [replica for replica in self._preferred if self._health.is_available(replica.health)]
            if available:
                others = [replica for replica in available if replica is not failed] or available
                self._group_replicas[group] = min(others, key=lambda replica: replica.health.in_flight)
                return self._group_replicas[group]
            if time.monotonic() > max(started, self._last_success) + self.limits.unavailable_timeout:
                urls = ", ".join(replica.url for replica in self._replicas)
                raise SleuthError(
                    f"no server of the pool answered for {self.limits.unavailable_timeout:g} seconds "
                    f"({self._last_failure}): check {urls} and run the same command again to resume from the last "
                    "checkpoint"
                )
            await asyncio.sleep(min(self._health.seconds_until_next(), LONGEST_PAUSE))

    # -- servers that join and leave ---------------------------------------------------------------------------------

    def _set_members(self, replicas: Sequence[EngineReplica]) -> None:
        self._replicas = list(replicas)
        self._health.members = [replica.health for replica in replicas]
        first = self._ranks.share(len(replicas)).start  # of equally busy servers, each rank prefers another
        self._preferred = self._replicas[first:] + self._replicas[:first]

    async def _follow(self, roster: Roster) -> None:
        """Has servers leave and join as the roster changes. The last one stays until another one has joined."""
        while self._following is asyncio.current_task():
            left, found = roster.changes([member.url for member in (*self._replicas, *self._joining)])
            self._joining = [server for server in (*self._joining, *found) if server.url not in left]
            leaving = [replica for replica in self._replicas if replica.url in left]
            for replica in leaving if len(leaving) < len(self._replicas) else ():
                await self._leave(replica)
            if self._joining and self._ranks.alone and self._learner.acquire(blocking=False):
                try:
                    for server in list(self._joining) if self._resting else ():
                        replica = EngineReplica(server, Replica(server.url))
                        self._connect(replica)
                        self._admit(replica, await self._offer(replica), roster)
                finally:
                    self._learner.release()
            await asyncio.sleep(WATCH_SECONDS)

    async def _offer(self, replica: EngineReplica) -> str | None:
        """Loads the weights on a server; returns why it does not have them, else None. Raises SleuthError if a member
        of the pool cannot load them: one that joins, or has left meanwhile, ends no run."""
        try:
            return await self._weight_sync.update(replica)
        except SleuthError as error:
            if replica in self._replicas:
                raise
            return str(error)

    def _admit(self, replica: EngineReplica, failure: str | None, roster: Roster) -> None:
        """A server that joins becomes a member unless it failed to load the weights, or has left meanwhile."""
        joins = replica.server in self._joining
        self._joining = [server for server in self._joining if server is not replica.server]
        if failure is not None:
            roster.refuse(replica.url, failure)
        elif joins:
            self._set_members([*self._replicas, replica])
            self._log(f"pool: {replica.url} has joined; servers: {len(self._replicas)}")

    async def _leave(self, replica: EngineReplica) -> None:
        self._set_members([other for other in self._replicas if other is not replica])
        self._group_replicas = {group: one for group, one in self._group_replicas.items() if one is not replica}
        self._log(f"pool: {replica.url} has left; servers: {len(self._replicas)}")
        if self.limits.interrupts:
            await replica.hold()
            await replica.interrupt()
            await replica.reopen()
            await wake(replica.url)  # others may use it

    # -- silence -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Counts what waits for the servers."""
        self._pending += 1
        try:
            yield
        finally:
            self._pending -= 1
            self._last_end = time.monotonic()

    async def _watch(self) -> None:
        """Logs, while something waits, that no server answers, or that servers answer and end no request; then once a
        minute."""
        idle, printed, printed_at = time.monotonic(), "", 0.0
        while self._watching is asyncio.current_task():  # until another loop has clients, and watches
            await asyncio.sleep(WATCH_SECONDS)
            if not self._pending:
                idle, printed = time.monotonic(), ""
                continue
            reasons: list[str] = []
            if time.monotonic() - max(idle, self._last_answer) >= PING_AFTER:
                failures = await asyncio.gather(*(replica.ping() for replica in self._replicas))
                reasons = [failure for failure in failures if failure is not None]
            now = time.monotonic()
            silent, waiting = now - max(idle, self._last_answer), now - max(idle, self._last_end)
            if printed == "silent" and silent < PING_AFTER:
                idle, printed = now, ""
                self._log("pool: a server answers again")
                continue
            state = "silent" if silent >= SILENT_SECONDS else "waiting" if waiting >= SAID_SECONDS else ""
            if not state or (state == printed and now - printed_at < SAID_SECONDS):
                continue
            printed, printed_at = state, now
            others = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
            why = f" ({reasons[0]}{others})" if reasons else ""
            if state == "silent":
                self._log(f"pool: no server has answered for {silent:.0f} s{why}; the run waits")
            else:
                self._log(f"pool: {self._pending} requests wait, and none has ended for {waiting:.0f} s{why}")

    @property
    def _last_answer(self) -> float:
        return max(replica.client.last_answer for replica in self._replicas)

    # -- weights -----------------------------------------------------------------------------------------------------

    def read_from(self, source: WeightSource) -> None:
        """Takes the weights that are published from `source`, of the same model."""
        self._weight_sync.source = source

    def publish(self, version: int) -> None:
        """Loads the model's weights on every server and checks them by a short completion; one that does not answer
        gets them when it comes back. Raises SleuthError if one cannot load them."""
        started = time.monotonic()
        self._rest(False)
        sync = self._weight_sync
        known = {replica.url: replica for replica in self._replicas}
        members, joining = self._ranks.broadcast(lambda: ([one.server for one in known.values()], [*self._joining]))
        replicas = [known.get(one.url) or EngineReplica(one, Replica(one.url)) for one in members]
        joins = [EngineReplica(one, Replica(one.url)) for one in joining]
        replicas += joins
        for act in (EngineReplica.hold, EngineReplica.interrupt) if self.limits.interrupts else ():
            self._run(self._each(act, replicas))
            self._ranks.all_gather([None])  # a server that one rank interrupts returns the turns of all

        def give() -> tuple[Published, list[Outcome], Ways]:
            published = sync.write(version)
            return published, self._run(self._update(published, replicas, joins)), sync.ways

        published, outcomes, sync.ways = sync.source.together(give)
        self._adopt(published)  # on the other ranks
        if not self._ranks.first:
            pairs = zip(replicas, outcomes, strict=True)
            self._set_members([one for one, (failure, *_) in pairs if failure is None or one not in joins])
        for replica, (failure, label, load_finished, asleep, adapter) in zip(replicas, outcomes, strict=True):
            if not self._ranks.first:  # here turns may have noticed more since
                replica.label, replica.load_finished, replica.asleep = label, load_finished, asleep
                replica.may_have_restarted, replica.reloads = failure is not None, 0
                replica.api = replace(replica.api, adapter=adapter)
            if failure is None:
                self._health.succeeded(replica.health)
                self._last_success = time.monotonic()
            elif replica in self._replicas:
                self._health.failed(replica.health)
                self._log(f"without new weights: {failure}; it will get them when it comes back")
        if self.limits.interrupts and not self._ranks.first:
            self._run(self._each(EngineReplica.reopen, replicas))
        self._rest(True)
        self._seconds += time.monotonic() - started

    async def _each(self, act: Callable[[EngineReplica], Awaitable[None]], replicas: Sequence[EngineReplica]) -> None:
        self._connect(*replicas)
        await asyncio.gather(*map(act, replicas))

    async def _update(
        self, published: Published, replicas: Sequence[EngineReplica], joins: Sequence[EngineReplica]
    ) -> list[Outcome]:
        """Gives servers new weights when none generates with the old ones: a turn that one of them returned may go on
        at another. Some of them join. Returns what became of each."""
        self._connect(*replicas)
        self._adopt(published)

        async def update(replica: EngineReplica) -> Outcome:
            failure = await self._offer(replica)
            await replica.reopen()
            return failure, replica.label, replica.load_finished, replica.asleep, replica.api.adapter

        with self._waiting():
            outcomes = await asyncio.gather(*map(update, replicas))
        for replica, (failure, *_) in zip(replicas, outcomes, strict=True):
            if replica in joins and self._roster is not None:
                self._admit(replica, failure, self._roster)
        return outcomes

    def _adopt(self, published: Published) -> None:
        if self.policy_version != published.version:
            self._group_replicas.clear()
        self._weight_sync.adopt(published)
        self.policy_version = published.version

    def _rest(self, rests: bool) -> None:
        """Notes whether the learner rests, once no server is being compared with it."""
        with self._learner:
            self._resting = rests

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work` in the event loop in which turns are, or may come, under way, or in one of its own."""
        for loop in self._loops:
            if loop.is_running():
                return asyncio.run_coroutine_threadsafe(work, loop).result()
        return asyncio.run(work)

    def sleep(self) -> None:
        """Has servers that share the learner's card release their memory until the next `publish`."""
        self._rest(False)
        if not self.limits.sleeps:
            return

        async def sleep() -> None:
            self._connect()
            awake = [replica for replica in self._replicas if not replica.asleep]
            with self._waiting():
                await asyncio.gather(*map(self._weight_sync.sleep, awake))

        self._ranks.broadcast(lambda: asyncio.run(sleep()))

    def figures(self) -> dict[str, Any]:
        """Retry, reload and publishing metrics since the last call, of all ranks together; and a sample of turns, of
        the first."""
        counts = {"turns_redrawn": self._retried, "servers_reloaded": self._weight_sync.reloaded}
        if self.limits.interrupts:
            counts["turns_resumed"] = self._resumed
        figures = self._ranks.all_reduce(counts) | {"seconds_publish": self._seconds}
        for line in dict.fromkeys(self._ranks.all_gather(self._lines)):
            self._log(line)
        self._lines.clear()
        turns = self._turns[:: max(1, len(self._turns) // TURNS)]
        self._retried, self._resumed, self._weight_sync.reloaded, self._seconds, self._turns = 0, 0, 0, 0.0, []
        return {name: float(value) for name, value in figures.items()} | {"seconds_turns": turns}

    def _connect(self, *joining: EngineReplica) -> None:
        """Creates the clients of the running event loop, and what watches the servers in it, once per loop."""
        loop = asyncio.get_running_loop()
        share = self._ranks.share(self.limits.requests_at_once)  # of the turns in flight at each server
        for replica in (*self._replicas, *joining):
            if replica.loop is not loop:
                replica.connect(requests_at_once=max(1, share.stop - share.start), seconds=self.limits.seconds)
        if loop not in self._loops[-1:]:
            self._loops = [*(other for other in self._loops if other.is_running() and other is not loop), loop]
            if self._ranks.first:  # which prints
                self._watching = loop.create_task(self._watch())
            if self._roster is not None:
                self._following = loop.create_task(self._follow(self._roster))


def joined(raw: RawCompletion, more: RawCompletion) -> RawCompletion:
    """Both parts of a turn; without log-probabilities if one of them has none."""
    logprobs = None if raw.logprobs is None or more.logprobs is None else raw.logprobs + more.logprobs
    return replace(more, tokens=raw.tokens + more.tokens, logprobs=logprobs)


def transfer_to(servers: Sequence[DiscoveredServer], model: PreTrainedModel, limits: PoolLimits) -> Transfer | None:
    """How servers take weights otherwise than whole from a folder: any the adapters alone, vLLMs on other cards by
    broadcast. They load, also when they come back, while the learner rests: so neither if the policy lags, nor if they
    share its card, whose memory they must first be given."""
    if limits.max_policy_lag or limits.sleeps:
        return None
    if is_on_card(model) and all(server.broadcast for server in servers):
        return "by broadcast"
    return "as adapters" if has_adapters(model) else None


def is_on_card(model: PreTrainedModel) -> bool:
    return model.device.type == "cuda"
