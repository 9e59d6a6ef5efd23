"""vLLM's completions API, and servers compatible with it: token ids in and, where supported, out.

Facts, read in vLLM's repository in November 2026 (vllm/entrypoints/openai/completion/protocol.py at 002032ee2b18 and
serving.py at 030ea52effcb, both later than v0.28):

- `POST /v1/completions` takes `prompt` as a list of token ids. `return_token_ids` (since August 2025) puts `token_ids`
  into the choice; before that, `return_tokens_as_token_ids` wrote the tokens of `logprobs` as "token_id:17". Requests
  set both, and the response decides.
- `top_p`, `top_k`, `min_p`, `repetition_penalty` and the others default to the model's generation config.
- `include_stop_str_in_output` keeps the stop string, and the text of the end token. Under speculative decoding
  `token_ids` may contain tokens after the stop string.
- `finish_reason` is stop, length or abort. Log-probabilities are those before temperature (`--logprobs-mode
  raw_logprobs`, the default).
- `seed` makes a request repeatable.
- A request has at most four stop strings (vLLM 0.32.0 refuses a fifth with 400); no dialect has more than two.
- If a prompt ends within a character (half of its UTF-8 bytes), vLLM 0.32.0 puts the prompt's text before that of the
  completion, and finds stop strings there (seen). Texts of environments end with whole characters.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from sleuth.engines.remote.wire import (
    Aborted,
    Body,
    RawCompletion,
    are_sampling_logprobs,
    checked_tokens,
    sampling_parameters,
)
from sleuth.engines.request import Request
from sleuth.engines.sampling import request_seed
from sleuth.render import decode, encode, stop_end
from sleuth.types import Completion, Sampling

TOKEN_ID = "token_id:"


@dataclass(frozen=True, slots=True)
class CompletionsWire:
    """`POST /v1/completions` for the served model `model`. `scaled`: log-probabilities are those after temperature
    (`--logprobs-mode processed_logprobs`)."""

    model: str
    scaled: bool = False
    path: str = "/v1/completions"

    def body(self, prompt: Sequence[int], sampling: Sampling, *, limit: int, eos_ids: Collection[int]) -> Body:
        """See `Wire`."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": limit,
            **sampling_parameters(sampling, eos_ids),
            "include_stop_str_in_output": True,
            "logprobs": 1,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if sampling.temperature:
            body["seed"] = request_seed(sampling.key)
        return body

    def read(self, answer: dict[str, Any], sampling: Sampling) -> RawCompletion:
        """See `Wire`."""
        [choice] = answer["choices"]
        if choice["finish_reason"] == "abort":
            raise Aborted("it gave up: somebody aborted the request")
        detail = choice.get("logprobs") or {}
        tokens = _token_ids(choice, detail.get("tokens") or [])
        logprobs = None
        if tokens is not None:
            kept = are_sampling_logprobs(sampling, scaled=self.scaled)
            tokens, logprobs = checked_tokens(tokens, detail.get("token_logprobs") if kept else None)
        return RawCompletion(
            tokens=tokens, logprobs=logprobs, text=choice["text"], finish_reason=str(choice["finish_reason"])
        )


def _token_ids(choice: dict[str, Any], named: Sequence[str]) -> Sequence[int] | None:
    if choice.get("token_ids") is not None:
        return choice["token_ids"]
    if named and all(name.startswith(TOKEN_ID) for name in named):
        return [int(name.removeprefix(TOKEN_ID)) for name in named]
    return None


def read_completion(
    raw: RawCompletion,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    limit: int,
    tokenizer: PreTrainedTokenizerFast,
    eos_ids: Collection[int],
) -> Completion:
    """The completion of the sampled ids: text and stop are derived from the ids, ignoring the server's own text and
    stop. Tokens after a stop are dropped (speculative decoding leaves some). Raises ValueError if nothing ends it.
    """
    tokens = np.array((raw.tokens or ())[:limit], dtype=np.int64)
    logprobs = np.zeros(len(tokens)) if raw.logprobs is None else np.array(raw.logprobs[:limit])
    request = Request(prompt, sampling, limit=limit, tokenizer=tokenizer)
    overshot = _overshot(tokens.tolist(), sampling, tokenizer, eos_ids)
    for count in range(1 if overshot else len(tokens), len(tokens) + 1):
        request.update(tokens[:count], logprobs[:count], eos_ids=eos_ids, policy_version=None)
        if request.stop is not None:
            whole = request.inbox.get_nowait()
            assert isinstance(whole, Completion)
            return whole if raw.logprobs is not None else replace(whole, logprobs=None)
    raise ValueError(
        f"ended a turn ({raw.finish_reason}) after {len(tokens)} of {limit} tokens without a stop string or an end "
        "token: its context is too short, or it serves another tokenizer"
    )


def completion_from_text(raw: RawCompletion, sampling: Sampling, tokenizer: PreTrainedTokenizerFast) -> Completion:
    """The completion of a server that returns only text; its ids are encoded from the text."""
    end = stop_end(raw.text, sampling.stops)
    if end is not None:
        text, stop = raw.text[:end], "stop"
    elif raw.finish_reason == "length":
        text, stop = raw.text, "length"
    else:
        text, stop = raw.text.removesuffix(str(tokenizer.eos_token)), "eos"
    tokens = encode(tokenizer, text)
    if stop == "eos" and isinstance(tokenizer.eos_token_id, int):
        tokens.append(tokenizer.eos_token_id)
    return Completion(tokens=tuple(tokens), logprobs=None, text=text, stop=stop)


def _overshot(
    tokens: Sequence[int], sampling: Sampling, tokenizer: PreTrainedTokenizerFast, eos_ids: Collection[int]
) -> bool:
    """Whether the turn ended before the last token."""
    before = tokens[:-1]
    return any(token in eos_ids for token in before) or stop_end(decode(tokenizer, before), sampling.stops) is not None
