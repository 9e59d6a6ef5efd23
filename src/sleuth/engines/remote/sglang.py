"""SGLang's native API: token ids in, token ids and log-probabilities out.

Facts, read in SGLang's repository in November 2026 (docs/basic_usage/sampling_params.md at 0a0dd3590799 and, below
python/sglang/srt, sampling/sampling_params.py at 00c17cafcb9e, entrypoints/http_server.py at 0025436eab05 and
managers/detokenizer_manager.py at 000935bdda57):

- `POST /generate` takes `input_ids`, `sampling_params` and `return_logprob`. `meta_info.output_token_logprobs` is then
  a list of [log-probability, token id, text or null], one for each sampled token; `meta_info.finish_reason` is an
  object whose `type` is stop, length or abort.
- What a request leaves out is taken from the model's generation config (`--sampling-defaults model`, the default).
- The stop string is cut off the text, and the end token with it, unless `no_stop_trim`.
- At temperature 0 it takes the likeliest token and reports log-probabilities at temperature 1.
- `sampling_seed` is meant for `--enable-deterministic-inference`; elsewhere a draw cannot be repeated.

SGLang 0.5.23, run on a CPU, did all of this. An aborted request returns, with status 200, what it had sampled.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sleuth.engines.remote.wire import (
    Aborted,
    Body,
    RawCompletion,
    are_sampling_logprobs,
    checked_tokens,
    sampling_parameters,
)
from sleuth.engines.sampling import request_seed
from sleuth.types import Sampling


@dataclass(frozen=True, slots=True)
class SglangWire:
    """`POST /generate`. `scaled`: log-probabilities after temperature (no `SGLANG_RETURN_ORIGINAL_LOGPROB`)."""

    scaled: bool = True
    path: str = "/generate"

    def body(self, prompt: Sequence[int], sampling: Sampling, *, limit: int, eos_ids: Collection[int]) -> Body:
        """See `Wire`."""
        params: dict[str, Any] = {
            "max_new_tokens": limit,
            **sampling_parameters(sampling, eos_ids),
            "no_stop_trim": True,
        }
        if sampling.temperature:
            params["sampling_seed"] = request_seed(sampling.key)
        return {"input_ids": list(prompt), "sampling_params": params, "return_logprob": True}

    def read(self, answer: dict[str, Any], sampling: Sampling) -> RawCompletion:
        """See `Wire`."""
        info = answer["meta_info"]
        finish_reason = info["finish_reason"]
        if finish_reason["type"] == "abort":
            raise Aborted(f"it gave up: {finish_reason.get('message') or 'without a reason'}")
        sampled = info["output_token_logprobs"]
        kept = [entry[0] for entry in sampled] if are_sampling_logprobs(sampling, scaled=self.scaled) else None
        tokens, logprobs = checked_tokens([entry[1] for entry in sampled], kept)
        weights = info.get("weight_version")
        return RawCompletion(
            tokens=tokens,
            logprobs=logprobs,
            text=str(answer["text"]),
            finish_reason=str(finish_reason["type"]),
            weights=None if weights is None else str(weights),
        )
