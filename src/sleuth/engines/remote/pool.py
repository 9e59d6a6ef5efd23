"""The engine of many servers: it spreads the load, keeps siblings together, and hands the learner's weights out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.remote.capabilities import DiscoveredServer
from sleuth.engines.remote.completions import completion_from_ids
from sleuth.engines.remote.http_client import HttpClientError, RefusedError, UnavailableError
from sleuth.engines.remote.replica import EngineReplica
from sleuth.engines.remote.weight_sync import WeightSync
from sleuth.engines.remote.wire import Aborted, RawCompletion
from sleuth.engines.request import max_new_tokens
from sleuth.retrieval.replicas import Replicas
from sleuth.types import Chunk, Completion, Sampling, SleuthError

ATTEMPTS = 8
"""At one turn, those that found nobody not counted: what fails so often fails because of what was asked."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds before a turn that was turned away twice asks again; doubled each time."""

Group = tuple[int, ...]
"""What siblings have in common: their key without sample and turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """How much is asked of each server, and how long is waited; see `PoolRecipe`."""

    requests_at_once: int
    seconds: float
    unavailable_timeout: float
    sleeps: bool


class PoolEngine:
    """Continues token sequences on the `servers` of a pool, with the weights of `model`.

    `publish` hands the weights out before anything is asked. Siblings go to one server, for the prompt that it has
    read; a new group goes to the one with the least to do. A turn that a server did not finish is drawn again
    elsewhere, under its own seed, from the tokens before it: nothing that was received is lost, and nothing is received
    twice. A server that comes back gets the weights before it writes; a completion by any others ends the run.
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
        say: Callable[[str], None],
    ) -> None:
        self.tokenizer = tokenizer
        self.eos_ids = eos_ids
        self.context = context
        self.limits = limits
        self.policy_version = 0
        self._say = say
        self._weight_sync = WeightSync(model, tokenizer, shared, eos_ids=eos_ids, temperature=temperature, say=say)
        self._health = Replicas([discovered.server.url for discovered in servers])
        self._replicas = [
            EngineReplica(discovered, health) for discovered, health in zip(servers, self._health.members, strict=True)
        ]
        self._homes: dict[Group, EngineReplica] = {}
        self._redrawn = 0
        self._seconds = 0.0  # that weights took
        self._heard = time.monotonic()
        self._reason = ""  # why the last turn that was not finished was not
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- writing -----------------------------------------------------------------------------------------------------

    async def stream(self, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        """Continue `tokens`, in one chunk."""
        whole = await self.complete(tokens, sampling)
        yield Chunk(
            tokens=whole.tokens,
            logprobs=whole.logprobs,
            text=whole.text,
            stop=whole.stop,
            policy_version=whole.policy_version,
        )

    async def complete(self, tokens: Sequence[int], sampling: Sampling) -> Completion:
        """Continue `tokens` until a stop. Raises SleuthError where no server does in time."""
        limit = max_new_tokens(tokens, sampling, self.context)
        if limit < 1:
            return Completion(tokens=(), logprobs=(), text="", stop="length", policy_version=self.policy_version)
        self._connect()
        written = await self._written(tokens, sampling, limit)
        try:
            whole = completion_from_ids(
                written, tokens, sampling, limit=limit, tokenizer=self.tokenizer, eos_ids=self.eos_ids
            )
        except ValueError as error:
            raise SleuthError(f"engine: a server {error}") from None
        return replace(whole, policy_version=self.policy_version)

    async def _written(self, tokens: Sequence[int], sampling: Sampling, limit: int) -> RawCompletion:
        group, failed, began = sampling.key[:-2], None, time.monotonic()
        failures = refusals = 0
        while True:
            await asyncio.sleep(_pause(refusals))
            replica = await self._home(group, failed, began)
            replica.health.in_flight += 1
            try:
                written = await self._ask(replica, tokens, sampling, limit)
            except RefusedError as error:
                raise SleuthError(f"{replica.url}: {error}") from None
            except (HttpClientError, Aborted) as error:
                self._lost(replica, group, error)
                failed = replica
                refusals += isinstance(error, UnavailableError)
                failures += not isinstance(error, UnavailableError)
                if failures >= ATTEMPTS:
                    raise SleuthError(f"{self._reason}; {failures} attempts at this turn failed") from None
            else:
                self._health.succeeded(replica.health)
                self._heard = time.monotonic()
                return written
            finally:
                replica.health.in_flight -= 1

    async def _ask(
        self, replica: EngineReplica, tokens: Sequence[int], sampling: Sampling, limit: int
    ) -> RawCompletion:
        """A turn, by the run's weights."""
        async with replica.semaphore:
            await self._weight_sync.admit(replica)
            written, label = await replica.write(tokens, sampling, limit=limit, eos_ids=self.eos_ids)
        self._weight_sync.require_current_weights(replica, label)
        return written

    def _lost(self, replica: EngineReplica, group: Group, error: Exception) -> None:
        """A server did not finish a turn of the group: it goes elsewhere."""
        replica.suspect = True
        self._health.failed(replica.health)
        self._reason = f"{replica.url}: {error}"
        self._redrawn += not isinstance(error, UnavailableError)
        self._homes.pop(group, None)

    async def _home(self, group: Group, failed: EngineReplica | None, began: float) -> EngineReplica:
        """Where a group's turns go: to the same server as long as it answers, else to the one with the least to do.
        Waits while none may be asked; raises SleuthError where none has answered since a turn `began`, for longer than
        `limits.unavailable_timeout`."""
        while True:
            home = self._homes.get(group)
            if home is not None and home is not failed and self._health.may_be_asked(home.health):
                return home
            able = [replica for replica in self._replicas if self._health.may_be_asked(replica.health)]
            if able:
                others = [replica for replica in able if replica is not failed] or able
                self._homes[group] = min(others, key=lambda replica: replica.health.in_flight)
                return self._homes[group]
            if time.monotonic() > max(began, self._heard) + self.limits.unavailable_timeout:
                urls = ", ".join(replica.url for replica in self._replicas)
                raise SleuthError(
                    f"no server of the pool answered for {self.limits.unavailable_timeout:g} seconds ({self._reason}): "
                    f"see to {urls}, and run the same command again: it goes on from the last checkpoint"
                )
            await asyncio.sleep(min(self._health.seconds_until_next(), self.limits.unavailable_timeout))

    # -- weights -----------------------------------------------------------------------------------------------------

    def publish(self, version: int) -> None:
        """The weights have changed: every server takes them, and shows by what it writes that it did. One that does not
        answer takes them when it comes back. Raises SleuthError where one cannot."""
        started = time.monotonic()
        self._weight_sync.write(version)
        self.policy_version = version
        self._homes.clear()

        async def bring() -> list[str | None]:
            self._connect()
            return await asyncio.gather(*map(self._weight_sync.bring, self._replicas))

        for replica, failure in zip(self._replicas, asyncio.run(bring()), strict=True):
            if failure is None:
                self._health.succeeded(replica.health)
                self._heard = time.monotonic()
            else:
                self._health.failed(replica.health)
                self._say(f"without new weights: {failure}; it takes them when it comes back")
        self._seconds += time.monotonic() - started

    def rest(self) -> None:
        """Nothing is asked until the next `publish`: servers that share the learner's card give its memory back."""
        if not self.limits.sleeps:
            return

        async def sleep() -> None:
            self._connect()
            await asyncio.gather(*map(self._weight_sync.sleep, self._replicas))

        asyncio.run(sleep())

    def figures(self) -> dict[str, float]:
        """What became of the pool since this was last called."""
        figures = {
            "turns_redrawn": float(self._redrawn),
            "servers_reloaded": float(self._weight_sync.reloaded),
            "seconds_publish": self._seconds,
        }
        self._redrawn, self._weight_sync.reloaded, self._seconds = 0, 0, 0.0
        return figures

    def _connect(self) -> None:
        """Clients of this event loop."""
        if self._loop is not asyncio.get_running_loop():
            self._loop = asyncio.get_running_loop()
            for replica in self._replicas:
                replica.connect(requests_at_once=self.limits.requests_at_once, seconds=self.limits.seconds)


def _pause(refusals: int) -> float:
    """Before a turn is asked for again that nobody took so often; the first time another server may have room."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (refusals - 2)) if refusals > 1 else 0.0
