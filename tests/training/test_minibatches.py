"""Several updates on the episodes of a step: against a plain version, resumed to the bit, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from tiny_models import in_float64
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM
from written_groups import make_group, written

from sleuth.learn.batch import Batch, Row, collate
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.optim import Optimisation, scheduled_learning_rate
from sleuth.learn.policy import Policy, TokenBudget, Update
from sleuth.recipe import GrpoRecipe, load_recipe
from sleuth.recipe.loss import NAMED_LOSSES, LossRecipe, SamplingRecipe
from sleuth.training.learning import batches_of_step, combined, policy_loss_of, update_on
from sleuth.types import Score, Segment, Trajectory

LETTERS = 24
BOUNDS = {"low": 0.05, "high": 0.1}


def tiny(seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=LETTERS, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def plain_logprobs(model: Qwen3ForCausalLM, batch: Batch) -> Tensor:
    """(B, T), from a padded pass of the model."""
    distribution = model(batch.tokens).logits.log_softmax(dim=-1)
    chosen = distribution[:, :-1].gather(2, batch.tokens[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(chosen, (1, 0)) * batch.trained


def frozen_batch(model: Qwen3ForCausalLM, seed: int, rows: int) -> Batch:
    """Rows whose old log-probabilities are those of the model."""
    draw = random.Random(seed)

    def row() -> Row:
        prompt, written = draw.randint(1, 4), draw.randint(1, 6)
        tokens = tuple(draw.randrange(1, LETTERS) for _ in range(prompt + written))
        trained = (False,) * prompt + (True,) * written
        return Row(tokens=tokens, trained=trained, advantage=draw.uniform(-2, 2), sampler_logprobs=(0.0,) * len(tokens))

    batch = collate([row() for _ in range(rows)])
    with torch.no_grad():
        sampled = plain_logprobs(model, batch)
    assert batch.sampler_logprobs is not None
    batch.sampler_logprobs.copy_(sampled)
    return batch


def plain_updates(model: Qwen3ForCausalLM, batches: Sequence[Batch], *, passes: int, rates: Iterator[float]) -> float:
    """PPO's clipped objective as it is written (arXiv:1707.06347), by autograd and torch's AdamW; the share of clipped
    tokens, as the mean over all updates."""
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    clipped = []
    for batch in [batch for _ in range(passes) for batch in batches]:
        assert batch.sampler_logprobs is not None
        ratio = (plain_logprobs(model, batch) - batch.sampler_logprobs).exp()
        bounded = ratio.clamp(1 - BOUNDS["low"], 1 + BOUNDS["high"])
        gain = torch.minimum(ratio * batch.advantages, bounded * batch.advantages)
        tokens = batch.trained.sum()
        loss = -(gain * batch.trained).sum() / tokens
        beyond = ((batch.advantages > 0) & (ratio > 1 + BOUNDS["high"])) | (
            (batch.advantages < 0) & (ratio < 1 - BOUNDS["low"])
        )
        clipped.append(float((beyond * batch.trained).sum() / tokens))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = next(rates)
        optimiser.step()
    return sum(clipped) / len(clipped)


SETTINGS = Optimisation(steps=9, learning_rate=0.02, warmup_steps=4, betas=(0.9, 0.95))
LOSS = PolicyLoss(old_logprobs="sampler", clip_low=BOUNDS["low"], clip_high=BOUNDS["high"])


def updated(policy: Policy, batches: Sequence[Batch], passes: int) -> Update:
    return update_on(policy, batches, LOSS, TokenBudget(4096), passes=passes)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 3), st.integers(1, 3))
def test_several_updates_are_those_of_the_plain_formula(seed, passes, minibatches):
    model = in_float64(tiny(seed))  # AdamW turns what fp32 rounds of a gradient near zero into whole steps
    batches = [frozen_batch(model, seed + at, rows=3) for at in range(minibatches)]
    plain, policy = copy.deepcopy(model), Policy(model, SETTINGS)
    rate = scheduled_learning_rate(0, SETTINGS)
    clipped = plain_updates(plain, batches, passes=passes, rates=iter([rate] * passes * minibatches))
    update = updated(policy, batches, passes)
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), weight, rtol=1e-6, atol=1e-8)
    assert update.clip_fraction == pytest.approx(clipped, abs=1e-6)
    assert update.sampler_learner_kl == pytest.approx(0, abs=1e-6)
    assert policy.optimiser.steps == 1


def test_figures_of_several_updates():
    first = Update(loss=1.0, entropy=2.0, clip_fraction=0.0, sampler_learner_kl=0.1, gradient_norm=1.0,
                   learning_rate=0.5, changed_weights_fraction=0.25, tokens_trained=10, tokens_computed=40,
                   tokens_dense=80)  # fmt: skip
    second = dataclasses.replace(
        first, loss=3.0, entropy=4.0, clip_fraction=0.5, sampler_learner_kl=0.7, gradient_norm=3.0,
        changed_weights_fraction=0.75, tokens_trained=20, tokens_computed=50, tokens_dense=90,
    )  # fmt: skip
    assert combined([first], first_pass=1) == first
    minibatches, passes = combined([first, second], first_pass=2), combined([first, second], first_pass=1)
    assert (minibatches.loss, minibatches.entropy, minibatches.tokens_trained) == (2.0, 3.0, 30)
    assert (passes.loss, passes.entropy, passes.tokens_trained) == (1.0, 2.0, 10)
    for both in (minibatches, passes):
        assert (both.clip_fraction, both.gradient_norm, both.sampler_learner_kl, both.kl) == (0.25, 2.0, 0.1, None)
        assert (both.changed_weights_fraction, both.tokens_computed, both.tokens_dense) == (0.75, 90, 170)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(None, ["abcd"]), (4, ["abcd"]), (3, ["abc", "d"]), (2, ["ab", "cd"]), (1, ["a", "b", "d"])],
)
def test_minibatches_are_groups_in_their_order_and_one_without_a_gradient_is_left_out(recipe_file, size, expected):
    stage = load_recipe(recipe_file).stage[1]
    assert isinstance(stage, GrpoRecipe)
    stage = stage.model_copy(update={"prompts_per_update": size})
    asked = Segment(author="template", tokens=(1, 2), text="?")
    texts = {name: Trajectory(segments=(asked, written(ord(name), 3))) for name in "abxcd"}
    groups = [make_group((text, Score(value=1.0)), (text, Score(value=0.0)), name=name) for name, text in texts.items()]
    advantages: list[list[float | None]] = [[1.0, -1.0], [1.0, -1.0], [None, None], [0.0, 0.0], [1.0, -1.0]]
    batches = batches_of_step(groups, advantages, stage)
    assert ["".join(map(chr, batch.tokens[::2, 2])) for batch in batches] == expected
    assert [float(batch.weights.sum()) for batch in batches] == pytest.approx([1.0] * len(batches))


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ("prompts_per_update=5",),
            "stage.1.prompts_per_update = 5 is more than the prompts_per_step = 4 of a step; remove it, or set fewer",
        ),
        (
            ("updates_per_batch=2", "loss.old_logprobs=learner"),
            'stage.1.updates_per_batch = 2 needs loss.old_logprobs = "sampler"',
        ),
        (
            ("prompts_per_update=2", "loss.old_logprobs=learner"),
            'stage.1.prompts_per_update = 2 needs loss.old_logprobs = "sampler"',
        ),
    ],
)
def test_updates_that_do_not_fit_are_refused(recipe_file, overrides, problem):
    assert problem in refused(recipe_file, *(f"stage.1.{override}" for override in overrides))


# -- the loss of a recipe ----------------------------------------------------------------------------------------------


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
def test_every_key_of_the_loss_reaches_the_policy(keys):
    recipe = LossRecipe(**keys)
    stage = SimpleNamespace(loss=recipe, sampling=SamplingRecipe(temperature=0.7))
    loss = dataclasses.asdict(policy_loss_of(stage))  # pyright: ignore[reportArgumentType]
    assert (loss.pop("temperature"), loss.pop("step")) == (0.7, 0)
    assert loss == {key: value for key, value in recipe.model_dump().items() if key not in ELSEWHERE}
    assert loss.keys() == dataclasses.asdict(PolicyLoss()).keys() - {"temperature", "step"}
