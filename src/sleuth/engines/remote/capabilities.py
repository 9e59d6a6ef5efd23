"""What a server can do, found by having it write a few tokens, and never by its version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from transformers import PreTrainedTokenizerFast

from sleuth.engines.remote.completions import CompletionsWire
from sleuth.engines.remote.control import Control, SglangControl, VllmControl
from sleuth.engines.remote.http_client import HttpClient, HttpClientError
from sleuth.engines.remote.server import PROBE_SECONDS, PROBE_TEXT, Server, find_server
from sleuth.engines.remote.sglang import SglangWire
from sleuth.engines.remote.wire import MALFORMED, RawCompletion
from sleuth.render import encode
from sleuth.types import Sampling, SleuthError

PROBE_TOKENS = 8
COOL = 0.05  # so cool that the likeliest token is drawn, and its probability after temperature is nearly 1
DISTINCT_NATS = 0.02  # nats: less than that, and both ways of telling a log-probability would say the same

CONTROLS: dict[str, Control] = {"SGLang": SglangControl(), "vLLM": VllmControl()}
"""How a kind of server is told what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What was found. `ids`: it takes token ids and gives back those that it sampled. `logprobs` are those before
    temperature or after; None where it tells none. `stop_text`: the stop string stays in the text. `weights` is what it
    calls its weights; None where it does not.

    `Capabilities(ids=True, logprobs="after temperature", stop_text=True, weights="default")`.
    """

    ids: bool
    logprobs: Literal["before temperature", "after temperature"] | None
    stop_text: bool
    weights: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredServer:
    """A server of a pool, and what it can do."""

    server: Server
    capabilities: Capabilities

    @property
    def control(self) -> Control:
        """How it is told what to do."""
        return CONTROLS[self.server.kind]

    @property
    def wire(self) -> CompletionsWire | SglangWire:
        """How it is asked to write."""
        scaled = self.capabilities.logprobs == "after temperature"
        return SglangWire(scaled) if self.server.kind == "SGLang" else CompletionsWire(self.server.model, scaled)

    def __str__(self) -> str:
        able = self.capabilities
        said = "with each completion" if self.control.labels_completions else "when asked"
        version = f" {self.server.version}" if self.server.version else ""
        return (
            f"{self.server.url}: {self.server.kind}{version}, token ids in and {'out' if able.ids else 'text out'}, "
            f"log-probabilities {able.logprobs or 'untold'}, stop text {'kept' if able.stop_text else 'cut off'}, "
            f"weights {f'named {said}' if able.weights is not None else 'unnamed'}"
        )

    def as_json(self) -> dict[str, Any]:
        """For a manifest."""
        return self.server.as_json() | asdict(self.capabilities)

    def problems(self, *, context: int, temperature: float) -> list[str]:
        """Why it cannot write what is trained on, each with what would be right."""
        able, holds = self.capabilities, self.server.context
        found = {
            "gives no token ids back; serve with a version that does": not able.ids,
            "tells no log-probabilities; serve with a version that does": able.logprobs is None,
            f"tells log-probabilities before temperature, and sampling.temperature = {temperature:g}; start vLLM with "
            "--logprobs-mode processed_logprobs, SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB": able.logprobs
            == "before temperature"
            and temperature != 1.0,
            "does not name its weights, so that stale ones could not be told; start a vLLM that has GET /weight_info "
            "with VLLM_SERVER_DEV_MODE=1": able.weights is None,
            f"takes {holds} tokens, and context = {context}; start it with a longer context": holds is not None
            and holds < context,
        }
        return [problem for problem, is_there in found.items() if is_there]


async def find_capabilities(
    server: Server, client: HttpClient, tokenizer: PreTrainedTokenizerFast, eos_ids: Collection[int]
) -> Capabilities:
    """Have the server write a few tokens, greedily, nearly so, and with a stop. Raises SleuthError where it is no
    server that can be given weights, or does not answer."""
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

    greedy, cool = await write(), await write(temperature=COOL)
    stop = greedy.text.strip()[:1]
    stopped = await write(stops=(stop,)) if stop else greedy
    try:
        weights = await CONTROLS[server.kind].weights(client)
    except (HttpClientError, *MALFORMED):
        weights = None
    return Capabilities(
        ids=greedy.tokens is not None,
        logprobs=_logprobs(server, greedy, cool),
        stop_text=bool(stop) and stop in stopped.text,
        weights=weights,
    )


def _logprobs(
    server: Server, greedy: RawCompletion, cool: RawCompletion
) -> Literal["before temperature", "after temperature"] | None:
    """Both servers tell greedy log-probabilities at temperature 1. Where the same tokens were drawn at another one,
    they are told alike, or nearly as 0."""
    if greedy.logprobs is None or cool.logprobs is None:
        return None
    pairs = list(_same_tokens(greedy, cool))
    plain = sum(before for before, _ in pairs)
    if -plain < DISTINCT_NATS:  # so sure of itself that nothing can be told apart: what it does unless told otherwise
        return "after temperature" if server.kind == "SGLang" else "before temperature"
    tempered = sum(after for _, after in pairs)
    return "after temperature" if tempered > plain / 2 else "before temperature"


def _same_tokens(greedy: RawCompletion, cool: RawCompletion) -> Sequence[tuple[float, float]]:
    """The log-probabilities of both, as far as they drew the same."""
    pairs = []
    for one, other, before, after in zip(
        greedy.tokens or (), cool.tokens or (), greedy.logprobs or (), cool.logprobs or (), strict=False
    ):
        if one != other:
            break
        pairs.append((before, after))
    return pairs


def discover_server(url: str, *, tokenizer: PreTrainedTokenizerFast, eos_ids: Collection[int]) -> DiscoveredServer:
    """The server at `url` with what it can do. Raises SleuthError where there is none that can be used."""
    try:
        server, _ = find_server(url, None, served_as=None, tokenizer=tokenizer, eos_ids=eos_ids)
    except SleuthError as error:  # of `sleuth eval`, and in its words
        raise SleuthError(f"engine.urls: {str(error).removeprefix('--engine ')}") from None

    async def probe_capabilities() -> DiscoveredServer:
        client = HttpClient(server.url, seconds=PROBE_SECONDS)
        try:
            return DiscoveredServer(
                server=server, capabilities=await find_capabilities(server, client, tokenizer, eos_ids)
            )
        finally:
            await client.aclose()

    return asyncio.run(probe_capabilities())


def discover_servers(
    urls: Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerFast,
    eos_ids: Collection[int],
    context: int,
    temperature: float,
    say: Callable[[str], None],
) -> list[DiscoveredServer]:
    """All servers of a pool, each said as it was found. Raises SleuthError for the first that training cannot use."""
    servers = []
    for url in urls:
        discovered = discover_server(url, tokenizer=tokenizer, eos_ids=eos_ids)
        say(f"pool: {discovered}")
        for problem in discovered.problems(context=context, temperature=temperature):
            raise SleuthError(f"engine.urls: {discovered.server.url}: {problem}")
        servers.append(discovered)
    return servers
