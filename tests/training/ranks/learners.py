"""What the tests of ranks let several processes do: each builds the same tiny policy and the same batch."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from plain_models import FAMILIES as PLAIN
from plain_models import plain_model
from tiny_models import FAMILIES, VOCABULARY
from transformers import PreTrainedModel

from sleuth.learn.adapters import Adapters, add_adapters
from sleuth.learn.batch import Batch, Row, collate
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.master_weights import MasterWeights
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, frozen_copy
from sleuth.learn.shards import Shards
from sleuth.ranks import Ranks
from sleuth.think.dpo import PreferenceLoss, PreferenceUpdate, pair_batch

SETTINGS = Optimisation(steps=10, learning_rate=1e-3, warmup_steps=2, weight_decay=0.01)
LOSS = PolicyLoss(old_logprobs="sampler", clip_high=0.28, beta=0.1)
LORA = Adapters(rank=4, alpha=8.0, targets=("q_proj", "v_proj", "up_proj"))
TIMES = 3  # updates of a run


def model_of(family: str = "qwen3", seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The same weights for the same family and seed."""
    if family in PLAIN:
        return plain_model(family, VOCABULARY, seed=seed).to(dtype)
    torch.manual_seed(seed)
    return FAMILIES[family]().to(dtype).eval()


def rows_of(count: int, seed: int) -> list[Row]:
    """Ragged rows of which every third begins alike."""
    draw = random.Random(seed)
    prompts = [tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(3, 9))) for _ in range(3)]

    def row(prompt: tuple[int, ...]) -> Row:
        written = draw.randint(2, 12)
        return Row(
            tokens=(*prompt, *(draw.randrange(VOCABULARY) for _ in range(written))),
            trained=(False,) * len(prompt) + (True,) * written,
            advantage=draw.uniform(-2, 2),
            sampler_logprobs=(0.0,) * len(prompt) + tuple(-draw.uniform(2.0, 5.0) for _ in range(written)),
        )

    return [row(prompts[number % 3]) for number in range(count)]


def batch_of(kind: str, seed: int) -> Batch:
    """Nine rows, or five pairs."""
    if kind == "prefer":
        rows = rows_of(10, seed)
        return pair_batch([*zip(rows[::2], rows[1::2], strict=True)])
    rows = rows_of(9, seed)
    if kind == "follow":  # every second row
        rows = [replace(row, guidance=number % 2 * 0.5) for number, row in enumerate(rows)]
    return collate(rows, normalise="sequence")


def policy_on(
    ranks: Ranks,
    family: str = "qwen3",
    dtype: torch.dtype = torch.float32,
    *,
    model: PreTrainedModel | None = None,
    recompute: bool = False,
    offload: bool = False,
    replica: int | None = None,
) -> Policy:
    """A policy with a reference and a teacher, on these ranks, of which `replica` hold the weights."""
    sharded = partial(Shards, ranks=ranks, offload=offload, ranks_per_replica=replica)
    holding = MasterWeights if ranks.alone else sharded
    reference, teacher = (frozen_copy(model_of(family, seed=seed, dtype=dtype)) for seed in (1, 3))
    options = {"teacher": teacher, "gradient_checkpointing": recompute, "holding": holding}
    return Policy(model or model_of(family, dtype=dtype), SETTINGS, reference, **options)


def step(policy: Policy, kind: str, seed: int, budget: int = 40) -> dict[str, Any]:
    """The figures of one update of this kind."""
    batch = batch_of(kind, seed)
    if kind in ("update", "follow"):
        return asdict(policy.update(batch, LOSS, budget=budget))
    if kind == "prefer":
        return asdict(policy.minimise(batch, PreferenceLoss(beta=0.3), PreferenceUpdate, budget=budget))
    return asdict(policy.supervise(batch, budget=budget))


def gradient(
    ranks: Ranks, family: str, recompute: bool, offload: bool = False, replica: int | None = None
) -> tuple[float, torch.Tensor]:
    """Loss and gradient of a policy loss."""
    policy = policy_on(ranks, family, recompute=recompute, offload=offload, replica=replica)
    return policy.gradient(batch_of("update", 0), LOSS, budget=40)


def trained(
    ranks: Ranks,
    kind: str,
    family: str,
    dtype: torch.dtype,
    lora: bool = False,
    offload: bool = False,
    replica: int | None = None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The figures of some updates, and the weights behind them."""
    model = model_of(family, dtype=dtype)
    if lora:
        add_adapters(model, LORA, seed=0)
    policy = policy_on(ranks, family, dtype, model=model, offload=offload, replica=replica)
    figures = [step(policy, kind, seed) for seed in range(TIMES)]
    return figures, _weights(policy)


def saved(ranks: Ranks, dtype: torch.dtype, replica: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Weights and state after some updates."""
    policy = policy_on(ranks, dtype=dtype, replica=replica)
    for seed in range(TIMES):
        step(policy, "update", seed)
    return _weights(policy), policy.state_dict()


def continued(
    ranks: Ranks,
    weights: Mapping[str, torch.Tensor],
    state: Mapping[str, Any],
    dtype: torch.dtype,
    replica: int | None = None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The figures of the updates that follow `saved`, and the weights behind them."""
    model = model_of(seed=2, dtype=dtype)
    model.load_state_dict(weights)
    policy = policy_on(ranks, dtype=dtype, model=model, replica=replica)
    policy.load_state_dict(state)
    figures = [step(policy, "update", seed) for seed in range(TIMES, 2 * TIMES)]
    return figures, _weights(policy)


def _weights(policy: Policy) -> dict[str, Any]:
    return {name: weight.detach().clone() for name, weight in policy.model.state_dict().items()}
