"""What a policy is sampled at, and what its tokens are pulled by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from sleuth.recipe.strict import StrictModel, combination

_FULL_SUPPORT = (
    "is no key: sampling for RL needs full support, because a token that cannot be sampled has no true "
    "log-probability, and the gradient would be of another policy than the one that sampled"
)


class SamplingRecipe(StrictModel):
    """How the policy is sampled for training. The support is always the whole vocabulary."""

    refused = dict.fromkeys(("top_p", "top_k", "min_p"), _FULL_SUPPORT)

    temperature: PositiveFloat = 1.0
    """Divides the logits; log-probabilities are taken at the same temperature."""


NAMED_LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"advantage": "grpo", "normalise": "sequence", "policy_loss": "clip", "ratio": "token",
             "clip_low": 0.2, "clip_high": 0.2},
    "dr_grpo": {"advantage": "centered", "normalise": "constant", "policy_loss": "clip", "ratio": "token",
                "clip_low": 0.2, "clip_high": 0.2},
    "dapo": {"advantage": "grpo", "normalise": "token", "policy_loss": "clip", "ratio": "token",
             "clip_low": 0.2, "clip_high": 0.28},
    "gspo": {"advantage": "grpo", "normalise": "sequence", "policy_loss": "clip", "ratio": "sequence",
             "clip_low": 3e-4, "clip_high": 4e-4, "old": "sampler"},
    "cispo": {"advantage": "grpo", "normalise": "token", "policy_loss": "cispo", "ratio": "token",
              "clip_low": 1.0, "clip_high": 4.0, "old": "sampler"},
}  # fmt: skip
"""The published losses by name: arXiv:2402.03300, 2503.20783, 2503.14476, 2507.18071 and 2506.13585.

No KL is part of a name. GRPO's and Dr. GRPO's bounds are PPO's; CISPO's cap of 5 is ScaleRL's (arXiv:2510.13786).
"""


class LossRecipe(StrictModel):
    """How scores become a gradient."""

    setting: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"] | None = None
    """A published loss by its name, which sets the keys that belong to it; a key that says otherwise is refused."""
    advantage: Literal["grpo", "centered", "rloo", "best"] = "grpo"
    """(x - mean) / std (arXiv:2402.03300), x - mean (arXiv:2503.20783), or leave-one-out (arXiv:2402.14740); or no
    policy gradient: the best of each group is imitated if its score is above 0 (with old = "learner")."""
    std_floor: PositiveFloat = 1e-4
    """The least standard deviation that "grpo" divides by."""
    policy_loss: Literal["clip", "cispo"] = "clip"
    """What the bounds do: end the pull of a token beyond them (arXiv:1707.06347), or cap its weight and keep the pull
    (arXiv:2506.13585)."""
    old: Literal["sampler", "learner"] = "sampler"
    """Where the ratio starts: what the sampler said of its tokens, or the learner before its update, so that it is 1
    and no bound acts."""
    ratio: Literal["token", "sequence"] = "token"
    """A ratio for each token, or one for all that the policy wrote in a trajectory (arXiv:2507.18071)."""
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    """The ratio is clipped below at 1 - clip_low; 1 leaves that side free."""
    clip_high: PositiveFloat = 0.28
    """The ratio is clipped above at 1 + clip_high (clip-higher: arXiv:2503.14476)."""
    kl: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the divergence from the stage's first weights."""
    beta: NonNegativeFloat = 0.0
    """Weight of that divergence; 0 keeps no reference model."""
    normalise: Literal["token", "sequence", "constant"] = "token"
    """Mean over the step's tokens (arXiv:2503.14476), mean of the sequences' means (arXiv:2402.03300), or each
    sequence's sum over `constant` (arXiv:2503.20783)."""
    constant: PositiveInt | None = None
    """The tokens that each sequence's sum is divided by; only with normalise = "constant"."""
    tis_cap: PositiveFloat | None = None
    """Cap of truncated importance weights between sampler and learner; absent leaves them out."""
    sequence_mask: Annotated[float, Field(gt=1)] | None = None
    """A trajectory whose tokens the learner holds more likely than the sampler did, or less, by more than this factor
    on their geometric mean, pulls on nothing; absent: all pull."""

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
                    f'{key} = {json.dumps(getattr(self, key))} is not setting = "{self.setting}", where it is '
                    f"{json.dumps(value)}; leave one of the two out"
                )

    @combination
    def _old_fits(self) -> Iterator[str]:
        if self.advantage == "best" and self.old != "learner":
            yield 'old = "sampler" has no part in advantage = "best", which imitates; set old = "learner"'
        if self.old == "sampler" and self.tis_cap is not None:
            yield 'tis_cap says what old = "sampler" says already; leave one of the two out'
        if self.old == "learner":
            for key, value in (("ratio", "sequence"), ("policy_loss", "cispo")):
                if getattr(self, key) == value:
                    yield (
                        f'{key} = "{value}" has no effect with old = "learner", where every ratio is 1; '
                        'it needs old = "sampler"'
                    )

    @combination
    def _constant_fits(self) -> Iterator[str]:
        if self.normalise == "constant" and self.constant is None:
            yield 'constant is missing: normalise = "constant" divides by it'
        if self.normalise != "constant" and self.constant is not None:
            yield (f'constant = {self.constant} has no effect with normalise = "{self.normalise}"; leave it out')
