"""One server of a pool, as the event loop that asks it sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from sleuth.engines.remote.capabilities import DiscoveredServer
from sleuth.engines.remote.http_client import HttpClient, LostResponseError
from sleuth.engines.remote.wire import MALFORMED, Aborted, RawCompletion
from sleuth.retrieval.replicas import Replica
from sleuth.types import Sampling, SleuthError


class EngineReplica:
    """The client of a server, its `semaphore`, and what is known of the process behind it.

    While it writes for us and nothing has failed, it is the process that it was. `suspect`: it may be another one, with
    other weights, until it was asked. `settled`: the last weights went to it whole, and it was told to go on; else it
    may be paused, whatever it calls its weights. `asleep`: its memory was given back. `loads` counts the weights that
    were brought to it, `reloads` how often somebody else's were found in it since ours were published.
    """

    def __init__(self, discovered: DiscoveredServer, health: Replica) -> None:
        self.discovered = discovered
        self.health = health
        self.suspect = True
        self.settled = True
        self.asleep = False
        self.loads = 0
        self.reloads = 0

    def connect(self, *, requests_at_once: int, seconds: float) -> None:
        """Clients of this event loop: none outlives the loop that it was made in."""
        self.client = HttpClient(self.url, seconds=seconds)
        self.semaphore = asyncio.Semaphore(requests_at_once)
        self.admitting = asyncio.Lock()
        self.health.in_flight = 0
        self._writing = 0
        self._asking: asyncio.Task[str] | None = None
        self._next: asyncio.Task[str] | None = None

    @property
    def url(self) -> str:
        return self.discovered.server.url

    @property
    def known(self) -> bool:
        """Whether it must be the process that it was."""
        return self._writing > 0 and not self.suspect

    async def write(
        self, tokens: Sequence[int], sampling: Sampling, *, limit: int, eos_ids: Collection[int]
    ) -> tuple[RawCompletion, str | None]:
        """A turn, and what the weights are called that wrote it. Raises LineError and Aborted where there is none, or
        where weights came meanwhile, SleuthError where it is of no use."""
        wire, loads = self.discovered.wire, self.loads
        self._writing += 1
        try:
            answer = await self.client.post(wire.path, wire.body(tokens, sampling, limit=limit, eos_ids=eos_ids))
            if answer is None:
                raise LostResponseError("answered with something that is no JSON")
            written = wire.read(answer, sampling)
            label = written.weights if self.discovered.control.labels_completions else await self._weights()
            if self.loads != loads:  # it had lost those that it began to write with
                raise LostResponseError("was given weights while it wrote")
            return written, label
        except Aborted:
            raise
        except MALFORMED as error:
            reason = f"{type(error).__name__}: {error}"
            raise SleuthError(f"{self.url}: an answer that cannot be used ({reason})") from None
        finally:
            self._writing -= 1

    async def weights(self) -> str:
        """What it calls its weights. Raises LineError where it does not tell."""
        try:
            return await self.discovered.control.weights(self.client)
        except MALFORMED as error:
            raise LostResponseError(f"does not tell its weights ({type(error).__name__}: {error})") from None

    async def _weights(self) -> str:
        """The same, asked after this was called. Those who come while a question is under way share the next: many
        completions cost one."""
        if self._next is None:
            self._next = asyncio.create_task(self._ask(self._asking))
        return await asyncio.shield(self._next)

    async def _ask(self, before: asyncio.Task[str] | None) -> str:
        if before is not None:
            await asyncio.wait([before])
        self._asking, self._next = asyncio.current_task(), None
        return await self.weights()
