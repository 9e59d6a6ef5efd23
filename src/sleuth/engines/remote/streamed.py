"""Servers that generate for evaluation alone, and stream a turn line by line: llama.cpp's, llama-cpp-python's, Ollama.

Each is asked without stop strings, and the request is closed once one is written: asked with them, these servers leave
the string out, and only llama.cpp says which it was.

Facts, read in llama.cpp (tools/server) and llama_cpp/server of llama-cpp-python 0.3.36, and in Ollama's docs/api.md in
November 2026:

- `llama-server` streams no token that ends within a character; `tokens_predicted` counts them all.
- `llama_cpp.server` has log-probabilities only with `--logits_all`. By default a new request ends the one before it,
  whose last line then has no `finish_reason`.
- Ollama with `raw` applies no template. Stops of its Modelfile hold unless the request has others. `logprobs` came with
  0.12.11. A prompt that is too long loses its beginning, where `truncate` is not known.
- Log-probabilities are those before temperature.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerFast

from sleuth.engines.remote.completions import Body, RawCompletion, make_raw_completion
from sleuth.engines.remote.http_client import HttpClient
from sleuth.engines.remote.sglang import Sglang
from sleuth.engines.remote.vllm import Vllm
from sleuth.engines.sampling import request_seed
from sleuth.render import decode, encode, stop_end
from sleuth.types import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedLine:
    """What a line adds to a turn, its `tokens` where the server names them. `written` and `read` are how many tokens of
    turn and prompt there are by now, `end` why the turn ended: "length" or another word of the server."""

    text: str
    tokens: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    written: int | None = None
    read: int | None = None
    end: str | None = None


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """The API of llama.cpp's own `llama-server` for the served model `model`, by ids. `tokenizes` is where it encodes a
    text, and under which key it takes that."""

    model: str

    path, details, tokenizes, by_text = "/completion", "/props", ("/tokenize", "content"), False

    def body(self, prompt: list[int] | str, settings: Body, limit: int) -> Body:
        """A request to continue `prompt` by at most `limit` tokens. The fields keep its text out of the last line."""
        fields = ["content", "stop", "stop_type", "tokens_predicted", "tokens_evaluated"]
        named = {"prompt": prompt, "n_predict": limit, "n_probs": 1, "return_tokens": True, "response_fields": fields}
        return named | settings

    def read(self, answer: Body) -> StreamedLine:
        """A parsed line; the last one repeats no token. Raises one of `MALFORMED` for another shape."""
        ended = answer["stop"] and answer["stop_type"].replace("limit", "length")
        return StreamedLine(
            text=answer["content"],
            tokens=() if ended else answer["tokens"],
            logprobs=[entry["logprob"] for entry in answer.get("completion_probabilities") or ()],
            written=answer["tokens_predicted"],
            read=answer["tokens_evaluated"],
            end=ended or None,
        )


@dataclass(frozen=True, slots=True)
class LlamaCppPython:
    """The API of `python -m llama_cpp.server` of llama-cpp-python, by text."""

    model: str

    path, details, tokenizes, by_text = "/v1/completions", "/openapi.json", ("/extras/tokenize", "input"), True

    def body(self, prompt: list[int] | str, settings: Body, limit: int) -> Body:
        """OpenAI's, and settings beyond it."""
        return {"model": self.model, "prompt": prompt, "max_tokens": limit} | settings

    def read(self, answer: Body) -> StreamedLine:
        """OpenAI's."""
        [choice] = answer["choices"]
        return StreamedLine(text=choice["text"], end=choice["finish_reason"])


@dataclass(frozen=True, slots=True)
class Ollama:
    """The API of Ollama, by text."""

    model: str

    path, details, tokenizes, by_text = "/api/generate", "/api/version", None, True

    def body(self, prompt: list[int] | str, settings: Body, limit: int) -> Body:
        """Without the template and the stops of the Modelfile."""
        flags = {"raw": True, "truncate": False, "logprobs": True}
        options = settings | {"num_predict": limit, "stop": []}
        return {"model": self.model, "prompt": prompt, "options": options} | flags

    def read(self, answer: Body) -> StreamedLine:
        """Its last line has the counts."""
        logprobs = [entry["logprob"] for entry in answer.get("logprobs") or ()]
        end = answer.get("done_reason", "stop") if answer["done"] else None
        return StreamedLine(text=answer["response"], logprobs=logprobs, read=answer.get("prompt_eval_count"), end=end)


Streamed = LlamaServer | LlamaCppPython | Ollama


async def generate(
    api: Sglang | Vllm | Streamed,
    client: HttpClient,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    limit: int,
    tokenizer: PreTrainedTokenizerFast,
    eos_ids: Collection[int],
) -> RawCompletion:
    """A turn of a server, up to a stop string or an end token. Raises HttpClientError, or one of `MALFORMED`."""
    if not isinstance(api, Streamed):
        return api.read(await client.post(api.path, api.body(prompt, sampling, limit=limit, eos_ids=eos_ids)), sampling)
    sent = decode(tokenizer, prompt) if api.by_text else list(prompt)
    lines, text = list[StreamedLine](), ""

    def take(answer: dict[str, Any]) -> bool:
        nonlocal text
        if "error" in answer:
            raise ValueError(answer["error"])
        lines.append(api.read(answer))
        text += lines[-1].text
        return lines[-1].end is not None or stop_end(text, sampling.stops) is not None

    whole = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}  # the whole vocabulary
    drawn = {"temperature": sampling.temperature, "seed": request_seed(sampling.key)}
    await client.stream(api.path, api.body(sent, whole | drawn | {"stream": True}, limit), take)
    stop, last = stop_end(text, sampling.stops), lines[-1]
    if stop is None and last.end is None:
        raise ValueError("the turn broke off; a second client ends the requests of the first on some servers")
    expected = len(encode(tokenizer, sent)) if isinstance(sent, str) else len(sent)
    if last.read not in (None, expected):
        why = "it has another tokenizer, puts a token before every prompt, or cut one that is too long for it"
        raise ValueError(f"it read {last.read} tokens of a prompt of {expected}: {why}")
    tokens = [token for line in lines for token in line.tokens]
    logprobs = [logprob for line in lines for logprob in line.logprobs]
    encoded = api.by_text or len(tokens) != last.written
    if encoded:
        tokens = encode(tokenizer, text[:stop])
    if stop is None and last.end != "length" and not (tokens and tokens[-1] in eos_ids):
        tokens.append(min(eos_ids, key=lambda token: (token != tokenizer.eos_token_id, token)))
    given = logprobs if len(logprobs) == len(tokens) else None
    raw = make_raw_completion(tokens, given, sampling, scaled=False, finish_reason=last.end or "stop")
    return replace(raw, encoded=encoded)
