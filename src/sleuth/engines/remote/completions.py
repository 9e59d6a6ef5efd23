"""Completions of a server, by token ids: what its answer must have, and the turn that the sampled ids make."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from sleuth.engines.sampling import Request
from sleuth.render import decode, stop_end
from sleuth.types import Completion, Sampling

Body = dict[str, Any]
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, IndexError)
"""The exceptions that reading a malformed answer may raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCompletion:
    """A server's answer: n `tokens` and their `logprobs`, None if they are not those of the sampling policy.

    `finish_reason` is in the server's terms; `weights` is the label of the weights, None if it is not in the answer;
    tokens that are `encoded` were made of the server's text.
    `RawCompletion(tokens=(5, 9), logprobs=(-0.1, -1.2), finish_reason="length")`.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish_reason: str
    weights: str | None = None
    encoded: bool = False


ABORTED = "abort"
"""The `finish_reason` of a turn that a client had the server stop; both kinds of server name it so."""


class Aborted(ValueError):  # noqa: N818
    """The server aborted a request because a client asked it to; `partial` is what it had sampled."""

    def __init__(self, message: str, partial: RawCompletion) -> None:
        super().__init__(message)
        self.partial = partial


def sampling_parameters(sampling: Sampling, eos_ids: Collection[int]) -> Body:
    """The parameters of a request that both kinds of server name alike. All that a server would take from the model's
    generation config are set, for the full support of the policy."""
    return {
        "temperature": sampling.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "stop": list(sampling.stops),
        "stop_token_ids": sorted(eos_ids),
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }


def make_raw_completion(
    tokens: Sequence[Any],
    logprobs: Sequence[Any] | None,
    sampling: Sampling,
    *,
    scaled: bool,
    finish_reason: object,
    weights: str | None = None,
) -> RawCompletion:
    """The validated ids and log-probabilities, which are dropped if they are those before temperature (not `scaled`) at
    any temperature but 0 and 1. Raises ValueError or TypeError if they are malformed."""
    if not all(type(token) is int and 0 <= token < 2**31 for token in tokens):
        raise ValueError("invalid token ids")
    values = None
    if logprobs is not None and (scaled or sampling.temperature in (0.0, 1.0)):
        values = tuple(map(float, logprobs))
        if len(values) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens with {len(values)} log-probabilities")
        if not all(map(math.isfinite, values)):
            raise ValueError("log-probabilities that are not finite")
    return RawCompletion(tokens=tuple(tokens), logprobs=values, finish_reason=str(finish_reason), weights=weights)


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
    limit = len(raw.tokens) if raw.encoded else limit
    tokens = np.array(raw.tokens[:limit], dtype=np.int64)
    logprobs = np.zeros(len(tokens)) if raw.logprobs is None else np.array(raw.logprobs[:limit])
    request = Request(prompt, sampling, limit=limit, tokenizer=tokenizer)
    before = tokens[:-1].tolist()
    ends_early = any(token in eos_ids for token in before)
    ends_early = ends_early or stop_end(decode(tokenizer, before), sampling.stops) is not None
    for count in range(1 if ends_early else len(tokens), len(tokens) + 1):
        request.update(tokens[:count], logprobs[:count], eos_ids=eos_ids, policy_version=None)
        if request.stop is not None:
            whole = request.inbox.get_nowait()
            assert isinstance(whole, Completion)
            return whole if raw.logprobs is not None else replace(whole, logprobs=None)
    raise ValueError(
        f"ended a turn ({raw.finish_reason}) after {len(tokens)} of {limit} tokens without a stop string or an end "
        "token: its context is too short, or it serves another tokenizer"
    )
