"""Detects the kind of server at a URL by its endpoints, never by comparing versions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedTokenizerFast

from sleuth.engines.remote.completions import CompletionsWire
from sleuth.engines.remote.http_client import refusal
from sleuth.engines.remote.sglang import SglangWire
from sleuth.engines.remote.wire import MALFORMED, RawCompletion, Wire
from sleuth.host.connections import Answer, RequestFailedError, ask_within, key_headers
from sleuth.render import encode
from sleuth.types import Sampling, SleuthError

PROBE_SECONDS = 60.0  # the first request after a start may be slow
MODEL_INFO = ("/model_info", "/get_model_info")  # SGLang's, newer and older
VERSION_PATHS = {"SGLang": ("/server_info", "/get_server_info"), "vLLM": ("/version",)}
LEFT = (("/is_sleeping", "asleep", "/wake_up"), ("/is_paused", "paused", "/resume"))
"""Where vLLM tells that it waits, in a word, and what ends that."""
PROBE_TEXT = "Question: who wrote 1 <answer> in 1859?\n"
PROBE_TOKENS = 8

Kind = Literal["SGLang", "vLLM", "OpenAI-like"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that serves the checkpoint.

    `model` is its name on the server, `context` the longest sequence (None if unknown), and `ids` whether the server
    returns the token ids that it sampled. `Server(url="http://127.0.0.1:30000", kind="SGLang", version="0.5.9",
    model="runs/mine/checkpoints/step-000100", context=4096, ids=True)`.
    """

    url: str
    kind: Kind
    version: str | None
    model: str
    context: int | None
    ids: bool

    @property
    def wire(self) -> Wire:
        """Its completion API."""
        return SglangWire() if self.kind == "SGLang" else CompletionsWire(self.model)

    def __str__(self) -> str:
        version = f" {self.version}" if self.version else ""
        back = "token ids out" if self.ids else "text out: token ids and their counts are encoded from its text"
        return f"{self.kind}{version} at {self.url} serves {self.model!r}; token ids in, {back}"

    def as_json(self) -> dict[str, Any]:
        """For a result file."""
        return asdict(self) | {"ids": "sampled" if self.ids else "encoded from text"}


SAY_NAME = "say --served-as NAME if it is the same model under that name"
"""What helps where a verb has that option."""


def find_server(
    url: str,
    checkpoint: str | None,
    *,
    served_as: str | None,
    tokenizer: PreTrainedTokenizerFast,
    eos_ids: Collection[int],
) -> tuple[Server, list[str]]:
    """The server at `url`, if it serves `checkpoint` (None: any model, as for training), and notes for the user.

    The served name must be the checkpoint's, or `served_as` if given. If the server can tokenize, it must agree with
    `tokenizer`, and it must be able to continue a prompt. Raises SleuthError if nothing answers, if it is not such a
    server, or if it serves another model.
    """
    base = url.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        return _Probe(base, tokenizer, eos_ids).find(checkpoint, served_as)
    except RequestFailedError as error:
        reason = str(error) or type(error).__name__
        raise SleuthError(f"--engine {base}: does not answer ({reason}); start SGLang or vLLM there first") from None


class _Probe:
    """Requests that identify a server."""

    def __init__(self, url: str, tokenizer: PreTrainedTokenizerFast, eos_ids: Collection[int]) -> None:
        self._url = url
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids

    def find(self, checkpoint: str | None, served_as: str | None) -> tuple[Server, list[str]]:
        info = next((found for path in MODEL_INFO if (found := self._get(path)) and "model_path" in found), None)
        cards = [card for card in (self._get("/v1/models") or {}).get("data") or () if isinstance(card, dict)]
        if info is None and not cards:
            raise self._error(
                "neither SGLang's /get_model_info nor vLLM's /v1/models is there; name the URL of such a server"
            )
        card, notes = self._matching_card(cards or [{}], info or {}, checkpoint, served_as)
        vllm = any(card.get("owned_by") == "vllm" for card in cards)
        kind: Kind = "SGLang" if info is not None else "vLLM" if vllm else "OpenAI-like"
        server = Server(
            url=self._url,
            kind=kind,
            version=self._version(kind),
            model=str(card.get("id") or (info or {})["model_path"]),
            context=self._context(kind, card),
            ids=True,
        )
        for path, state, remedy in LEFT if kind == "vLLM" else ():
            if (self._get(path) or {}).get(path.removeprefix("/")):
                raise self._error(
                    f"is {state} and generates nothing: a run is giving it weights, or ended while it did; wake it "
                    f"with POST {remedy}, or train with it, which does"
                )
        self._check_vocabulary(server)
        raw = self._generate(server)
        if raw.tokens is not None:
            return server, notes
        if not self._keeps_stops(server, raw.text):
            raise self._error(
                "returns neither token ids nor stop strings, so the end of a turn cannot be detected; "
                "serve the checkpoint with SGLang or vLLM"
            )
        return replace(server, ids=False), notes

    def _matching_card(
        self, cards: Sequence[dict[str, Any]], info: dict[str, Any], checkpoint: str | None, served_as: str | None
    ) -> tuple[dict[str, Any], list[str]]:
        """The model card of the checkpoint among the served ones, and notes."""
        if checkpoint is None:
            return cards[0], []
        for card in cards:
            for name in _names(card, info):
                if name == served_as if served_as is not None else _same_model(name, checkpoint):
                    return card, _name_notes(name, checkpoint) if served_as is None else []
        served = ", ".join(repr(name) for card in cards for name in list(_names(card, info))[:1])
        if served_as is not None:
            raise self._error(f"serves {served}, and nothing as {served_as!r}; give --served-as one of these names")
        raise self._error(
            f"serves {served}, and the checkpoint is {checkpoint}; start the server with that, or {SAY_NAME}"
        )

    def _check_vocabulary(self, server: Server) -> None:
        """Compares the server's tokens of a text with the checkpoint's, if it has `/tokenize`."""
        body = {"model": server.model, "prompt": PROBE_TEXT, "add_special_tokens": False}
        response = self._ask("POST", "/tokenize", body)
        if response.status != HTTPStatus.OK:
            return
        theirs = _dictionary(response).get("tokens")
        ours = encode(self._tokenizer, PROBE_TEXT)
        if isinstance(theirs, list) and theirs != ours:
            raise self._error(
                f"its tokenizer is not the checkpoint's: {PROBE_TEXT.strip()!r} is {str(theirs)[:60]} there and "
                f"{str(ours)[:60]} here; serve the checkpoint with its own tokenizer"
            )

    def _generate(self, server: Server, stops: tuple[str, ...] = ()) -> RawCompletion:
        sampling = Sampling(max_tokens=PROBE_TOKENS, temperature=0.0, stops=stops)
        prompt = encode(self._tokenizer, PROBE_TEXT)
        body = server.wire.body(prompt, sampling, limit=PROBE_TOKENS, eos_ids=self._eos_ids)
        response = self._ask("POST", server.wire.path, body)
        if response.status != HTTPStatus.OK:
            raise self._error(f"{server.wire.path} {refusal(response.status, response.body)}")
        try:
            return server.wire.read(response.json(), sampling)
        except MALFORMED as error:
            raise self._error(f"an answer that cannot be used ({type(error).__name__}: {error})") from None

    def _keeps_stops(self, server: Server, text: str) -> bool:
        """Whether a stop string stays in the text: `text`, generated before, gives a stop that will occur again."""
        stop = text.strip()[:1]
        return bool(stop) and stop in self._generate(server, (stop,)).text

    def _context(self, kind: Kind, card: dict[str, Any]) -> int | None:
        """The longest sequence that the server completes. SGLang refuses prompts from `max_req_input_len` on, 6 less
        than its context."""
        longest = [card.get("max_model_len")]
        if kind == "SGLang":
            longest += [(self._get(path) or {}).get("max_req_input_len") for path in VERSION_PATHS[kind]]
        return min((tokens for tokens in longest if type(tokens) is int), default=None)

    def _version(self, kind: Kind) -> str | None:
        answer = (found.get("version") for path in VERSION_PATHS.get(kind, ()) if (found := self._get(path)))
        return next((version for version in answer if isinstance(version, str)), None)

    def _get(self, path: str) -> dict[str, Any] | None:
        response = self._ask("GET", path)
        return (_dictionary(response) or None) if response.status == HTTPStatus.OK else None

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Answer:
        """Raises RequestFailedError."""
        try:
            return ask_within(PROBE_SECONDS, method, self._url + path, body=body, headers=key_headers())
        except (TimeoutError, ValueError) as error:
            raise RequestFailedError(str(error)) from None

    def _error(self, problem: str) -> SleuthError:
        return SleuthError(f"--engine {self._url}: {problem}")


def _names(card: dict[str, Any], info: dict[str, Any]) -> Iterator[str]:
    """All names of a served model."""
    yield from dict.fromkeys(
        str(name) for name in (card.get("id"), card.get("root"), info.get("model_path")) if isinstance(name, str)
    )


def _same_model(name: str, checkpoint: str) -> bool:
    """Compares local folders as such; folders of another machine and hub ids by the last part of the name."""
    if Path(name).exists() and Path(checkpoint).exists():
        return Path(name).samefile(checkpoint)
    return Path(name).name == Path(checkpoint).name


def _name_notes(name: str, checkpoint: str) -> list[str]:
    if name == checkpoint or Path(name).exists():
        return []
    return [f"the server's {name!r} is taken for {checkpoint} by the last part of its name"]


def _dictionary(response: Answer) -> dict[str, Any]:
    try:
        answer = response.json()
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
