"""One server of a pool: its client, and what is known about its process and weights."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sleuth.engines.remote.completions import MALFORMED, Aborted, RawCompletion
from sleuth.engines.remote.http_client import (
    HttpClient,
    HttpClientError,
    LostResponseError,
    RefusedError,
    ServerFailedError,
)
from sleuth.engines.remote.published import same_weights
from sleuth.engines.remote.server import DiscoveredServer
from sleuth.host.connections import Replica
from sleuth.types import Sampling, SleuthError

GATHERING_SECONDS = 0.02
"""For which the query for a label waits for more completions that share it."""

PING_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOutcome:
    """What rank 0 knows about a server after a weight update: `failure` is the reason if it did not answer, else None;
    the others are attributes of `EngineReplica`."""

    failure: str | None
    label: str
    load_finished: bool
    asleep: bool


class EngineReplica:
    """The client of a server, its `semaphore`, and what is known about its process.

    `may_have_restarted`: its weights must be checked before it generates. `load_finished`: the last load completed, and
    the server resumed; otherwise it may be paused, whatever its weight label. `asleep`: its memory is released. `label`
    is the last known one of the run's weights. `loads` counts weight loads of this rank, `reloads` those since the last
    publish because it had the weights of another client.
    """

    def __init__(self, server: DiscoveredServer, health: Replica) -> None:
        self.server = server
        self.api = server.api
        self.health = health
        self.may_have_restarted = True
        self.load_finished = True
        self.asleep = False
        self.label = ""
        self.loads = 0
        self.reloads = 0

    def connect(self, *, requests_at_once: int, seconds: float) -> None:
        """Creates the client and locks of the running event loop; none outlives its loop."""
        self.client = HttpClient(self.url, seconds=seconds)
        self.semaphore = asyncio.Semaphore(requests_at_once)
        self.admission_lock = asyncio.Lock()
        self.health.in_flight = 0
        self._away = False
        self._in_progress = 0
        self._current_query: asyncio.Task[str] | None = None
        self._next_query: asyncio.Task[str] | None = None

    def outcome(self, failure: str | None) -> LoadOutcome:
        """For the other ranks."""
        return LoadOutcome(failure=failure, label=self.label, load_finished=self.load_finished, asleep=self.asleep)

    def adopt(self, outcome: LoadOutcome) -> None:
        """Takes over what rank 0 knows."""
        self.label, self.load_finished, self.asleep = outcome.label, outcome.load_finished, outcome.asleep
        self.may_have_restarted = outcome.failure is not None
        self.reloads = 0

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def is_same_process(self) -> bool:
        """Whether the server cannot have restarted: a request is in progress, and none has failed."""
        return self._in_progress > 0 and not self.may_have_restarted

    async def write(
        self, tokens: Sequence[int], sampling: Sampling, *, limit: int, eos_ids: Collection[int]
    ) -> tuple[RawCompletion, str | None]:
        """A turn and the label of the weights that generated it. Raises HttpClientError or Aborted if it failed or if
        weights were loaded meanwhile, SleuthError for a malformed answer."""
        api, loads, before = self.api, self.loads, self.label
        self._in_progress += 1
        try:
            answer = await self.client.post(api.path, api.body(tokens, sampling, limit=limit, eos_ids=eos_ids))
            if answer is None:
                raise LostResponseError("answered with something that is not JSON")
            raw = api.read(answer, sampling)
            label = raw.weights if api.labels_completions else await self._fresh_label()
            reloaded = label is not None and label != before and same_weights(label, before)  # by another rank
            if self.loads != loads or reloaded:  # the label says nothing about the weights that generated
                raise LostResponseError("was given weights while it generated")
            return raw, label
        except Aborted:
            raise
        except MALFORMED as error:
            reason = f"{type(error).__name__}: {error}"
            raise SleuthError(f"{self.url}: an answer that cannot be used ({reason})") from None
        finally:
            self._in_progress -= 1

    async def ping(self) -> str | None:
        """None if the server answers a request that its engine has no part in, else the reason. One that answers again
        may be tried at once."""
        try:
            await self.client.get("/v1/models", seconds=PING_SECONDS)
        except (RefusedError, ServerFailedError):
            pass
        except HttpClientError as error:
            self._away = True
            return f"{self.url} {error}"
        if self._away:
            self._away, self.health.open_until = False, 0.0
        return None

    async def weights(self) -> str:
        """The label of its weights. Raises HttpClientError if it returns none."""
        try:
            return await self.api.weights(self.client)
        except MALFORMED as error:
            raise LostResponseError(f"does not name its weights ({type(error).__name__}: {error})") from None

    async def _fresh_label(self) -> str:
        """The label by a query that starts after this call. Calls during a running query share the next one, so that
        many completions cost one query."""
        if self._next_query is None:
            self._next_query = asyncio.create_task(self._query_label(self._current_query))
        return await asyncio.shield(self._next_query)

    async def _query_label(self, before: asyncio.Task[str] | None) -> str:
        if before is not None:
            await asyncio.wait([before])
        await asyncio.sleep(GATHERING_SECONDS)
        self._current_query, self._next_query = asyncio.current_task(), None
        return await self.weights()
