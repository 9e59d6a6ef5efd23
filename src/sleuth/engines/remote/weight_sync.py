"""The servers of a pool, what is known about their processes and weights, and how they get the learner's weights."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from statistics import fmean

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.remote.completions import ABORTED, MALFORMED, Aborted, RawCompletion
from sleuth.engines.remote.http_client import (
    HttpClient,
    HttpClientError,
    LostResponseError,
    RefusedError,
    ServerFailedError,
    UnavailableError,
)
from sleuth.engines.remote.published import (
    INITIAL_WEIGHTS,
    EndedError,
    NotLoadedError,
    Part,
    Published,
    publish,
    published_in_memory,
    same_weights,
)
from sleuth.engines.remote.server import PROBE_TEXT, DiscoveredServer
from sleuth.engines.remote.weight_transfer import Transfer
from sleuth.host.connections import Replica
from sleuth.learn.master_weights import WeightSource
from sleuth.ranks import ALONE, Ranks
from sleuth.render import encode
from sleuth.types import Sampling, SleuthError

GATHERING_SECONDS = 0.02
"""For which the query for a label waits for more completions that share it."""

PING_SECONDS = 3.0
LOCK_SECONDS = 0.05  # between attempts at the lock of a server
INTERRUPT_SECONDS = 1.0
"""When no interrupted turn has returned for so long, those that are left are taken for turns that reached their server
after it had paused, which would wait there for new weights. They are sent again."""
MAX_RELOADS = 3
"""Reloads of one version at a server that has foreign weights (not its initial ones) before the run stops."""
CHECK_TOKENS = 16
MAX_LOGPROB_GAP = {torch.float32: 1e-3}
"""The largest mean difference of log-probabilities, in nats, between two engines with the same float32 weights."""
MAX_HALF_PRECISION_GAP = 0.1
"""The same in half precision, where sums depend on the order of their terms."""


class WeightsDifferError(SleuthError):
    """A server has, or generated with, other weights than the run's."""


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
        self.loop: asyncio.AbstractEventLoop | None = None  # that of the client

    def connect(self, *, requests_at_once: int, seconds: float) -> None:
        """Creates the client and locks of the running event loop; none outlives its loop."""
        self.loop = asyncio.get_running_loop()
        self.client = HttpClient(self.url, seconds=seconds)
        self.semaphore = asyncio.Semaphore(requests_at_once)
        self.admission_lock = asyncio.Lock()
        self.health.in_flight = 0
        self.is_open = asyncio.Event()  # else no turn may begin
        self.is_open.set()
        self._turns: set[asyncio.Task[tuple[RawCompletion, str | None]]] = set()
        self._interrupting = False
        self._away = False
        self.turns = 0  # of this rank, under way
        self._current_query: asyncio.Task[str] | None = None
        self._next_query: asyncio.Task[str] | None = None

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def is_same_process(self) -> bool:
        """Whether the server cannot have restarted: a request is in progress, and none has failed."""
        return self.turns > 0 and not self.may_have_restarted

    async def write(
        self, tokens: Sequence[int], sampling: Sampling, *, limit: int, eos_ids: Collection[int]
    ) -> tuple[RawCompletion, str | None]:
        """A turn, or what there was of it when `interrupt` ended it, and the label of the weights that generated it.
        Raises HttpClientError or Aborted if it failed or if weights were loaded meanwhile, SleuthError for a malformed
        answer."""
        turn = asyncio.create_task(self._write(tokens, sampling, limit, eos_ids))
        self._turns.add(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return RawCompletion(tokens=(), logprobs=(), finish_reason=ABORTED), self.label
        finally:
            self._turns.discard(turn)

    async def hold(self) -> None:
        """Lets no turn begin until `reopen`; those under way may be interrupted, by another rank too."""
        await self.admission_lock.acquire()  # it may be getting the old weights again
        self.is_open.clear()
        self._interrupting = True

    async def interrupt(self) -> None:
        """Ends the turns under way, which return what was sampled. Call `hold` before."""
        if turns := set(self._turns):
            with suppress(HttpClientError):  # it is away, and so are its turns
                await self.api.interrupt(self.client)
            returned = turns
            while turns and returned:
                returned, turns = await asyncio.wait(
                    turns, timeout=INTERRUPT_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
            for turn in turns:
                turn.cancel()
            await asyncio.gather(*turns, return_exceptions=True)
        self._interrupting = False

    async def reopen(self) -> None:
        """Ends `hold`, if it was held."""
        if not self.is_open.is_set():
            self.is_open.set()
            self.admission_lock.release()

    async def _write(
        self, tokens: Sequence[int], sampling: Sampling, limit: int, eos_ids: Collection[int]
    ) -> tuple[RawCompletion, str | None]:
        api, loads, before = self.api, self.loads, self.label
        self.turns += 1
        try:
            body = api.body(tokens, sampling, limit=limit, eos_ids=eos_ids)
            try:
                answer = await self.client.post(api.path, body)
            except RefusedError as error:  # a server that has restarted knows no adapter
                if not api.adapter or await self.weights() == before:
                    raise
                raise LostResponseError(f"has lost the adapters of the run ({error})") from None
            if answer is None:
                raise LostResponseError("answered with something that is not JSON")
            try:
                raw = api.read(answer, sampling)
            except Aborted as aborted:
                if not self._interrupting:
                    raise
                raw = aborted.partial
            label = raw.weights if api.labels_completions else await self._fresh_label()
            reloaded = label is not None and label != before and same_weights(label, before)  # by another rank
            if self.loads != loads or reloaded:  # the label says nothing about the weights that generated
                raise LostResponseError("was given weights while it generated")
            return raw, label
        except Aborted:
            raise
        except MALFORMED as error:
            raise SleuthError(f"{self.url}: an answer that cannot be used ({type(error).__name__}: {error})") from None
        finally:
            self.turns -= 1

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
        many completions cost one query. Raises LostResponseError if it fails: the completion is lost with it."""
        if self._next_query is None:
            self._next_query = asyncio.create_task(self._query_label(self._current_query))
        try:
            return await asyncio.shield(self._next_query)
        except UnavailableError as error:
            raise LostResponseError(str(error)) from None

    async def _query_label(self, before: asyncio.Task[str] | None) -> str:
        if before is not None:
            await asyncio.wait([before])
        await asyncio.sleep(GATHERING_SECONDS)
        self._current_query, self._next_query = asyncio.current_task(), None
        return await self.weights()


@dataclass(kw_only=True)
class Ways:
    """How servers take the weights: by a `transfer`, or from the folder, if the newest are `written` there. `base` is
    what adapters are added to. The first of several ranks finds it out, and the others must know."""

    transfer: Transfer | None
    written: bool = False
    base: Published | None = None


class WeightSync:
    """Loads the weights of `model`, or of a `source` that takes its place, on servers through the folder `shared`.
    `reloaded` counts servers that had lost them and got them again.

    With a `transfer` servers take them in this way, if they can. The learner must not change them while servers load,
    which they also do when they come back.

    Of several `ranks`, which must all see the folder, the first one publishes, and each reloads a server that it finds
    without the weights, if what the folder has is enough; else the server waits for the next ones. A reload has a label
    of its own, so that the turns of other ranks during it are discarded."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        shared: Path,
        *,
        eos_ids: Collection[int],
        temperature: float,
        log: Callable[[str], None],
        ranks: Ranks = ALONE,
        transfer: Transfer | None = None,
    ) -> None:
        self.reloaded = 0
        self.source = WeightSource(model, ranks)
        self._check_prompt = encode(tokenizer, PROBE_TEXT)
        self._shared = shared
        self._eos_ids = eos_ids
        self._temperature = temperature
        self._log = log
        self._ranks = ranks
        self.ways = Ways(transfer=transfer)
        self._without = set[str]()  # URLs of servers that lost the newest weights, and wait for the next ones
        self._published: Published | None = None

    def write(self, version: int) -> Published:
        """Writes the current weights into the folder as `version`. Weights that servers take in another way are only
        named, but for adapters, and written if one of them does not. Servers should have them once `adopt` was
        called."""
        self.ways.written = self.ways.transfer is None
        if self.ways.written or self.ways.transfer == "as adapters":
            return self._publish(version, "merged" if self.ways.written else "adapters")
        return published_in_memory(self.source, self._shared, version)

    def _publish(self, version: int, part: Part) -> Published:
        """Ranks keep the base, which a server that comes back between two updates needs."""
        keep = self.ways.base.path if self.ways.base is not None and self.source.gathers else None
        return publish(self.source, self._shared, version, part, keep=keep)

    def adopt(self, published: Published) -> None:
        """Makes them the weights that every server should have; no turn may be under way."""
        self._published = published
        self._without.clear()

    @property
    def published(self) -> Published:
        """The weights that every server should have."""
        assert self._published is not None  # a pool publishes before its first request
        return self._published

    async def update(self, replica: EngineReplica) -> str | None:
        """Loads new weights on a server, waking it if asleep, and checks them by a short completion. Returns the reason
        if the server does not answer, else None. Raises SleuthError if it answers without having the weights."""
        replica.reloads = 0
        try:
            await self._load(replica)
            await self._check_weights(replica)
        except (HttpClientError, Aborted) as error:
            replica.may_have_restarted = True
            return f"{replica.url} {error}"
        replica.may_have_restarted = False
        return None

    async def sleep(self, replica: EngineReplica) -> None:
        """Has a server release its memory."""
        try:
            replica.asleep = True
            await replica.api.sleep(replica.client)
        except RefusedError as error:
            raise SleuthError(
                f"{replica.url}: cannot sleep ({error}); start it so that it can (docs/how-to/pool.md)"
            ) from None
        except UnavailableError:  # a server that comes back later is awake
            replica.asleep, replica.may_have_restarted = False, True
        except HttpClientError:
            replica.may_have_restarted = True

    async def ensure_current_weights(self, replica: EngineReplica) -> None:
        """Reloads the weights on a server that has lost them, if it may have restarted. Call before it generates."""
        if replica.is_same_process:
            return
        async with replica.admission_lock:
            if replica.is_same_process:
                return
            label = await replica.weights()
            if not self._is_current(replica, label):
                async with self._only_rank(replica):
                    label = await replica.weights()  # another rank may have loaded them meanwhile
                    if not self._is_current(replica, label):
                        label = await self._reload(replica, label)
            replica.label, replica.may_have_restarted = label, False

    def require_weights(self, replica: EngineReplica, label: str | None, expected: Published) -> None:
        """Raises LostResponseError for a turn of a server that has, or may have, restarted, and WeightsDifferError for
        one generated with foreign weights."""
        if label is not None and same_weights(label, expected.label):
            return
        if label == INITIAL_WEIGHTS or not replica.api.labels_completions:
            raise LostResponseError(f"has restarted: its weights are {label!r}")
        raise self._foreign_weights(replica, "wrote", label)

    def _is_current(self, replica: EngineReplica, label: str) -> bool:
        return replica.load_finished and same_weights(label, self.published.label)

    async def _reload(self, replica: EngineReplica, label: str) -> str:
        """Loads the weights on a server that has `label` instead. Returns their label."""
        replica.reloads += replica.load_finished and label != INITIAL_WEIGHTS
        if replica.reloads > MAX_RELOADS:
            raise self._foreign_weights(replica, "would write", label)
        await self._load(replica, f".{self._ranks.rank}.{replica.loads}")
        self.reloaded += 1
        self._log(f"{replica.url} came back with the weights {label!r} and was given {replica.label!r}")
        return replica.label

    @asynccontextmanager
    async def _only_rank(self, replica: EngineReplica) -> AsyncIterator[None]:
        """In this context no other rank reloads the server, if the file system has locks. Without them several ranks
        may reload it, which costs time and nothing else."""
        if self._ranks.alone:
            yield
            return
        name = hashlib.sha256(replica.url.encode()).hexdigest()[:16]
        self._shared.mkdir(parents=True, exist_ok=True)
        with open(self._shared / f"{name}.lock", "w") as lock:  # its end frees it, and so does that of the process
            with suppress(OSError):
                while True:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        await asyncio.sleep(LOCK_SECONDS)
            yield

    async def _load(self, replica: EngineReplica, reload: str = "") -> None:
        """Loads the weights and wakes the server. After a failure it may be paused or half asleep under its new label,
        so `load_finished` stays False."""
        api, published = replica.api, replace(self.published, reload=reload)
        replica.load_finished = False
        replica.loads += 1
        try:
            if replica.asleep:
                await api.reserve(replica.client)
            if not await self._received(replica, published):
                await api.load(replica.client, published)
            if replica.asleep:
                await api.wake(replica.client)
        except NotLoadedError as error:
            raise SleuthError(
                f"{replica.url}: {error}; every server must see the folder engine.weights under this very path"
            ) from None
        replica.load_finished, replica.asleep, replica.label = True, False, published.label

    async def _received(self, replica: EngineReplica, published: Published) -> bool:
        """Whether the server took the weights otherwise than whole from the folder, where they are then. Raises
        HttpClientError if it does not answer; if the weights may have ended it, it will get the folder."""
        by, api = self.ways.transfer, replica.api
        if by is not None:
            try:
                if by != "as adapters":
                    self._require_at_hand(replica)
                elif replica.label != await replica.weights():  # new to this stage, or restarted
                    await api.load(replica.client, self._base(replica))
                await api.receive(replica.client, published, self.source, by)
                replica.api = replace(api, adapter=published.label if by == "as adapters" else "")
                return True
            except (NotLoadedError, EndedError) as error:
                self._require_at_hand(replica)
                self._log(f"{replica.url} {error}: weights go through the folder {self._shared}")
                self.ways.transfer = None
                if isinstance(error, EndedError):
                    raise
        replica.api = replace(api, adapter="")
        if not self.ways.written:
            self._require_at_hand(replica)
            self._publish(published.version, "merged")
            self.ways.written = True
        return False

    def _require_at_hand(self, replica: EngineReplica) -> None:
        """Raises UnavailableError, and logs it once, where only all ranks together can read the weights, and they play
        episodes."""
        if not self.source.at_hand:
            why = "has lost its weights, and waits for those of the next update"
            if replica.url not in self._without:
                self._without.add(replica.url)
                self._log(f"{replica.url} {why}")
            raise UnavailableError(why)

    def _base(self, replica: EngineReplica) -> Published:
        """The weights to which the adapters are added, whole, which a server takes before the first of them."""
        if self.ways.base is None or not self.ways.base.path.exists():
            self._require_at_hand(replica)
            self.ways.base = self._publish(self.published.version, "base")
        return self.ways.base

    async def _check_weights(self, replica: EngineReplica) -> None:
        """Compares the log-probabilities of a short completion with the learner's. Raises SleuthError if they differ
        by too much for equal weights."""
        prompt, temperature, published = self._check_prompt, self._temperature, self.published
        sampling = Sampling(max_tokens=CHECK_TOKENS, temperature=temperature, key=(published.version, 0, 0))
        raw, label = await replica.write(prompt, sampling, limit=CHECK_TOKENS, eos_ids=self._eos_ids)
        self.require_weights(replica, label, published)
        ours = self.source.logprobs(prompt, raw.tokens or (), temperature)
        gap = fmean(abs(one - other) for one, other in zip(ours, raw.logprobs or (), strict=True))
        allowed, server = MAX_LOGPROB_GAP.get(self.source.model.dtype, MAX_HALF_PRECISION_GAP), replica.server
        if not gap <= allowed:
            hint = ""
            if server.kind == "vLLM" and self.source.model.config.tie_word_embeddings:
                model = quote(server.model if Path(server.model).is_dir() else "MODEL")
                hint = (
                    "; a vLLM for CPUs may keep the output weights of a tied model: serve an untied copy instead, made "
                    f"by sleuth merge {model} {model}-untied --untie"
                )
            raise SleuthError(
                f"{replica.url}: says that it has the weights {published.label}, and writes with others: its "
                f"log-probabilities differ by {gap:.3g} from the learner's, where {allowed:g} is allowed; nothing of "
                f"it was trained on{hint}"
            )

    def _foreign_weights(self, replica: EngineReplica, what: str, label: str | None) -> WeightsDifferError:
        return WeightsDifferError(
            f"{replica.url}: {what} with the weights {label!r}, and the run is at {self.published.label!r}; another "
            "client loaded them, or it lost ours: make sure that the pool serves this run alone, and start it again"
        )
