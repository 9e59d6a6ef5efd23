"""What a server wrote, read as the engine in this process reads what it wrote itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedTokenizerFast

from sleuth.engines.remote.wire import Written
from sleuth.engines.request import Request
from sleuth.engines.stops import end_of_stop
from sleuth.render import decode, encode
from sleuth.types import Completion, Sampling


def completion_of(
    written: Written,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    limit: int,
    tokenizer: PreTrainedTokenizerFast,
    ends: Collection[int],
) -> Completion:
    """What the ids amount to: text and stop are read off them, and nothing that the server says of either counts.
    Servers that write several tokens at once may leave some behind a stop. Raises ValueError where the turn has no end.
    """
    tokens = np.array((written.tokens or ())[:limit], dtype=np.int64)
    logprobs = np.zeros(len(tokens)) if written.logprobs is None else np.array(written.logprobs[:limit])
    request = Request(prompt, sampling, limit=limit, tokenizer=tokenizer)
    overshot = _overshot(tokens.tolist(), sampling, tokenizer, ends)
    for count in range(1 if overshot else len(tokens), len(tokens) + 1):
        request.look(tokens[:count], logprobs[:count], ends=ends, policy_version=None)
        if request.stop is not None:
            whole = request.inbox.get_nowait()
            assert isinstance(whole, Completion)
            return whole if written.logprobs is not None else replace(whole, logprobs=None)
    raise ValueError(
        f"ended a turn ({written.ended}) after {len(tokens)} of {limit} tokens without a stop string or an end token: "
        "its context is too short, or it serves another tokenizer"
    )


def completion_of_text(written: Written, sampling: Sampling, tokenizer: PreTrainedTokenizerFast) -> Completion:
    """What a server wrote that gives text alone, with ids that are encoded from it."""
    end = end_of_stop(written.text, sampling.stops)
    if end is not None:
        text, stop = written.text[:end], "stop"
    elif written.ended == "length":
        text, stop = written.text, "length"
    else:
        text, stop = written.text.removesuffix(str(tokenizer.eos_token)), "eos"
    tokens = encode(tokenizer, text)
    if stop == "eos" and isinstance(tokenizer.eos_token_id, int):
        tokens.append(tokenizer.eos_token_id)
    return Completion(tokens=tuple(tokens), logprobs=None, text=text, stop=stop)


def _overshot(
    tokens: Sequence[int], sampling: Sampling, tokenizer: PreTrainedTokenizerFast, ends: Collection[int]
) -> bool:
    """Whether the turn was over before the last token."""
    before = tokens[:-1]
    return any(token in ends for token in before) or end_of_stop(decode(tokenizer, before), sampling.stops) is not None
