"""A model over ranks learns what it learns in one process."""

from __future__ import annotations

import functools
from typing import Any

import learners
import pytest
import torch
from processes import on_ranks

from sleuth.ranks import Ranks

pytestmark = pytest.mark.ranks

FP32, BF16 = torch.float32, torch.bfloat16
FIGURES = ("loss", "entropy", "kl", "teacher_kl", "sampler_learner_kl", "gradient_norm", "learning_rate")
FIGURES += ("clip_fraction",)
EXACT = ("tokens_trained", "tokens_dense")
NOISE = 1e-2
"""As far figures in 16 bits come apart in one process too, where the batch is cut otherwise: a test measures it."""
ROUNDED = {"rel": 2e-2, "near": NOISE, "clipped": 0.05}
"""Bounds in 16 bits, where one token of some thirty may come to lie on the other side of the clip's bound."""


def assert_same_figures(
    ours: dict[str, Any], theirs: dict[str, Any], rel: float = 1e-5, near: float = 1e-7, clipped: float = 1e-7
) -> None:
    assert ours.keys() == theirs.keys()
    for name in FIGURES:
        bound = clipped if name == "clip_fraction" else near
        assert (ours[name] is None) == (theirs[name] is None), name
        assert ours[name] is None or ours[name] == pytest.approx(theirs[name], rel=rel, abs=bound), name
    for name in EXACT:
        assert ours[name] == theirs[name], name


def assert_same(ours: Any, theirs: Any, dtype: torch.dtype) -> None:
    """The figures of the same updates, and the weights behind them."""
    for found, wanted in zip(ours[0], theirs[0], strict=True):
        assert_same_figures(found, wanted, **({} if dtype == FP32 else ROUNDED))
    apart = max(float((ours[1][name].float() - weight.float()).abs().max()) for name, weight in theirs[1].items())
    assert apart < (1e-5 if dtype == FP32 else 1e-2)


@functools.cache
def saved_and_continued(world: int, dtype: torch.dtype) -> tuple[Any, Any]:
    """What the first rank saved, and what as many ranks made of it."""
    weights, state = on_ranks(world, learners.saved, dtype)[0]
    return (weights, state), on_ranks(world, learners.continued, weights, state, dtype)[0]


@functools.cache
def trained_on_two(dtype: torch.dtype, lora: bool) -> Any:
    """What the ranks know of the same updates, which several tests compare with others."""
    return on_ranks(2, learners.trained, "update", "qwen3", dtype, lora)


@pytest.mark.parametrize(
    ("world", "family", "recompute", "offload"),
    [
        (2, "qwen3", False, False),
        (2, "qwen3", False, True),
        (4, "llama", True, False),
        (2, "lfm2", True, False),
        (2, "gemma2", False, False),
        pytest.param(2, "llama", True, False, marks=pytest.mark.slow),
        pytest.param(4, "qwen3", False, False, marks=pytest.mark.slow),
    ],
)
def test_loss_and_gradients_do_not_depend_on_the_number_of_ranks(world, family, recompute, offload):
    (alone, expected), *_ = on_ranks(1, learners.gradient, family, recompute)
    for loss, gradient in on_ranks(world, learners.gradient, family, recompute, offload):
        assert loss == pytest.approx(alone, rel=1e-5)
        assert (gradient - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("kind", ["update", "follow", "supervise", "prefer"])
def test_updates_on_ranks_are_those_of_one_process(kind):
    [expected] = on_ranks(1, learners.trained, kind, "qwen3", FP32)
    for trained in on_ranks(3, learners.trained, kind, "qwen3", FP32):
        assert_same(trained, expected, FP32)


def test_another_cut_of_the_batch_moves_figures_in_16_bits_about_as_far_as_is_allowed():
    def losses(budget: int) -> list[float]:
        policy = learners.policy_on(Ranks(), dtype=BF16)
        steps = [learners.step(policy, "update", seed, budget) for seed in range(2 * learners.TIMES)]
        return [figures[name] for figures in steps for name in ("loss", "sampler_learner_kl")]

    usual = losses(40)
    moved = max(abs(one - other) for budget in (15, 20, 60) for one, other in zip(usual, losses(budget), strict=True))
    assert NOISE / 4 < moved < 2 * NOISE


def test_weights_of_16_bits_are_stepped_through_masters_in_shards():
    [expected] = on_ranks(1, learners.trained, "update", "qwen3", BF16)
    for trained in trained_on_two(BF16, False):
        assert_same(trained, expected, BF16)
        assert all(0 < figures["changed_weights_fraction"] < 1 for figures in trained[0])
        assert all(weight.dtype == BF16 for weight in trained[1].values())


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_sharded_adapters_train_as_in_one_process(dtype):
    pytest.importorskip("peft")
    [expected] = on_ranks(1, learners.trained, "update", "qwen3", dtype, True)
    frozen = learners.model_of(dtype=dtype).state_dict()
    for trained in trained_on_two(dtype, True):
        assert_same(trained, expected, dtype)
        for name, weight in trained[1].items():
            if ".lora_" not in name:
                assert torch.equal(weight, frozen[name.replace(".base_layer.", ".")]), name


@pytest.mark.parametrize(("dtype", "lora"), [(FP32, False), (BF16, False), (BF16, True)])
def test_offloaded_shards_train_to_the_same_bytes(dtype, lora):
    """On a processor, where they lie in any case: what differs is how FSDP brings them to a pass and adds gradients."""
    if lora:
        pytest.importorskip("peft")
    figures, weights = trained_on_two(dtype, lora)[0]
    offloaded, twins = on_ranks(2, learners.trained, "update", "qwen3", dtype, lora, True)[0]
    assert offloaded == figures
    for name, weight in weights.items():
        assert torch.equal(weight, twins[name]), name


@pytest.mark.parametrize(
    ("before", "after", "dtype"),
    [
        *((before, after, FP32) for before, after in ((2, 1), (2, 3), (1, 2), (2, 2))),
        *((2, after, BF16) for after in (3, 2)),
        *(pytest.param(before, after, BF16, marks=pytest.mark.slow) for before, after in ((2, 1), (1, 2))),
    ],
)
def test_state_of_one_world_size_goes_on_in_another(before, after, dtype):
    (weights, state), expected = saved_and_continued(before, dtype)
    ours, *_ = on_ranks(after, learners.continued, weights, state, dtype)
    if before != after:
        assert_same(ours, expected, dtype)
        return
    assert ours[0] == expected[0]
    assert all(torch.equal(ours[1][name], weight) for name, weight in expected[1].items())


# -- replicas of shards ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_replicas_of_shards_train_as_one_process(dtype):
    [expected] = on_ranks(1, learners.trained, "update", "qwen3", dtype)
    replicated = on_ranks(4, learners.trained, "update", "qwen3", dtype, False, False, 2)
    for trained in replicated:
        assert_same(trained, expected, dtype)
        for ours, theirs in zip(trained[0], expected[0], strict=True):
            changed = "changed_weights_fraction"
            assert ours[changed] == pytest.approx(theirs[changed], abs=1e-3 if dtype == FP32 else 0.05)
    for name, weight in replicated[0][1].items():
        assert all(torch.equal(weight, weights[name]) for _, weights in replicated[1:]), name


def test_the_state_of_replicas_is_that_of_any_ranks_and_goes_on_with_or_without_them():
    weights, state = on_ranks(4, learners.saved, FP32, 2)[0]
    [alone] = on_ranks(1, learners.continued, weights, state, FP32)
    for world, replica in ((4, 2), (2, None)):
        assert_same(on_ranks(world, learners.continued, weights, state, FP32, replica)[0], alone, FP32)
    of_one, of_four = on_ranks(1, learners.saved, FP32)[0][1], state
    assert names(of_four) == names(of_one)


def names(state: Any) -> Any:
    """The layout of a state: its keys, and the shapes of its tensors."""
    if isinstance(state, dict):
        return {name: names(value) for name, value in state.items()}
    return tuple(state.shape) if isinstance(state, torch.Tensor) else type(state)
