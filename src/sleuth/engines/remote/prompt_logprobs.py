"""Log-probabilities of given tokens from a server of vLLM's or SGLang's.

Facts, read in vLLM 0.32.0 (entrypoints/openai/completion, sampling_params.py) and in public clients of SGLang in
November 2026:

- vLLM: `prompt_logprobs = k` in `/v1/completions` puts a list into the choice, null for the first token and then
  an object for each: the token and the k likeliest ones by their ids (as text), with `logprob` and `rank`. `max_tokens`
  must be at least 1, so the prompt must be shorter than the context. k may not be above `--max-logprobs` (20). -9999
  stands for minus infinity.
- SGLang: `/generate` with `return_logprob`, `logprob_start_len` and `max_new_tokens` 0; then
  `meta_info.input_token_logprobs` has [log-probability, id, text or null] from that token on, the first without a
  log-probability, and `input_top_logprobs` with `top_logprobs_num = k` a list of k such entries for each, null for the
  first. What was cached of the tokens before `logprob_start_len` is not computed again.
- Neither divides by a temperature here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sleuth.engines.remote.server import Server
from sleuth.engines.remote.wire import Body
from sleuth.types import PromptLogprobs


def prompt_logprobs_path(server: Server) -> str:
    """The endpoint that returns them."""
    return "/generate" if server.kind == "SGLang" else "/v1/completions"


def prompt_logprobs_body(server: Server, tokens: Sequence[int], *, first: int, top_k: int) -> Body:
    """A request for those of `tokens` from the index `first` (1 or more) on, with the `top_k` likeliest of each
    place."""
    if server.kind == "SGLang":
        return {
            "input_ids": list(tokens),
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": first - 1,
            "top_logprobs_num": top_k,
        }
    return {
        "model": server.model,
        "prompt": list(tokens),
        "max_tokens": 1,
        "temperature": 1.0,
        "prompt_logprobs": top_k,
    }


def read_prompt_logprobs(answer: Any, tokens: Sequence[int], *, first: int, top_k: int) -> PromptLogprobs | None:
    """The parsed answer of either server; None if there are no log-probabilities in it. Raises one of `MALFORMED` for
    another shape, other tokens than those that were sent, or numbers that are not finite."""
    if "meta_info" in answer:
        found = _of_sglang(answer["meta_info"], tokens, first, top_k)
    else:
        [choice] = answer["choices"]
        found = _of_vllm(choice.get("prompt_logprobs"), tokens, first, top_k)
    if found is None:
        return None
    logprobs, top = found
    if len(logprobs) != len(tokens) - first:
        raise ValueError(f"{len(logprobs)} log-probabilities for {len(tokens) - first} tokens")
    if any(len(entries) < top_k for entries in top):
        raise ValueError(f"fewer than {top_k} likeliest tokens")
    if not all(map(math.isfinite, [*logprobs, *(logprob for entries in top for _, logprob in entries)])):
        raise ValueError("log-probabilities that are not finite")
    return PromptLogprobs(logprobs=(0.0,) * first + tuple(logprobs), top=((),) * first + tuple(top))


Found = tuple[list[float], list[tuple[tuple[int, float], ...]]]


def _of_vllm(
    entries: Sequence[Mapping[str, Any] | None] | None, tokens: Sequence[int], first: int, k: int
) -> Found | None:
    if entries is None:
        return None
    if len(entries) != len(tokens):
        raise ValueError(f"{len(entries)} prompt log-probabilities for {len(tokens)} tokens")
    logprobs, top = [], []
    for token, entry in zip(tokens[first:], entries[first:], strict=True):
        if entry is None:
            return None
        logprobs.append(float(entry[str(token)]["logprob"]))
        by_rank = sorted(entry.items(), key=lambda item: int(item[1]["rank"]))
        top.append(tuple((int(number), float(of_token["logprob"])) for number, of_token in by_rank[:k]))
    return logprobs, top


def _of_sglang(info: Mapping[str, Any], tokens: Sequence[int], first: int, k: int) -> Found | None:
    entries = info.get("input_token_logprobs")
    if not entries:
        return None
    entries = entries[first - len(tokens) :]
    if [entry[1] for entry in entries] != list(tokens[first:]):
        raise ValueError("log-probabilities of other tokens")
    tops = info["input_top_logprobs"][first - len(tokens) :] if k else [()] * len(entries)
    return (
        [float(entry[0]) for entry in entries],
        [tuple((int(entry[1]), float(entry[0])) for entry in of_token[:k]) for of_token in tops],
    )
