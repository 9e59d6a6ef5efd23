"""Detects the server at a URL by its endpoints, and what it can do by generating with it, never by its version."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedTokenizerFast

from sleuth.engines.remote.completions import MALFORMED, RawCompletion
from sleuth.engines.remote.http_client import (
    HttpClient,
    HttpClientError,
    RefusedError,
    ServerFailedError,
    TimedOutError,
)
from sleuth.engines.remote.sglang import Sglang
from sleuth.engines.remote.streamed import LlamaCppPython, LlamaServer, Ollama, Streamed, generate
from sleuth.engines.remote.vllm import Vllm
from sleuth.host.connections import server_url
from sleuth.render import encode
from sleuth.types import Sampling, SleuthError

PROBE_SECONDS = 60.0  # the first request after a start may be slow
STATE_SECONDS = 8.0
"""For a server to say whether it is paused, which needs no engine."""
PROBE_TEXT = "Question: who wrote 1 <answer> in 1859?\n"
PROBE_TOKENS = 8
LOW_TEMPERATURE = 0.05  # the likeliest token is drawn, and its probability after temperature is nearly 1
MIN_LOGPROB_GAP = 0.02  # nats: below this, log-probabilities before and after temperature cannot be distinguished

LEFT = (("/is_sleeping", "asleep", "/wake_up"), ("/is_paused", "paused", "/resume"))
"""Where vLLM tells that it waits, in a word, and what ends that."""
Kind = Literal["SGLang", "vLLM", "llama.cpp", "llama-cpp-python", "Ollama"]
APIS: dict[Kind, type[Sglang | Vllm]] = {"SGLang": Sglang, "vLLM": Vllm}
STREAMED: dict[Kind, type[Streamed]] = {"llama.cpp": LlamaServer, "llama-cpp-python": LlamaCppPython, "Ollama": Ollama}
"""The APIs by kind of server; weights are loaded only into the first."""
OWNERS: dict[str, Kind] = {"llamacpp": "llama.cpp", "me": "llama-cpp-python", "vllm": "vLLM"}
"""Kinds of servers by the `owned_by` of their models."""
EXPORTED = re.compile(r"(.+?)(-(f32|f16|bf16))?(\.gguf|:latest)?")
"""A file that `sleuth export` wrote, or a model of Ollama's made of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that serves the checkpoint.

    `model` is its name on the server, `context` the longest sequence (None if unknown).
    `Server(url="http://127.0.0.1:30000", kind="SGLang", version="0.5.23", model="runs/mine/checkpoints/step-000100",
    context=4096)`.
    """

    url: str
    kind: Kind
    version: str | None
    model: str
    context: int | None

    @property
    def api(self) -> Sglang | Vllm | Streamed:
        """What is sent to it, and how its answers are read."""
        return (APIS | STREAMED)[self.kind](self.model)

    @property
    def name(self) -> str:
        """Its kind, with the version."""
        return f"{self.kind} {self.version}" if self.version else self.kind

    def __str__(self) -> str:
        return f"{self.name} at {self.url} serves {self.model!r}"

    def as_json(self) -> dict[str, Any]:
        """For a result file or a manifest."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredServer(Server):
    """A server of a pool. Its `logprobs` are those before or after temperature, `lacks` are endpoints that training
    needs and it does not have, and with `broadcast` it takes weights from other cards."""

    logprobs: Literal["before temperature", "after temperature"]
    lacks: tuple[str, ...] = ()
    broadcast: bool = False

    @property
    def api(self) -> Sglang | Vllm:
        """As for every server."""
        return APIS[self.kind](self.model, scaled=self.logprobs == "after temperature")

    def __str__(self) -> str:
        named = "named with each completion" if self.api.labels_completions else "named on request"
        return f"{self.url}: {self.name}, token ids in and out, log-probabilities {self.logprobs}, weights {named}"

    def problems(self, *, context: int, temperature: float) -> list[str]:
        """Why the server cannot be used for training, each with the remedy; empty if it can."""
        problems = []
        if self.logprobs == "before temperature" and temperature != 1.0:
            problems.append(
                f"returns log-probabilities before temperature, and sampling.temperature = {temperature:g}; start vLLM "
                "with --logprobs-mode processed_logprobs, SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB"
            )
        if self.lacks:
            missing = ", ".join(self.lacks)
            problems.append(f"has no {missing}, by which weights are loaded and named; start {self.api.remedy}")
        if self.context is not None and self.context < context:
            hint = " (SGLang fills all but 6 tokens of its own)" if self.kind == "SGLang" else ""
            problems.append(
                f"takes {self.context} tokens, and context = {context}; start it with a longer context{hint}"
            )
        return problems


def find_server(
    url: str,
    checkpoint: str | None,
    *,
    served_as: str | None,
    tokenizer: PreTrainedTokenizerFast,
    eos_ids: Collection[int],
) -> tuple[Server, list[str]]:
    """The server at `url`, if it serves `checkpoint` (None: any model), and notes for the user.

    The served name must be the checkpoint's, or `served_as` if given. If the server can tokenize, it must agree with
    `tokenizer`, and it must be able to continue a prompt. Raises SleuthError if nothing answers, if it is not such a
    server, or if it serves another model.
    """
    server, notes, _ = asyncio.run(_Probe(url, tokenizer, eos_ids, "--engine").find(checkpoint, served_as))
    return server, notes


def discover_server(url: str, *, tokenizer: PreTrainedTokenizerFast, eos_ids: Collection[int]) -> DiscoveredServer:
    """The server at `url` for a pool, whatever it serves. Raises SleuthError if it does not generate."""
    return asyncio.run(_Probe(url, tokenizer, eos_ids, "engine.urls:").discover())


def discover_servers(
    urls: Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerFast,
    eos_ids: Collection[int],
    context: int,
    temperature: float,
    log: Callable[[str], None],
    some: bool = False,
) -> list[DiscoveredServer]:
    """All servers of a pool, each logged once found. One that a killed run left paused or asleep is woken first: the
    servers of a pool are the run's own. Raises SleuthError for the first that training cannot use; with `some` they are
    left out, to be named by a roster, unless it can use none."""
    servers = []
    for url in urls:
        left = asyncio.run(wake(url))
        if left == "hanging":
            log(f"pool: {url} accepts connections and answers nothing; it is given {PROBE_SECONDS:g} s more")
        elif left:
            log(f"pool: {url} was left {left}, as by a run that was killed while it loaded weights: woken")
        try:
            server = discover_server(url, tokenizer=tokenizer, eos_ids=eos_ids)
            log(f"pool: {server}")
            for problem in server.problems(context=context, temperature=temperature):
                raise SleuthError(f"engine.urls: {server.url}: {problem}")
            servers.append(server)
        except SleuthError:
            if not some or (url == urls[-1] and not servers):
                raise
    return servers


async def wake(url: str) -> str:
    """Ends a pause or sleep, in which a server generates nothing; returns which it was, "hanging" for a server that
    answers nothing at all, and "" otherwise. SGLang reports none and always continues. What cannot be reached is
    left to `discover_server` to name."""
    client = HttpClient(server_url(url), seconds=PROBE_SECONDS)
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


class _Probe:
    """Requests that identify a server, and generate a few tokens with it."""

    def __init__(self, url: str, tokenizer: PreTrainedTokenizerFast, eos_ids: Collection[int], option: str) -> None:
        self._client = HttpClient(server_url(url), seconds=PROBE_SECONDS)
        self._model: dict[str, Any] = {"tokenizer": tokenizer, "eos_ids": eos_ids}
        self._prompt = encode(tokenizer, PROBE_TEXT)
        self._option = option

    async def find(self, checkpoint: str | None, served_as: str | None) -> tuple[Server, list[str], RawCompletion]:
        """The server, notes, and a greedy completion."""
        info = await self._get("/model_info")  # SGLang's
        cards = [card for card in (await self._get("/v1/models")).get("data") or () if isinstance(card, dict)]
        if "model_path" not in info and not cards:
            raise self._error(
                "neither SGLang's /model_info nor vLLM's /v1/models is there; name the URL of such a server"
            )
        card, notes = self._matching_card(cards or [{}], info, checkpoint, served_as)
        kind: Kind | None = "SGLang" if "model_path" in info else OWNERS.get(str(card.get("owned_by")))
        if kind is None:
            kind = "Ollama" if "version" in await self._get(Ollama.details) else "vLLM"
        details = await self._get((APIS | STREAMED)[kind].details)
        version = details.get("version") or details.get("build_info") or (details.get("info") or {}).get("version")
        card |= card.get("meta") or {}  # llama.cpp's
        longest = (card.get("max_model_len"), card.get("n_ctx"), details.get("max_req_input_len"))  # SGLang's: 6 less
        server = Server(
            url=self._client.url,
            kind=kind,
            version=version if isinstance(version, str) else None,
            model=str(card.get("id") or info["model_path"]),
            context=min((tokens for tokens in longest if type(tokens) is int), default=None),
        )
        for path, state, remedy in LEFT if kind == "vLLM" else ():
            if (await self._get(path)).get(path.removeprefix("/")):
                raise self._error(
                    f"is {state} and generates nothing: a run is giving it weights, or ended while it did; wake it "
                    f"with POST {remedy}, or train with it, which does"
                )
        await self._check_vocabulary(server)
        if isinstance(server.api, Streamed) and server.api.by_text:
            note = "takes and returns text, which is split into tokens again: they may be others than were sampled, and"
            notes.append(f"{kind} {note} the name of a tag in a passage is the tag")
        return server, notes, await self._generate(server.api, temperature=0.0)

    async def discover(self) -> DiscoveredServer:
        """Both servers return greedy log-probabilities at temperature 1. Those of the same tokens at a low temperature
        are equal if before temperature, and nearly 0 if after."""
        server, _, greedy = await self.find(None, None)
        api = server.api
        if isinstance(api, Streamed):
            raise self._error(f"{server.name} evaluates and serves; it takes no weights: train with SGLang or vLLM")
        cool = await self._generate(replace(api, scaled=True), temperature=LOW_TEMPERATURE)
        plain = tempered = 0.0
        pairs = zip(greedy.tokens, cool.tokens, greedy.logprobs or (), cool.logprobs or (), strict=False)
        for one, other, before, after in pairs:
            if one != other:
                break
            plain, tempered = plain + before, tempered + after
        # A model that is too certain to distinguish them: assume the server's default.
        scaled = tempered > plain / 2 if -plain >= MIN_LOGPROB_GAP else api.scaled
        return DiscoveredServer(
            **asdict(server),
            logprobs="after temperature" if scaled else "before temperature",
            lacks=tuple([path for path in api.needed if await self._is_missing(path)]),
            broadcast=await api.takes_broadcast(self._client),
        )

    def _matching_card(
        self, cards: Sequence[dict[str, Any]], info: dict[str, Any], checkpoint: str | None, served_as: str | None
    ) -> tuple[dict[str, Any], list[str]]:
        """The model card of the checkpoint among the served ones, and notes."""
        if checkpoint is None:
            return cards[0], []
        for card in cards:
            for name in _names(card, info):
                if name == served_as if served_as is not None else _same_model(name, checkpoint):
                    known = name in (served_as, checkpoint) or Path(name).exists()
                    note = f"the server's {name!r} is taken for {checkpoint} by the last part of its name"
                    return card, [] if known else [note]
        served = ", ".join(repr(name) for card in cards for name in _names(card, info)[:1])
        if served_as is not None:
            raise self._error(f"serves {served}, and nothing as {served_as!r}; give --served-as one of these names")
        raise self._error(
            f"serves {served}, and the checkpoint is {checkpoint}; start the server with that, or say --served-as NAME "
            "if it is the same model under that name"
        )

    async def _check_vocabulary(self, server: Server) -> None:
        """Compares the server's tokens of a text with the checkpoint's, if it has `/tokenize`."""
        path, key = (isinstance(server.api, Streamed) and server.api.tokenizes) or ("/tokenize", "prompt")
        body = {"model": server.model, key: PROBE_TEXT, "add_special_tokens": False}
        theirs = (await self._ask(self._client.post(path, body))).get("tokens")
        if isinstance(theirs, list) and theirs != self._prompt:
            raise self._error(
                f"its tokenizer is not the checkpoint's: {PROBE_TEXT.strip()!r} is {str(theirs)[:60]} there and "
                f"{str(self._prompt)[:60]} here; serve the checkpoint with its own tokenizer"
            )

    async def _generate(self, api: Sglang | Vllm | Streamed, *, temperature: float) -> RawCompletion:
        sampling = Sampling(max_tokens=PROBE_TOKENS, temperature=temperature)
        try:
            return await generate(api, self._client, self._prompt, sampling, limit=PROBE_TOKENS, **self._model)
        except HttpClientError as error:
            raise self._error(f"{api.path} {error}") from None
        except MALFORMED as error:
            raise self._error(f"an answer that cannot be used ({type(error).__name__}: {error})") from None

    async def _is_missing(self, path: str) -> bool:
        """Whether nothing is at `path`. What only takes POST refuses GET with 405, and nothing happens."""
        try:
            await self._client.get(path)
        except RefusedError as error:
            return error.is_missing
        except HttpClientError:
            pass
        return False

    async def _get(self, path: str) -> dict[str, Any]:
        return await self._ask(self._client.get(path))

    async def _ask(self, request: Coroutine[Any, Any, Any]) -> dict[str, Any]:
        """The answer to a request; empty if the server refuses it. Raises SleuthError if it does not answer."""
        try:
            answer = await request
        except (RefusedError, ServerFailedError):
            return {}
        except (HttpClientError, ValueError) as error:
            raise self._error(f"{error}; start a server there first") from None
        return answer if isinstance(answer, dict) else {}

    def _error(self, problem: str) -> SleuthError:
        return SleuthError(f"{self._option} {self._client.url}: {problem}")


def _names(card: dict[str, Any], info: dict[str, Any]) -> list[str]:
    """All names of a served model."""
    names = (card.get("id"), card.get("root"), info.get("model_path"))
    return [*dict.fromkeys(name for name in names if isinstance(name, str))]


def _same_model(name: str, checkpoint: str) -> bool:
    """Compares local folders as such; folders of other machines, hub ids and exported files by the last part."""
    if Path(name).is_dir() and Path(checkpoint).exists():
        return Path(name).samefile(checkpoint)
    folder, exported = Path(checkpoint).resolve(), EXPORTED.fullmatch(Path(name).name)
    names = {folder.name, f"{folder.parent.parent.name}-{folder.name}"}
    return Path(name).name == folder.name or (exported is not None and exported[1] in names)
