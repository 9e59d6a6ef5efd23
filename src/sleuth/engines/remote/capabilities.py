"""What a server can do, determined by generating a few tokens with it, never by its version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from transformers import PreTrainedTokenizerFast

from sleuth.engines.remote.broadcast import ID_FIELD
from sleuth.engines.remote.completions import CompletionsWire
from sleuth.engines.remote.control import Control, SglangControl, VllmControl
from sleuth.engines.remote.http_client import (
    HttpClient,
    HttpClientError,
    RefusedError,
    ServerFailedError,
    TimedOutError,
)
from sleuth.engines.remote.server import LEFT, PROBE_SECONDS, PROBE_TEXT, Server, find_server
from sleuth.engines.remote.sglang import SglangWire
from sleuth.engines.remote.wire import MALFORMED, RawCompletion
from sleuth.render import encode
from sleuth.types import Sampling, SleuthError

PROBE_TOKENS = 8
STATE_SECONDS = 8.0
"""For a server to say whether it is paused, which needs no engine."""
LOW_TEMPERATURE = 0.05  # the likeliest token is drawn, and its probability after temperature is nearly 1
MIN_LOGPROB_GAP = 0.02  # nats: below this, log-probabilities before and after temperature cannot be distinguished

CONTROLS: dict[str, Control] = {"SGLang": SglangControl(), "vLLM": VllmControl()}
"""The control API of each kind of server."""

REMEDIES = {
    "vLLM": "it with VLLM_SERVER_DEV_MODE=1, or a newer vLLM (0.32.0 has them)",
    "SGLang": "a newer SGLang (0.5.9 has them)",
}
"""What to start instead of a server that lacks endpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """`ids`: the server returns the token ids that it sampled. `logprobs` are those before or after temperature; None
    if it returns none. `stop_text`: the stop string stays in the text. `weights` is its weight version or None. `lacks`
    are endpoints that training needs and it does not have. `broadcast` is how it takes weights from other cards, or
    None.

    `Capabilities(ids=True, logprobs="after temperature", stop_text=True, weights="default")`.
    """

    ids: bool
    logprobs: Literal["before temperature", "after temperature"] | None
    stop_text: bool
    weights: str | None
    lacks: tuple[str, ...] = ()
    broadcast: Literal["nccl"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredServer:
    """A server of a pool and its capabilities."""

    server: Server
    capabilities: Capabilities

    @property
    def control(self) -> Control:
        """Its control API: weights, sleep, wake."""
        return CONTROLS[self.server.kind]

    @property
    def wire(self) -> CompletionsWire | SglangWire:
        """Its completion API."""
        scaled = self.capabilities.logprobs == "after temperature"
        return SglangWire(scaled) if self.server.kind == "SGLang" else CompletionsWire(self.server.model, scaled)

    def __str__(self) -> str:
        able = self.capabilities
        named = "named with each completion" if self.control.labels_completions else "named on request"
        version = f" {self.server.version}" if self.server.version else ""
        return (
            f"{self.server.url}: {self.server.kind}{version}, token ids in and {'out' if able.ids else 'text out'}, "
            f"log-probabilities {able.logprobs or 'missing'}, stop text {'kept' if able.stop_text else 'cut off'}, "
            f"weights {named if able.weights is not None else 'unnamed'}"
        )

    def as_json(self) -> dict[str, Any]:
        """For a manifest."""
        return self.server.as_json() | asdict(self.capabilities)

    def problems(self, *, context: int, temperature: float) -> list[str]:
        """Why the server cannot be used for training, each with the remedy; empty if it can."""
        able, longest = self.capabilities, self.server.context
        hint = " (SGLang fills all but 6 tokens of its own)" if self.server.kind == "SGLang" else ""
        checks = {
            "returns no token ids; serve with a version that does": not able.ids,
            "returns no log-probabilities; serve with a version that does": able.logprobs is None,
            f"returns log-probabilities before temperature, and sampling.temperature = {temperature:g}; start vLLM "
            "with --logprobs-mode processed_logprobs, SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB": able.logprobs
            == "before temperature"
            and temperature != 1.0,
            "does not name its weights, so stale ones could not be detected; start a vLLM that has GET /weight_info "
            "with VLLM_SERVER_DEV_MODE=1": able.weights is None,
            f"has no {', '.join(able.lacks)}, by which weights are loaded; start {REMEDIES[self.server.kind]}": bool(
                able.lacks
            ),
            f"takes {longest} tokens, and context = {context}; start it with a longer context{hint}": longest
            is not None
            and longest < context,
        }
        return [problem for problem, applies in checks.items() if applies]


async def find_capabilities(
    server: Server, client: HttpClient, tokenizer: PreTrainedTokenizerFast, eos_ids: Collection[int]
) -> Capabilities:
    """Generates a few tokens greedily, at a low temperature and with a stop. Raises SleuthError if the server does not
    answer or cannot load weights."""
    if server.kind not in CONTROLS:
        raise SleuthError(f"{server.url}: is neither vLLM nor SGLang; others cannot be given weights")
    wire = SglangWire() if server.kind == "SGLang" else CompletionsWire(server.model, scaled=True)
    prompt = encode(tokenizer, PROBE_TEXT)

    async def write(**how: object) -> RawCompletion:
        sampling = replace(Sampling(max_tokens=PROBE_TOKENS, temperature=0.0), **how)
        try:
            answer = await client.post(wire.path, wire.body(prompt, sampling, limit=PROBE_TOKENS, eos_ids=eos_ids))
            return wire.read(answer, sampling)
        except HttpClientError as error:
            raise SleuthError(f"{server.url}: {error}") from None
        except MALFORMED as error:
            reason = f"{type(error).__name__}: {error}"
            raise SleuthError(f"{server.url}: an answer that cannot be used ({reason})") from None

    greedy, cool = await write(), await write(temperature=LOW_TEMPERATURE)
    stop = greedy.text.strip()[:1]
    stopped = await write(stops=(stop,)) if stop else greedy
    try:
        weights = await CONTROLS[server.kind].weights(client)
    except (HttpClientError, *MALFORMED):
        weights = None
    return Capabilities(
        lacks=tuple([path for path in CONTROLS[server.kind].paths if await _is_missing(path, client)]),
        ids=greedy.tokens is not None,
        logprobs=_logprobs(server, greedy, cool),
        stop_text=bool(stop) and stop in stopped.text,
        weights=weights,
        broadcast=await _broadcast_of(client) if server.kind == "vLLM" else None,
    )


async def _broadcast_of(client: HttpClient) -> Literal["nccl"] | None:
    """By the refusal of a request without an id, which changes nothing and names the field of the id."""
    try:
        await client.post("/init_weight_transfer_engine", {"init_info": {"rank_offset": 1, "world_size": 2}})
    except (RefusedError, ServerFailedError) as error:
        return "nccl" if ID_FIELD in str(error) else None
    except HttpClientError:
        pass
    return None


async def _is_missing(path: str, client: HttpClient) -> bool:
    """Whether nothing is at `path`. What only takes POST refuses GET with 405, and nothing happens."""
    try:
        await client.get(path)
    except RefusedError as error:
        return error.is_missing
    except HttpClientError:
        pass
    return False


def _logprobs(
    server: Server, greedy: RawCompletion, cool: RawCompletion
) -> Literal["before temperature", "after temperature"] | None:
    """Both servers return greedy log-probabilities at temperature 1. Those of the same tokens at a low temperature are
    equal if before temperature, and nearly 0 if after."""
    if greedy.logprobs is None or cool.logprobs is None:
        return None
    pairs = list(_same_tokens(greedy, cool))
    plain = sum(before for before, _ in pairs)
    if -plain < MIN_LOGPROB_GAP:  # the model is too certain to distinguish them: assume the server's default
        return "after temperature" if server.kind == "SGLang" else "before temperature"
    tempered = sum(after for _, after in pairs)
    return "after temperature" if tempered > plain / 2 else "before temperature"


def _same_tokens(greedy: RawCompletion, cool: RawCompletion) -> Sequence[tuple[float, float]]:
    """The log-probabilities of both over their common prefix of tokens."""
    pairs = []
    for one, other, before, after in zip(
        greedy.tokens or (), cool.tokens or (), greedy.logprobs or (), cool.logprobs or (), strict=False
    ):
        if one != other:
            break
        pairs.append((before, after))
    return pairs


def discover_server(url: str, *, tokenizer: PreTrainedTokenizerFast, eos_ids: Collection[int]) -> DiscoveredServer:
    """The server at `url` with its capabilities. Raises SleuthError if it cannot be used."""
    try:
        server, _ = find_server(url, None, served_as=None, tokenizer=tokenizer, eos_ids=eos_ids)
    except SleuthError as error:  # worded for `sleuth eval --engine`
        raise SleuthError(f"engine.urls: {str(error).removeprefix('--engine ')}") from None

    async def probe_capabilities() -> DiscoveredServer:
        client = HttpClient(server.url, seconds=PROBE_SECONDS)
        return DiscoveredServer(server=server, capabilities=await find_capabilities(server, client, tokenizer, eos_ids))

    return asyncio.run(probe_capabilities())


async def _wake(url: str) -> str:
    """Ends a pause or sleep, in which a server generates nothing; returns which it was, "hanging" for a server that
    answers nothing at all, and "" otherwise. SGLang reports none and always continues. What cannot be reached is
    left to `discover_server` to name."""
    client = HttpClient(url.rstrip("/").removesuffix("/v1").rstrip("/"), seconds=PROBE_SECONDS)
    try:
        for path, left, remedy in LEFT:
            with suppress(RefusedError):  # it has no such path
                answer = await client.get(path, seconds=STATE_SECONDS)
                if isinstance(answer, dict) and answer.get(path.removeprefix("/")):
                    await client.post(remedy)
                    return left
        with suppress(RefusedError):
            await client.post("/continue_generation", {})
    except TimedOutError:
        return "hanging"
    except (HttpClientError, ValueError):  # of an address that is no URL
        pass
    return ""


def discover_servers(
    urls: Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerFast,
    eos_ids: Collection[int],
    context: int,
    temperature: float,
    log: Callable[[str], None],
) -> list[DiscoveredServer]:
    """All servers of a pool, each logged once found. One that a killed run left paused or asleep is woken first: the
    servers of a pool are the run's own. Raises SleuthError for the first that training cannot use."""
    servers = []
    for url in urls:
        left = asyncio.run(_wake(url))
        if left == "hanging":
            log(f"pool: {url} accepts connections and answers nothing; it is given {PROBE_SECONDS:g} s more")
        elif left:
            log(f"pool: {url} was left {left}, as by a run that was killed while it loaded weights: woken")
        discovered = discover_server(url, tokenizer=tokenizer, eos_ids=eos_ids)
        log(f"pool: {discovered}")
        for problem in discovered.problems(context=context, temperature=temperature):
            raise SleuthError(f"engine.urls: {discovered.server.url}: {problem}")
        servers.append(discovered)
    return servers
