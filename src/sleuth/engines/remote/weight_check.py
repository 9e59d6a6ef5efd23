"""Whether a server has the learner's weights, by what it writes: a label is only what it says."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import torch
from transformers import PreTrainedModel

from sleuth.types import SleuthError

CHECK_TOKENS = 16
APART = {torch.float32: 1e-3}
"""Mean difference of log-probabilities, in nats, that two programs may have with the same weights in float32."""
APART_BELOW_FLOAT32 = 0.1
"""The same in half precision, where sums depend on the order of their terms."""


def learner_logprobs(
    model: PreTrainedModel, prompt: Sequence[int], written: Sequence[int], temperature: float
) -> list[float]:
    """What the learner holds of tokens written behind a prompt, at that temperature."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            tokens = torch.tensor([[*prompt, *written]], device=model.device)
            logits = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
            told = (logits / temperature).log_softmax(dim=-1).gather(1, tokens[0, len(prompt) :, None])
    finally:
        model.train(training)
    return told[:, 0].tolist()


def require_same_weights(
    model: PreTrainedModel,
    prompt: Sequence[int],
    written: Sequence[int],
    told: Sequence[float],
    *,
    temperature: float,
    who: str,
    label: str,
) -> float:
    """How far apart server and learner are, in nats. Raises SleuthError where these are not the same weights."""
    ours = learner_logprobs(model, prompt, written, temperature)
    apart = fmean(abs(one - other) for one, other in zip(ours, told, strict=True))
    allowed = APART.get(model.dtype, APART_BELOW_FLOAT32)
    if not apart <= allowed:
        raise SleuthError(
            f"{who}: says that it has the weights {label}, and writes with others: its log-probabilities are "
            f"{apart:.3g} apart from the learner's, where {allowed:g} is allowed; nothing of it was trained on"
        )
    return apart
