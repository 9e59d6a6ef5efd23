"""Direct preference optimisation: by hand, against the plain padded way, and however the pairs are cut."""

from __future__ import annotations

import math
import random

import pytest
import torch
from padded import padded_logprobs, whole
from tiny_models import in_float64

from sleuth.learn.batch import Batch, Row
from sleuth.learn.logprobs import token_logprobs
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, frozen_copy
from sleuth.learn.prefix_tree import pack
from sleuth.think.dpo import PAIR, PreferenceLoss, PreferenceUpdate, dpo_loss, implicit_margins, pair_batch

SETTINGS = Optimisation(steps=10, learning_rate=1e-3)
BETA = 0.1


def drawn_pairs(seed: int, pairs: int, *, longest: int = 9) -> list[tuple[Row, Row]]:
    """Pairs over few prefixes, some of which begin alike; a continuation of one may be that of another."""
    draw = random.Random(seed)
    stem = [draw.randrange(40) for _ in range(4)]
    prefixes = [[*stem, *(draw.randrange(40) for _ in range(draw.randint(1, 6)))] for _ in range(1 + pairs // 2)]

    def row(prefix: list[int]) -> Row:
        written = [draw.randrange(3) for _ in range(draw.randint(1, longest))]
        return Row(tokens=(*prefix, *written), trained=(*[False] * len(prefix), *[True] * len(written)))

    return [(row(prefix), row(prefix)) for prefix in (draw.choice(prefixes) for _ in range(pairs))]


def moved(model, seed: int = 3):
    """A frozen copy with other weights: what a reference is after some steps."""
    torch.manual_seed(seed)
    reference = frozen_copy(model)
    with torch.no_grad():
        for weight in reference.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    return reference


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_a_margin_is_beta_times_how_much_more_the_chosen_one_gained_than_the_rejected_one():
    logprobs = torch.tensor([[0.0, -1.0, -0.5], [0.0, -2.0, 0.0], [0.0, -3.0, -3.0], [0.0, -1.0, -1.0]])
    reference = torch.tensor([[0.0, -1.5, -2.0], [0.0, -1.5, 0.0], [0.0, -1.0, -1.0], [0.0, -1.0, -1.0]])
    # pair 0: gains 2.0 and -0.5; pair 1: gains -4.0 and 0.0
    assert implicit_margins(logprobs, reference, beta=0.4).tolist() == pytest.approx([0.4 * 2.5, 0.4 * -4.0])


def test_the_loss_of_a_pair_is_ln_of_1_plus_e_to_the_minus_margin_and_its_gradient_falls_as_the_pair_gets_clear():
    assert dpo_loss(torch.tensor([0.0, 0.0]), torch.tensor([0.25, 0.75])).item() == pytest.approx(math.log(2))
    margins = torch.tensor([0.0, math.log(3.0)], requires_grad=True)
    loss = dpo_loss(margins, torch.tensor([0.5, 0.5]))
    assert loss.item() == pytest.approx((math.log(2) + math.log(4 / 3)) / 2)
    loss.backward()
    assert margins.grad is not None
    assert margins.grad.tolist() == pytest.approx([-0.5 * 1 / 2, -0.5 * 1 / 4])  # -w sigmoid(-margin)


def prefer(policy: Policy, batch: Batch, budget: int = 10**9) -> PreferenceUpdate:
    """One step on the pairs of a batch."""
    return policy.minimise(batch, PreferenceLoss(beta=BETA), PreferenceUpdate, budget=budget)


def test_steps_begin_at_ln_2_without_a_margin_and_make_the_chosen_ones_likelier_than_the_rejected_ones(make_model):
    model = make_model()
    policy = Policy(model, SETTINGS, reference=frozen_copy(model))
    batch = pair_batch(drawn_pairs(1, 4))
    first, *updates = [prefer(policy, batch) for _ in range(6)]
    assert first.loss == pytest.approx(math.log(2), abs=1e-6)
    assert (first.margin, first.chosen_gain, first.rejected_gain) == pytest.approx((0, 0, 0), abs=1e-5)
    assert updates[-1].margin > updates[0].margin > 0
    assert updates[-1].loss < first.loss


# -- against the plain way ---------------------------------------------------------------------------------------------


def plain(model, reference, batch, beta: float) -> torch.Tensor:
    """Rows padded, all logits, pair by pair."""
    ours, theirs = padded_logprobs(model, batch), padded_logprobs(reference, batch).detach()
    losses = []
    for chosen, rejected in zip(range(0, len(ours), PAIR), range(1, len(ours), PAIR), strict=True):
        logits = (ours[chosen].sum() - theirs[chosen].sum()) - (ours[rejected].sum() - theirs[rejected].sum())
        losses.append(-torch.log(torch.sigmoid(beta * logits)))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("seed", range(6))
def test_on_the_prefix_tree_loss_and_gradients_are_those_of_padded_rows(make_model, family, seed):
    pairs = drawn_pairs(seed, pairs=1 + seed)
    model = in_float64(make_model(family))
    reference = moved(model)
    batch = pair_batch(pairs)
    expected = plain(model, reference, batch, BETA)
    wanted = torch.autograd.grad(expected, list(model.parameters()))
    part = whole(batch)
    loss = PreferenceLoss(beta=BETA)
    found, _ = loss(part.rows, token_logprobs(model, part)[0], token_logprobs(reference, part)[0].detach())
    gradients = torch.autograd.grad(found, list(model.parameters()))
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    difference = torch.cat([(a - b).flatten() for a, b in zip(gradients, wanted, strict=True)]).norm()
    assert difference <= 1e-5 * torch.cat([gradient.flatten() for gradient in wanted]).norm()


@pytest.mark.parametrize("seed", range(5))
def test_an_update_does_not_depend_on_how_the_pairs_are_cut(make_model, seed):
    batch, updates = pair_batch(drawn_pairs(seed, pairs=7)), []
    for budget in (1, 40, 10**9):
        model = make_model()
        policy = Policy(model, SETTINGS, reference=moved(model))
        updates.append((prefer(policy, batch, budget), [w.clone() for w in model.parameters()]))
    (one, weights), *others = updates
    for other, moved_weights in others:
        for name in ("loss", "margin", "accuracy", "chosen_gain", "rejected_gain", "gradient_norm"):
            assert getattr(other, name) == pytest.approx(getattr(one, name), rel=1e-4, abs=1e-5), name
        assert other.tokens_computed <= one.tokens_computed
        assert all(torch.allclose(a, b, atol=2e-4) for a, b in zip(weights, moved_weights, strict=True))


# -- pairs stay together -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 25, 60, 10**9])
@pytest.mark.parametrize("seed", range(8))
def test_a_pair_is_never_parted_and_keeps_its_order(seed, budget):
    batch = pair_batch(drawn_pairs(seed, pairs=9))
    parts = pack(batch, budget, together=PAIR)
    members = [row for part in parts for row in part.members]
    assert sorted(members) == list(range(18))
    for first, second in zip(members[::2], members[1::2], strict=True):
        assert (first % 2, second) == (0, first + 1)
    for part in parts:
        assert len(part.tree) <= budget or len(part.members) == PAIR
        for place, row in enumerate(part.members):
            length = int(batch.lengths[row])
            assert part.rows.tokens[place, :length].tolist() == batch.tokens[row, :length].tolist()
