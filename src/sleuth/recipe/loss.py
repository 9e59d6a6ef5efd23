"""`[stage.sampling]` and `[stage.loss]`: how a policy is sampled, and its policy-gradient loss."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from pydantic_core import PydanticKnownError

from sleuth.own.functions import resolved
from sleuth.recipe.schedule import Scheduled
from sleuth.recipe.strict import FilePath, FunctionName, Row, StrictModel, combination

_FULL_SUPPORT = (
    "is not supported: RL samples from the whole vocabulary, because truncated sampling has other log-probabilities "
    "than the learner's, and the gradient would be of another policy than the one that sampled"
)


class SamplingRecipe(StrictModel):
    """How the policy is sampled for training, always from the whole vocabulary."""

    refused = dict.fromkeys(("top_p", "top_k", "min_p"), _FULL_SUPPORT)

    temperature: Annotated[PositiveFloat, Scheduled()] = 1.0
    """Divides the logits; log-probabilities are taken at the same temperature. In a `grpo` stage with the in-process
    engine it may have a schedule."""


NAMED_LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"advantage": "grpo", "normalise": "sequence", "policy_loss": "clip", "ratio": "token",
             "clip_low": 0.2, "clip_high": 0.2},
    "dr_grpo": {"advantage": "centered", "normalise": "constant", "policy_loss": "clip", "ratio": "token",
                "clip_low": 0.2, "clip_high": 0.2},
    "dapo": {"advantage": "grpo", "normalise": "token", "policy_loss": "clip", "ratio": "token",
             "clip_low": 0.2, "clip_high": 0.28},
    "gspo": {"advantage": "grpo", "normalise": "sequence", "policy_loss": "clip", "ratio": "sequence",
             "clip_low": 3e-4, "clip_high": 4e-4, "old_logprobs": "sampler"},
    "cispo": {"advantage": "grpo", "normalise": "token", "policy_loss": "cispo", "ratio": "token",
              "clip_low": 1.0, "clip_high": 4.0, "old_logprobs": "sampler"},
}  # fmt: skip
"""The published losses by name: arXiv:2402.03300, 2503.20783, 2503.14476, 2507.18071 and 2506.13585.

No setting includes a KL term. The bounds of GRPO and Dr. GRPO are PPO's; CISPO's cap of 5 is ScaleRL's
(arXiv:2510.13786).
"""


ADVANTAGES = ("grpo", "centered", "rloo", "best", "none")


def _advantage(name: str) -> str:
    if ":" not in name and name not in ADVANTAGES:
        raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, (*ADVANTAGES, "MODULE:NAME")))})
    return resolved(name, [Path()])


class LossRecipe(StrictModel):
    """The policy-gradient loss."""

    named: ClassVar[Mapping[str, str]] = {"function": "function", "files": "files"}
    setting: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"] | None = None
    """A published loss by name. It sets the keys that define it; another value of one of these is an error."""
    advantage: Annotated[str, AfterValidator(_advantage)] = "grpo"
    """How scores x of a group become advantages. "grpo": (x - mean) / std (arXiv:2402.03300); "centered": x - mean
    (arXiv:2503.20783); "rloo": leave-one-out (arXiv:2402.14740); "best": no policy gradient, but cross-entropy on the
    best episode of each group if its score is above 0 (needs old_logprobs = "learner"); "none": 0, so that only a
    teacher or credit trains. `MODULE:NAME`: a function of your own, of the `scores` of a group, None where one is
    missing, or of the `batch`, a list of them (docs/how-to/own_code.md)."""
    policy_loss: Literal["clip", "cispo"] = "clip"
    """Effect of the bounds: "clip" drops the gradient of tokens beyond them (PPO: arXiv:1707.06347); "cispo" caps the
    importance weight and keeps the gradient (arXiv:2506.13585)."""
    function: FunctionName | None = None
    """A loss of your own in place of `policy_loss`, `MODULE:NAME`: `def mine(logprobs, old_logprobs, advantages,
    weights)` on tensors (R, T) returns a sum over tokens, each times its weight (docs/how-to/own_code.md). `low`,
    `high`, `step`, `beta` and `reference` are passed if it takes them."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the function, by name: `[stage.loss.parameters]`."""
    files: Row[FilePath] = ()
    """Files that the function reads, hashed like code: a run does not continue when one has changed."""
    old_logprobs: Literal["sampler", "learner"] = "sampler"
    """Denominator of the ratio: the log-probabilities of the sampler, or those of the learner before its update, with
    which every ratio is 1 and nothing is clipped."""
    ratio: Literal["token", "sequence"] = "token"
    """One ratio for each token, or one for all policy tokens of a trajectory (arXiv:2507.18071)."""
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Lower bound of the ratio: 1 - clip_low; 1 removes this bound."""
    clip_high: PositiveFloat = 0.28
    """Upper bound of the ratio: 1 + clip_high (clip-higher: arXiv:2503.14476)."""
    kl: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL divergence from the weights at the start of the stage."""
    beta: Annotated[NonNegativeFloat, Scheduled()] = 0.0
    """Weight of the KL term; 0: no KL term and no reference model. A schedule is a table of numbers by the steps that
    were made, `{ 0 = 0.1, 100 = 0.02 }`, linear in between, or the `MODULE:NAME` of a function (step, metrics)."""
    normalise: Literal["token", "sequence", "constant"] = "token"
    """How token losses are averaged. "token": mean over all tokens of the step (arXiv:2503.14476); "sequence": mean of
    the means of the sequences (arXiv:2402.03300); "constant": sum of each sequence over `constant`
    (arXiv:2503.20783)."""
    constant: PositiveInt | None = None
    """Divisor in tokens; only with normalise = "constant"."""
    tis_cap: PositiveFloat | None = None
    """Cap of truncated importance weights between learner and sampler; absent: no such weights."""

    @property
    def own_advantage(self) -> str | None:
        """The user's function that computes advantages; None if one of ours does."""
        return self.advantage if ":" in self.advantage else None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, table: Any) -> Any:
        named = NAMED_LOSSES.get(str(table.get("setting")), {}) if isinstance(table, dict) else {}
        return named | table if named else table

    @combination
    def _is_as_named(self) -> Iterator[str]:
        for key, value in NAMED_LOSSES.get(self.setting or "", {}).items():
            if getattr(self, key) != value:
                yield (
                    f'{key} = {json.dumps(getattr(self, key))} contradicts setting = "{self.setting}", which sets '
                    f"{json.dumps(value)}; remove one of the two"
                )

    @combination
    def _keys_fit(self) -> Iterator[str]:
        if self.parameters and self.function is None:
            yield "parameters have no effect without function, a loss of your own; remove them"
        if self.files and self.function is None and self.own_advantage is None:
            yield "files have no effect without function, a loss of your own; remove them"
        if self.function is not None and self.policy_loss == "cispo":
            yield 'policy_loss = "cispo" has no effect with function, which replaces it; remove one of the two'

        if self.advantage == "best" and self.old_logprobs != "learner":
            yield 'old_logprobs = "sampler" has no effect with advantage = "best"; set old_logprobs = "learner"'
        if self.old_logprobs == "sampler" and self.tis_cap is not None:
            yield 'tis_cap repeats the correction of old_logprobs = "sampler"; remove one of the two'
        if self.old_logprobs == "learner":
            for key, value in (("ratio", "sequence"), ("policy_loss", "cispo")):
                if getattr(self, key) == value:
                    yield (
                        f'{key} = "{value}" has no effect with old_logprobs = "learner", where every ratio is 1; '
                        'it needs old_logprobs = "sampler"'
                    )

        if self.normalise == "constant" and self.constant is None:
            yield 'constant is missing: normalise = "constant" divides by it'
        if self.normalise != "constant" and self.constant is not None:
            yield f'constant = {self.constant} has no effect with normalise = "{self.normalise}"; remove it'
