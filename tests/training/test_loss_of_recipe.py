from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from sleuth.learn.objective import PolicyLoss
from sleuth.recipe.loss import NAMED_LOSSES, LossRecipe, SamplingRecipe
from sleuth.training.learning import policy_loss_of

ELSEWHERE = {"setting", "advantage", "normalise", "constant", "parameters", "files"}
"""Keys of `[stage.loss]` that act before the loss, on advantages and on weights, or in the user's function."""


@pytest.mark.parametrize(
    "keys",
    [
        {"policy_loss": "cispo", "old_logprobs": "sampler", "ratio": "sequence", "clip_low": 0.9, "clip_high": 3.0},
        {"kl": "k2", "beta": 0.5, "tis_cap": 2.0, "old_logprobs": "learner"},
        *({"setting": name} | ({"constant": 9} if name == "dr_grpo" else {}) for name in NAMED_LOSSES),
    ],
)
def test_every_key_of_the_loss_reaches_the_policy(keys) -> None:
    recipe = LossRecipe(**keys)
    stage = SimpleNamespace(loss=recipe, sampling=SamplingRecipe(temperature=0.7))
    loss = dataclasses.asdict(policy_loss_of(stage))  # pyright: ignore[reportArgumentType]
    assert loss.pop("temperature") == 0.7
    assert loss == {key: value for key, value in recipe.model_dump().items() if key not in ELSEWHERE}
    assert loss.keys() == dataclasses.asdict(PolicyLoss()).keys() - {"temperature"}
