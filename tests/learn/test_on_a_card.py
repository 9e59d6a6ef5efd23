"""What the learner does on a card, without one: its code on tensors of the CPU, or without values, that claim to be on
a card, and fake CUDA tensors where card and host meet."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from claimed_card import CARD, ClaimedCard, Launches, host_and_card
from live_bytes import LiveBytes
from tiny_models import VOCABULARY
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from windowed_models import windowed_model

from sleuth.kernels.vocabulary import logprobs_with_grad, target_logprobs
from sleuth.learn.attention import Branches
from sleuth.learn.batch import collate
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.master_weights import MasterWeights
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, frozen_copy
from sleuth.learn.prefix_tree import gather_rows, prefix_tree

SETTINGS = Optimisation(steps=10, learning_rate=1e-3)


@pytest.mark.parametrize(("at_once", "in_slices"), [(True, False), (True, True), (False, True)])
def test_the_projection_of_16_384_rows_onto_151_936_words_takes_few_launches_and_bytes(
    monkeypatch, at_once: bool, in_slices: bool
) -> None:
    """Shape of Qwen3-0.6B, bf16. All logits would be 5 GB, 10 GB in fp32."""
    monkeypatch.setattr("sleuth.kernels.vocabulary.adds_in_fp32", lambda device: not in_slices)
    rows, words, width = 16_384, 151_936, 1_024
    head = nn.Linear(width, words, bias=False, device="meta", dtype=torch.bfloat16)
    hidden = torch.zeros(rows, width, device="meta", dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(rows, device="meta", dtype=torch.long)
    with ClaimedCard(), Launches() as launched, LiveBytes() as held:
        if at_once:
            share, *_ = logprobs_with_grad(
                head, hidden, targets, 0.7, lambda part, values: (values.sum(), torch.ones_like(values))
            )
        else:
            share = target_logprobs(head, hidden, targets, 0.7)[0].sum()
        share.backward()
    assert head.weight.grad.dtype == torch.bfloat16
    assert launched.names.total() < (2_500 if at_once else 3_500)
    forward_again = 0 if at_once else 8
    assert launched.names["mm"] + launched.names["addmm"] - forward_again == (96 if in_slices else 24)
    assert held.peak < 2.25e9


@pytest.mark.parametrize("claimed", [False, True])
def test_repeated_rows_have_the_same_gradient_on_both_paths(claimed: bool) -> None:
    torch.manual_seed(0)
    values, arrived = torch.randn(5, 3, dtype=torch.float64, requires_grad=True), torch.randn(9, 3, dtype=torch.float64)
    numbers = torch.tensor([4, 0, 0, 4, 4, 1, 0, 4, 3])
    with ClaimedCard() if claimed else torch.enable_grad():
        rows = gather_rows(values, numbers)
    with Launches() as launched:
        rows.backward(arrived)
    assert torch.equal(rows, values[numbers])
    expected = torch.stack([arrived[numbers == row].sum(dim=0) for row in range(5)])
    torch.testing.assert_close(values.grad, expected, rtol=0, atol=1e-12)
    assert launched.repeated_sums == (not claimed), "index_add has a fixed order on a CPU only"


def test_offloaded_a_card_holds_the_weights_and_the_host_what_is_stepped() -> None:
    class Weights(nn.Module):
        device = CARD

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(40, 30, device=CARD, dtype=torch.bfloat16))

    with FakeTensorMode():
        model = Weights()
        masters = MasterWeights(model, offload=True)
        for _ in range(2):
            model.weight.grad = torch.zeros_like(model.weight)
            masters.collect_gradients()
    assert model.weight.device == CARD
    assert model.weight.grad is None
    [master] = masters.tensors.values()
    assert (master.device.type, master.dtype) == ("cpu", torch.float32)
    assert (master.grad.device.type, master.grad.dtype) == ("cpu", torch.float32)


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize(
    "loss",
    [PolicyLoss(beta=0.1, tis_cap=2.0), PolicyLoss(old_logprobs="sampler", ratio="sequence")],
    ids=["kl", "gspo"],
)
def test_an_update_on_the_path_of_a_card_is_that_of_a_cpu_without_atomic_sums(
    make_model, make_rows, loss, offload
) -> None:
    """FlexAttention in its plain form; what a compiler makes of it needs a card."""
    batch, updates, weights = collate(make_rows(9)), [], []
    for claimed in (False, True):
        reference = frozen_copy(make_model(seed=1))
        policy = Policy(make_model(), SETTINGS, reference, holding=partial(MasterWeights, offload=offload))
        if claimed:
            with ClaimedCard(), torch.compiler.set_stance("force_eager"), Launches() as launched:
                assert Branches(prefix_tree(batch), torch.float32).mask is not None
                updates.append(policy.update(batch, loss, budget=60))
            assert launched.repeated_sums == 0
        else:
            updates.append(policy.update(batch, loss, budget=60))
        weights.append(torch.cat([weight.detach().flatten() for weight in policy.model.parameters()]))
    ours, theirs = updates
    for name in ("loss", "entropy", "kl", "sampler_learner_kl", "clip_fraction", "gradient_norm"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-4, abs=1e-6), name
    assert (weights[0] - weights[1]).abs().max() < 1e-4


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("case", ["kl", "gspo", "teacher", "windows"])
def test_between_the_passes_of_an_update_nobody_waits_for_a_card(make_model, make_rows, case, checkpointed) -> None:
    """Where tensors of host and card are told apart, only the sums of all passes are read, together."""
    loss = PolicyLoss(old_logprobs="sampler", ratio="sequence") if case == "gspo" else PolicyLoss(beta=0.1, tis_cap=2.0)
    rows = [replace(row, guidance=0.5) for row in make_rows(9)] if case == "teacher" else make_rows(9)
    batch, others = collate(rows), (frozen_copy(make_model(seed=1)), frozen_copy(make_model(seed=2)))

    def policy_and_model():
        model = windowed_model("qwen3", VOCABULARY) if case == "windows" else make_model()
        policy = Policy(model, SETTINGS, others[0], teacher_top_k=3, gradient_checkpointing=checkpointed)
        if case == "teacher":
            policy.teacher = MasterWeights(others[1])
        return policy, model

    expected = policy_and_model()[0].gradient(batch, loss, budget=60)
    policy, model = policy_and_model()
    with host_and_card(model, *others) as card:
        share, gradient = policy.gradient(batch, loss, budget=60)
        assert len(policy._packs(batch, loss, 60)) > 1
        assert card.waits == ["tolist"]
    assert share == pytest.approx(expected[0], rel=1e-5)
    assert (gradient - expected[1]).norm() < 1e-4 * expected[1].norm()
