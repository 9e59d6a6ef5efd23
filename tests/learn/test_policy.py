from __future__ import annotations

import dataclasses
import io
import math
from functools import partial

import pytest
import torch
from padded import whole

from sleuth.learn.batch import Row, collate
from sleuth.learn.logprobs import token_logprobs
from sleuth.learn.losses import PolicyLoss, kl_penalty, token_weights
from sleuth.learn.master_weights import MasterWeights
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, frozen_copy
from sleuth.learn.prefix_tree import pack, prefix_tree
from sleuth.types import SleuthError

WHOLE = 10**9
SETTINGS = Optimisation(steps=10, learning_rate=1e-3, warmup_steps=2, weight_decay=0.01)
LOSS = PolicyLoss(clip_low=0.2, clip_high=0.28, tis_cap=2.0, beta=0.1)


def gradients_of(model, batch, loss: PolicyLoss, budget: int):
    """Loss and gradients, added up over micro-batches by hand."""
    reference = frozen_copy(model)
    with torch.no_grad():
        reference.get_input_embeddings().weight.mul_(1.1)
    model.zero_grad()
    total = 0.0
    for part in pack(batch, budget):
        logprobs, _ = token_logprobs(model, part)
        with torch.no_grad():
            ref, _ = token_logprobs(reference, part)
        share, _ = loss(part.rows, logprobs, ref)
        share.backward()
        total += share.item()
    return total, [parameter.grad.clone() for parameter in model.parameters()]


def assert_same_gradients(ours, theirs):
    norm = torch.cat([gradient.flatten() for gradient in theirs]).norm()
    difference = torch.cat([(a - b).flatten() for a, b in zip(ours, theirs, strict=True)]).norm()
    assert norm > 0
    assert difference <= 1e-5 * norm


# -- how the batch is cut does not matter ------------------------------------------------------------------------------


@pytest.mark.parametrize("normalise", ["token", "sequence", "constant"])
@pytest.mark.parametrize("budget", [1, 40, 75])
def test_loss_and_gradients_do_not_depend_on_how_the_batch_is_cut(make_model, make_rows, normalise, budget):
    model, batch = make_model(), collate(make_rows(9), normalise=normalise, constant=30)
    assert len(pack(batch, budget)) > 1
    whole, whole_gradients = gradients_of(model, batch, LOSS, WHOLE)
    cut, cut_gradients = gradients_of(model, batch, LOSS, budget)
    assert cut == pytest.approx(whole, abs=1e-6)
    assert_same_gradients(cut_gradients, whole_gradients)


def test_the_reference_keeps_to_the_budget_too(make_model, make_rows):
    reference, seen = frozen_copy(make_model(seed=1)), []
    reference.get_input_embeddings().register_forward_hook(lambda module, args, output: seen.append(args[0].numel()))
    batch = collate(make_rows(9))
    Policy(make_model(), SETTINGS, reference=reference).update(batch, LOSS, budget=40)
    assert len(seen) > 1
    assert max(seen) <= 40


def test_a_loss_of_whole_rows_takes_packs_that_repeat_what_they_share(make_model, make_rows):
    loss = dataclasses.replace(LOSS, old_logprobs="sampler", ratio="sequence", tis_cap=None)
    updates = [
        Policy(make_model(), SETTINGS, reference=frozen_copy(make_model(seed=1))).update(
            collate(make_rows(9)), loss, budget=budget
        )
        for budget in (1, 60, WHOLE)
    ]
    for update in updates[:-1]:
        for name in ("loss", "entropy", "kl", "clip_fraction", "gradient_norm"):
            assert getattr(update, name) == pytest.approx(getattr(updates[-1], name), rel=1e-5, abs=1e-6), name
    computed = [update.tokens_computed for update in updates]
    assert computed[0] == updates[0].tokens_dense, "one row at a time shares nothing"
    assert computed[0] > computed[1] >= computed[2]


def test_a_gradient_row_by_row_is_the_same(make_model, make_rows):
    policy, batch = Policy(make_model(), SETTINGS), collate(make_rows(9))
    loss = dataclasses.replace(LOSS, beta=0.0)
    (shared, ours), (apart, theirs) = (
        policy.gradient(batch, loss, budget=60, by_row=by_row) for by_row in (False, True)
    )
    assert shared == pytest.approx(apart, abs=1e-6)
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


def test_the_loss_is_what_a_loop_over_rows_and_tokens_gives(make_model, make_rows):
    model, rows = make_model(), make_rows(5)
    loss = PolicyLoss(old_logprobs="sampler", clip_low=0.2, clip_high=0.28)
    expected, count = 0.0, sum(sum(row.trained) for row in rows)
    for row in rows:
        logits = model(torch.tensor([row.tokens])).logits[0].log_softmax(dim=-1)
        for token in range(1, len(row.tokens)):
            if row.trained[token]:
                ratio = (logits[token - 1, row.tokens[token]] - row.sampler_logprobs[token]).exp().item()
                expected -= min(ratio * row.advantage, min(max(ratio, 0.8), 1.28) * row.advantage) / count
    assert Policy(model, SETTINGS).update(collate(rows), loss, budget=40).loss == pytest.approx(expected, rel=1e-5)


def test_tis_and_kl_enter_the_loss_token_by_token(make_model, make_rows):
    model, reference, rows = make_model(), frozen_copy(make_model(seed=1)), make_rows(5)
    loss = PolicyLoss(tis_cap=1.5, beta=0.1, kl="k3")
    expected, count, truncated = 0.0, sum(sum(row.trained) for row in rows), 0
    for row in rows:
        ids = torch.tensor([row.tokens])
        ours, ref = (net(ids).logits[0].log_softmax(dim=-1) for net in (model, reference))
        for token in range(1, len(row.tokens)):
            if row.trained[token]:
                logprob = ours[token - 1, row.tokens[token]].item()
                weight = math.exp(logprob - row.sampler_logprobs[token])
                truncated += weight > 1.5
                gap = ref[token - 1, row.tokens[token]].item() - logprob
                expected += (0.1 * (math.exp(gap) - 1 - gap) - min(weight, 1.5) * row.advantage) / count
    assert 0 < truncated < count
    update = Policy(model, SETTINGS, reference).update(collate(rows), loss, budget=40)
    assert update.loss == pytest.approx(expected, abs=2e-6)


# -- who wrote it decides --------------------------------------------------------------------------------------------


def test_retrieved_tokens_get_no_gradient(make_model, make_rows):
    model, batch = make_model(), collate(make_rows(6))
    states: list[torch.Tensor] = []

    def keep(module, args, output):
        output.last_hidden_state.retain_grad()
        states.append(output.last_hidden_state)

    model.base_model.register_forward_hook(keep)
    part = whole(batch)
    logprobs, _ = token_logprobs(model, part)
    PolicyLoss()(batch, logprobs, None)[0].backward()
    predicts_policy = torch.zeros(len(part.tree), dtype=torch.bool)
    predicts_policy[part.tree.parents[part.tree.nodes[batch.trained]]] = True
    # only the vocabulary projection reads the last hidden states: no gradient there is no gradient of any logit
    assert torch.equal(states[0].grad[0].abs().sum(dim=1) > 0, predicts_policy)


def test_advantages_and_log_probabilities_of_retrieved_tokens_change_nothing(make_model, make_rows):
    batch = collate(make_rows(6))
    noise = torch.where(batch.trained, 0.0, 7.0)
    disturbed = dataclasses.replace(
        batch, advantages=batch.advantages + noise, sampler_logprobs=batch.sampler_logprobs - noise
    )
    loss, gradients = gradients_of(make_model(), batch, LOSS, WHOLE)
    other_loss, other_gradients = gradients_of(make_model(), disturbed, LOSS, WHOLE)
    assert other_loss == loss
    assert all(torch.equal(a, b) for a, b in zip(gradients, other_gradients, strict=True))


def test_a_row_of_zero_weight_changes_nothing(make_model, make_rows):
    rows = make_rows(4)
    filler = Row(tokens=(1, 2, 3), trained=(False, False, False), sampler_logprobs=(0.0, 0.0, 0.0))
    loss, gradients = gradients_of(make_model(), collate(rows), LOSS, 1)
    other_loss, other_gradients = gradients_of(make_model(), collate([*rows, filler]), LOSS, 1)
    assert other_loss == pytest.approx(loss, abs=1e-7)
    assert_same_gradients(other_gradients, gradients)


# -- what an update tells --------------------------------------------------------------------------------------------


def test_an_update_tells_its_statistics_as_weighted_means(make_model, make_rows):
    model, batch = make_model(), collate(make_rows(6))
    reference = frozen_copy(make_model(seed=1))
    with torch.no_grad():
        logprobs, entropy = token_logprobs(model, whole(batch))
        ref, _ = token_logprobs(reference, whole(batch))
    ratio = (logprobs - batch.sampler_logprobs).exp()
    held = (batch.advantages > 0) & (ratio > 1.2) | (batch.advantages < 0) & (ratio < 0.8)
    update = Policy(model, SETTINGS, reference).update(batch, PolicyLoss(old_logprobs="sampler"), budget=50)
    trained = batch.trained
    assert 0 < update.clip_fraction == pytest.approx(held[trained].float().mean().item())
    assert update.entropy == pytest.approx(entropy[trained].mean().item(), rel=1e-5)
    assert update.kl == pytest.approx(kl_penalty(logprobs, ref, "k3")[trained].mean().item(), rel=1e-5)
    gap = (logprobs - batch.sampler_logprobs)[trained]
    assert update.sampler_learner_kl == pytest.approx((gap.exp() - 1 - gap).mean().item(), rel=1e-5)
    assert update.learning_rate == SETTINGS.learning_rate / 2, "the first of two warm-up steps"
    assert update.tokens_trained == int(trained.sum())


def test_the_learners_own_pass_as_old_never_clips(make_model, make_rows):
    update = Policy(make_model(), SETTINGS).update(collate(make_rows()), PolicyLoss(), budget=WHOLE)
    assert update.clip_fraction == 0
    assert update.kl is None


def test_updates_make_rewarded_tokens_likelier(make_model, make_rows):
    rows = [dataclasses.replace(row, advantage=1.0 if index % 2 else -1.0) for index, row in enumerate(make_rows(8))]
    model, batch = make_model(), collate(rows)

    def gain() -> float:
        with torch.no_grad():
            logprobs, _ = token_logprobs(model, whole(batch))
        return (logprobs * batch.advantages * batch.weights).sum().item()

    before = gain()
    policy = Policy(model, Optimisation(steps=5, learning_rate=1e-3))
    for _ in range(5):
        policy.update(batch, PolicyLoss(), budget=60)
    assert gain() > before + 0.1


def test_supervision_lowers_the_cross_entropy(make_model, make_rows):
    policy, batch = Policy(make_model(), Optimisation(steps=20, learning_rate=3e-3)), collate(make_rows(4))
    steps = [policy.supervise(batch, budget=40) for _ in range(8)]
    with torch.no_grad():
        logprobs, _ = token_logprobs(make_model(), whole(batch))
    assert steps[0].loss == pytest.approx(-(logprobs * token_weights(batch.trained, "token")).sum().item(), rel=1e-5)
    assert steps[-1].loss < steps[0].loss - 0.2


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_before_any_weight_changes(make_model, make_rows):
    model = make_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    rows = make_rows(4)
    rows[-1] = dataclasses.replace(rows[-1], advantage=float("nan"))
    policy = Policy(model, SETTINGS)
    with pytest.raises(SleuthError, match="loss of update 1 is nan"):
        policy.update(collate(rows), PolicyLoss(), budget=1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert policy.optimiser.steps == 0


def test_a_gradient_that_is_not_finite_stops_before_any_weight_changes(make_model, make_rows):
    model = make_model()
    model.base_model.norm.weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(SleuthError, match="gradient norm of update 1 is"):
        Policy(model, SETTINGS).update(collate(make_rows(3)), PolicyLoss(), budget=WHOLE)
    assert not any(parameter.isnan().any() for parameter in model.parameters())


def test_a_loss_that_needs_the_samplers_log_probabilities_says_so(make_model, make_rows):
    silent = collate([dataclasses.replace(row, sampler_logprobs=None) for row in make_rows(3)])
    policy = Policy(make_model(), SETTINGS)
    with pytest.raises(SleuthError, match="no log-probabilities"):
        policy.update(silent, PolicyLoss(tis_cap=2.0), budget=WHOLE)
    assert policy.update(silent, PolicyLoss(), budget=WHOLE).sampler_learner_kl is None


def test_tis_with_the_samplers_ratio_would_count_the_mismatch_twice():
    with pytest.raises(ValueError, match="tis_cap"):
        PolicyLoss(old_logprobs="sampler", tis_cap=2.0)


# -- gradient checkpointing --------------------------------------------------------------------------------------------


# -- precision and resume --------------------------------------------------------------------------------------------


def test_masters_remember_steps_that_bf16_weights_cannot_show(make_model, make_rows):
    model = make_model().to(torch.bfloat16)
    policy = Policy(model, Optimisation(steps=9, learning_rate=1e-7))
    start = {name: tensor.detach().clone() for name, tensor in policy.masters.tensors.items()}
    update = policy.update(collate(make_rows()), PolicyLoss(), budget=60)
    moved = sum((tensor != start[name]).sum().item() for name, tensor in policy.masters.tensors.items())
    assert update.changed_weights_fraction < 0.02
    assert moved > 0.5 * sum(tensor.numel() for tensor in start.values())
    for name, weight in model.named_parameters():
        assert torch.equal(weight, policy.masters.tensors[name].to(torch.bfloat16)), name


def test_masters_add_up_the_gradients_of_all_micro_batches(make_model, make_rows):
    norms = []
    for budget in (1, WHOLE):
        policy = Policy(make_model().to(torch.bfloat16), SETTINGS)
        norms.append(policy.update(collate(make_rows(6)), PolicyLoss(), budget=budget).gradient_norm)
    assert norms[0] == pytest.approx(norms[1], rel=0.02), "bf16 rounds to about 0.4 %"


def test_fp32_weights_are_their_own_masters(make_model, make_rows):
    model = make_model()
    policy = Policy(model, SETTINGS)
    assert all(tensor is model.get_parameter(name) for name, tensor in policy.masters.tensors.items())
    assert policy.state_dict()["masters"] == {}
    assert policy.update(collate(make_rows()), PolicyLoss(), budget=60).changed_weights_fraction > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offloaded_to_the_host_every_figure_and_weight_is_the_same(monkeypatch, make_model, make_rows, dtype):
    """In copies of 100 elements, so that every matrix takes several and the last is smaller."""
    monkeypatch.setattr("sleuth.learn.master_weights.PIECE", 100)
    found = []
    for offload in (False, True):
        policy = Policy(
            make_model().to(dtype),
            SETTINGS,
            reference=frozen_copy(make_model(seed=1).to(dtype)),
            holding=partial(MasterWeights, offload=offload),
        )
        updates = [policy.update(collate(make_rows(9, seed=step)), LOSS, budget=40) for step in range(3)]
        _, gradient = policy.gradient(collate(make_rows(9)), LOSS, budget=40)
        found.append((updates, gradient, policy))
    (plain, gradient, policy), (offloaded, offloaded_gradient, other) = found
    assert offloaded == plain
    assert torch.equal(gradient, offloaded_gradient)
    assert other.state_bytes == policy.state_bytes
    for name, weight in policy.model.named_parameters():
        assert torch.equal(other.model.get_parameter(name), weight), name
        assert other.masters.tensors[name] is not other.model.get_parameter(name)
    ours, theirs = other.state_dict(), policy.state_dict()
    assert ours["masters"].keys() == theirs["masters"].keys()
    for name, part in theirs["optimiser"]["parts"].items():
        assert ours["optimiser"]["parts"][name]["state"].keys() == part["state"].keys()
        for number, moments in part["state"].items():
            for key, value in moments.items():
                assert torch.equal(ours["optimiser"]["parts"][name]["state"][number][key], value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("offloads", [(False, False), (True, False), (False, True)], ids=["plain", "before", "after"])
def test_a_policy_saved_after_three_steps_makes_the_same_next_three(make_model, make_rows, dtype, name, offloads):
    """Also with `cpu_offload` before the save or after it."""
    settings = dataclasses.replace(SETTINGS, name=name, schedule="cosine")

    def fresh(offload: bool = False) -> Policy:
        return Policy(make_model().to(dtype), settings, holding=partial(MasterWeights, offload=offload))

    def run(policy: Policy, steps) -> None:
        for step in steps:
            policy.update(collate(make_rows(5, seed=step)), PolicyLoss(), budget=60)

    straight, stopped, resumed = fresh(), *map(fresh, offloads)
    run(straight, range(6))
    run(stopped, range(3))
    file = io.BytesIO()
    torch.save({"policy": stopped.state_dict(), "model": stopped.model.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed.model.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["policy"])
    run(resumed, range(3, 6))
    for key, tensor in resumed.masters.tensors.items():
        assert torch.equal(tensor, straight.masters.tensors[key]), key
        assert torch.equal(resumed.model.get_parameter(key), straight.model.get_parameter(key)), key


# -- rows that pull on nothing are not computed ------------------------------------------------------------------------


def test_rows_without_an_advantage_are_not_computed_and_change_no_gradient(make_model, make_rows):
    rows = [dataclasses.replace(row, advantage=0.0) if at % 3 else row for at, row in enumerate(make_rows(9))]
    batch = collate(rows)
    assert batch.with_advantage().tokens.shape[0] == 3
    loss = dataclasses.replace(LOSS, beta=0.0)
    whole, whole_gradients = gradients_of(make_model(), batch, loss, WHOLE)
    with_advantage, gradients_with_advantage = gradients_of(make_model(), batch.with_advantage(), loss, WHOLE)
    assert with_advantage == pytest.approx(whole, abs=1e-7)
    assert_same_gradients(gradients_with_advantage, whole_gradients)


def test_with_a_kl_term_every_row_is_computed(make_model, make_rows):
    batch = collate([dataclasses.replace(row, advantage=0.0) for row in make_rows(4)][:3] + make_rows(4)[3:])
    policy = Policy(make_model(), SETTINGS, reference=frozen_copy(make_model(seed=1)))
    computed = policy.update(batch, LOSS, budget=WHOLE).tokens_computed
    assert computed == len(prefix_tree(batch))
    assert policy.update(batch, dataclasses.replace(LOSS, beta=0.0), budget=WHOLE).tokens_computed < computed
