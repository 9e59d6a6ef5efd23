"""Our loss is TRL's, verl's and open-instruct's: value and gradient on a frozen batch, setting by setting.

The batch and what the others make of it are in `fixtures/` (see its README). Ours goes the way of a training step:
recipe -> advantages and token weights -> `PolicyLoss` -> gradient by the learner's log-probabilities. Tests whose
name begins with `departure` are of the places where the same setting is not the same number; they say by how much, and
docs/coming_from.md names each of them.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from sleuth.kernels.vocabulary import target_logprobs
from sleuth.learn.batch import Batch
from sleuth.learn.losses import PolicyLoss, group_advantages, token_weights
from sleuth.recipe.loss import NAMED_LOSSES, LossRecipe

FIXTURES = Path(__file__).parent / "fixtures"
DOCS = Path(__file__).parents[2] / "docs" / "coming_from.md"
BATCH, TRL, PUBLISHED = (json.loads((FIXTURES / f"{name}.json").read_text()) for name in ("batch", "trl", "published"))
REWARDS = BATCH["rewards"]
exactly = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-12)


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def policy_loss_of(recipe: LossRecipe) -> PolicyLoss:
    keys = ("policy_loss", "ratio", "clip_low", "clip_high", "kl", "beta", "old_logprobs", "tis_cap")
    return PolicyLoss(**{key: getattr(recipe, key) for key in keys})


def ours(recipe: dict[str, Any], advantages: list[float], empty: tuple[int, ...] = ()) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, gradient (B, T) and clip fraction of a `[stage.loss]` on the frozen batch; `empty` rows train nothing."""
    starts = NAMED_LOSSES.get(recipe.get("setting", ""), {}).get(
        "old_logprobs", "learner"
    )  # on policy, unless said otherwise
    loss = LossRecipe.model_validate({"old_logprobs": starts} | recipe)
    trained = tensor(BATCH["mask"]).bool()
    trained[list(empty)] = False
    micro = Batch(
        tokens=torch.zeros(trained.shape, dtype=torch.int64),
        lengths=torch.tensor(BATCH["tokens"]),
        trained=trained,
        advantages=tensor(advantages)[:, None] * trained,
        weights=token_weights(trained.double(), loss.normalise, constant=loss.constant),
        sampler_logprobs=tensor(BATCH["old"]),
    )
    logprobs = tensor(BATCH["learner"]).requires_grad_()
    reference = tensor(BATCH["reference"]) if loss.beta else None
    scalar, statistics = policy_loss_of(loss)(micro, logprobs, reference)
    scalar.backward()
    assert logprobs.grad is not None
    return scalar.detach(), logprobs.grad, (statistics["clip_fraction"] * trained).sum() / trained.sum()


def assert_the_same(
    recipe: dict[str, Any], theirs: dict[str, Any], advantages: list[float], *, scale: float = 1
) -> None:
    """Loss and gradient are `scale` times theirs."""
    loss, gradient, _ = ours(recipe, advantages, tuple(theirs.get("truncated", ())))
    exactly(loss, scale * tensor(theirs["loss"]))
    exactly(gradient, scale * tensor(theirs["gradient"]))


# -- TRL ---------------------------------------------------------------------------------------------------------------

SAMPLED = {"old_logprobs": "sampler"}
NORMALISERS = {
    "grpo": {"normalise": "sequence"},
    "dr_grpo": {"advantage": "centered", "normalise": "constant", "constant": 10},
    "bnpo": {"normalise": "token"},
    "dapo": {"normalise": "token"},
}
EQUAL_BOUNDS = {"clip_low": 0.2, "clip_high": 0.2}
BY_ROW = {"ratio": "sequence", "clip_low": 0.1, "clip_high": 0.12}
CISPO_BY_ROW = {"policy_loss": "cispo", "ratio": "sequence", "clip_low": 1.0, "clip_high": 0.12, "normalise": "token"}
K3 = {"beta": 0.04, "kl": "k3"}

LIKE_TRL = (
    {
        "grpo": {"setting": "grpo", **SAMPLED},
        "dr_grpo": {"setting": "dr_grpo", "constant": 10, **SAMPLED},
        "dapo": {"setting": "dapo", **SAMPLED},
        "gspo": {"setting": "gspo"},
        "cispo": {"setting": "cispo"},
        "bnpo": {"setting": "dapo", **SAMPLED},
        "gspo k3": {"setting": "gspo", **K3},
        "cispo k3": {"setting": "cispo", **K3},
        "gspo on policy": {"setting": "grpo"},
        "cispo by row": CISPO_BY_ROW | SAMPLED,
        "dapo tis k3": {"setting": "dapo", "tis_cap": 1.1, **K3},
    }
    | {f"{name} on policy": normaliser for name, normaliser in NORMALISERS.items()}
    | {f"{name} k3": normaliser | EQUAL_BOUNDS | K3 | SAMPLED for name, normaliser in NORMALISERS.items()}
    | {f"{name} by row": normaliser | BY_ROW | SAMPLED for name, normaliser in NORMALISERS.items()}
    | {f"{name} tis": normaliser | {"tis_cap": 1.1} for name, normaliser in NORMALISERS.items()}
)
DEPARTURES = {
    "cispo on policy",
    "cispo tis",
    "gspo tis",
    "dapo k3 with bias correction",
    "grpo with an empty row",
    "dr_grpo with an empty row",
}


@pytest.mark.parametrize("name", LIKE_TRL)
def test_loss_and_gradient_are_trls(name):
    theirs = TRL["cases"][name]
    assert_the_same(LIKE_TRL[name], theirs, theirs["advantages"])


def test_every_case_that_trl_ran_is_compared():
    assert set(TRL["cases"]) == set(LIKE_TRL) | DEPARTURES


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "gspo", "cispo"])
def test_the_bounds_of_every_named_setting_act_on_the_frozen_batch_and_never_on_policy(name):
    held = ours(LIKE_TRL[name], TRL["cases"][name]["advantages"])[2]
    assert 0 < held < 1
    if name in ("grpo", "dr_grpo", "dapo"):
        on_policy = {key: value for key, value in LIKE_TRL[name].items() if key != "old_logprobs"}
        assert ours(on_policy, TRL["cases"][name]["advantages"])[2] == 0


def test_the_clip_fraction_of_cispo_counts_the_capped_tokens_good_and_bad():
    advantages = TRL["cases"]["cispo"]["advantages"]
    ratio = (tensor(BATCH["learner"]) - tensor(BATCH["old"])).exp()
    capped = (ratio > 5) & tensor(BATCH["mask"]).bool()
    assert capped[tensor(advantages) > 0].any()
    assert capped[tensor(advantages) < 0].any()
    share = capped[tensor(advantages) != 0].sum() / tensor(BATCH["mask"]).sum()
    assert ours({"setting": "cispo"}, advantages)[2].item() == pytest.approx(share.item())


@pytest.mark.parametrize("name", ["cispo on policy", "cispo tis"])
def test_on_policy_cispo_has_the_gradient_of_every_other_loss(name):
    """With old = learner the ratio is 1 and -A log p has the gradient of -A r; only the reported value differs."""
    theirs = TRL["cases"][name]
    recipe = {"setting": "dapo"} | ({"tis_cap": 1.1} if name == "cispo tis" else {})
    loss, gradient, _ = ours(recipe, theirs["advantages"])
    exactly(gradient, tensor(theirs["gradient"]))
    assert abs(loss - theirs["loss"]) > 0.01


def test_departure_trls_corrected_k3_is_k2_in_the_gradient_and_k3_in_the_value():
    """TRL multiplies k3 by the ratio, through which a gradient flows. At a ratio of 1, with d = reference - learner:
    (exp(d) - 1 - d) + (1 - exp(d)) = -d, which is the slope of k2 = d^2 / 2."""
    theirs = TRL["cases"]["dapo k3 with bias correction"]
    k2, k3 = (ours({"setting": "dapo", "beta": 0.04, "kl": kind}, theirs["advantages"]) for kind in ("k2", "k3"))
    exactly(k2[1], tensor(theirs["gradient"]))
    exactly(k3[0], tensor(theirs["loss"]))


@pytest.mark.parametrize("name", ["grpo", "dr_grpo"])
def test_departure_a_row_without_a_trained_token_counts_in_trls_mean_and_not_in_ours(name):
    theirs = TRL["cases"][f"{name} with an empty row"]
    assert theirs["truncated"] == [4]
    assert_the_same(LIKE_TRL[name], theirs, theirs["advantages"], scale=9 / 8)


def test_departure_trl_spreads_truncated_weights_over_the_row_when_the_ratio_is_the_rows():
    """Ours weighs each token's own gradient, as GSPO-token does; value and each row's sum of gradients are the same."""
    theirs = TRL["cases"]["gspo tis"]
    loss, gradient, _ = ours({"setting": "grpo", "tis_cap": 1.1}, theirs["advantages"])
    exactly(loss, tensor(theirs["loss"]))
    torch.testing.assert_close(gradient.sum(dim=1), tensor(theirs["gradient"]).sum(dim=1), rtol=1e-6, atol=1e-9)
    assert not torch.allclose(gradient, tensor(theirs["gradient"]), rtol=0.01)


def test_log_probabilities_at_a_temperature_are_trls():
    """TRL's kernel computes in fp32."""
    theirs = TRL["temperature"]
    head = nn.Linear(4, 11, bias=False, dtype=torch.float64)
    head.weight.data.copy_(tensor(theirs["weight"]))
    targets = torch.tensor(theirs["targets"])
    logprobs, entropy = target_logprobs(head, tensor(theirs["hidden"]), targets, theirs["temperature"])
    logprobs.sum().backward()
    told = {"log_probs": logprobs, "entropy": entropy, "weight_gradient": head.weight.grad}
    for name, value in told.items():
        torch.testing.assert_close(value, tensor(theirs[name]), rtol=2e-6, atol=2e-6)


# -- verl and open-instruct --------------------------------------------------------------------------------------------

VERL_BOUNDS = {"clip_low": 0.2, "clip_high": 0.28, **SAMPLED}
LIKE_VERL = {
    "vanilla, token-mean": {"normalise": "token", **VERL_BOUNDS},
    "vanilla, seq-mean-token-sum": {"normalise": "constant", "constant": 1, **VERL_BOUNDS},
    "vanilla, seq-mean-token-mean": {"normalise": "sequence", **VERL_BOUNDS},
    "gspo": {"setting": "gspo"},
    "cispo": {"policy_loss": "cispo", "normalise": "token", **VERL_BOUNDS},
    "rollout_is token, threshold 1.1": {"normalise": "token", "tis_cap": 1.1},
    "kl_loss_type k3, 0.04, seq-mean-token-mean": {"setting": "grpo", **K3, **SAMPLED},
} | {
    f"kl_loss_type {kind}, 0.04": {"normalise": "token", **EQUAL_BOUNDS, "beta": 0.04, "kl": kind, **SAMPLED}
    for kind in ("k1", "k2", "k3")
}
OPEN_INSTRUCT_BOUNDS = {"clip_low": 0.2, "clip_high": 0.272, **SAMPLED}
LIKE_OPEN_INSTRUCT = {
    "dapo": {"normalise": "token", **OPEN_INSTRUCT_BOUNDS},
    "cispo, clip_higher 4": {"setting": "cispo"},
    "rho_clamp_upper_bound 1.1": {"normalise": "token", "tis_cap": 1.1},
} | {
    f"kl_estimator {place}, beta 0.05": {"normalise": "token", **OPEN_INSTRUCT_BOUNDS, "beta": 0.05, "kl": kind}
    for place, kind in enumerate(("k1", "k2", "k3"))
}
SUMS_OVER_A_CONSTANT = {
    "verl": "vanilla, seq-mean-token-sum-norm, loss_scale_factor 10",
    "open-instruct": "dapo, loss_denominator 10",
}
LIKE_PEERS = {"verl": LIKE_VERL, "open-instruct": LIKE_OPEN_INSTRUCT}
BOUNDS = {"verl": VERL_BOUNDS, "open-instruct": OPEN_INSTRUCT_BOUNDS}


@pytest.mark.parametrize(("peer", "name"), [(peer, name) for peer, like in LIKE_PEERS.items() for name in like])
def test_loss_and_gradient_are_those_of_the_published_formula(peer, name):
    assert_the_same(LIKE_PEERS[peer][name], PUBLISHED["cases"][peer][name], PUBLISHED["given advantages"])


@pytest.mark.parametrize("peer", ["verl", "open-instruct"])
def test_departure_a_constant_divides_the_sum_in_verl_and_open_instruct_and_the_mean_over_rows_here(peer):
    """Theirs: sum / 10. Ours: sum / (rows x constant). The same with constant = 10 / rows; else the number of rows
    between them."""
    theirs = PUBLISHED["cases"][peer][SUMS_OVER_A_CONSTANT[peer]]
    recipe = {"normalise": "constant", "constant": 10, **BOUNDS[peer]}
    assert_the_same(recipe, theirs, PUBLISHED["given advantages"], scale=1 / 9)


def test_departure_verls_dual_clip_silences_bad_tokens_whose_ratio_is_above_c():
    """arXiv:1912.09729: where A < 0 and r > c = 3 verl's gradient is 0 and its value -A c; ours goes on with -A r."""
    theirs = PUBLISHED["cases"]["verl"]["vanilla, clip_ratio_c 3"]
    advantages = tensor(PUBLISHED["given advantages"])[:, None]
    loss, gradient, _ = ours({"setting": "dapo", **SAMPLED}, PUBLISHED["given advantages"])
    ratio = (tensor(BATCH["learner"]) - tensor(BATCH["old"])).exp()
    silenced = tensor(BATCH["mask"]).bool() & (advantages < 0) & (ratio > 3)
    assert silenced.any()
    exactly(gradient * ~silenced, tensor(theirs["gradient"]))
    excess = (-advantages * (ratio - 3) * silenced).sum() / tensor(BATCH["mask"]).sum()
    exactly(loss - excess, tensor(theirs["loss"]))


def test_verls_k3_plus_is_k2_in_the_gradient_and_k3_in_the_value():
    theirs = PUBLISHED["cases"]["verl"]["kl_loss_type k3+, 0.04"]
    given = PUBLISHED["given advantages"]
    recipe = {"normalise": "token", **EQUAL_BOUNDS, "beta": 0.04, **SAMPLED}
    exactly(ours({**recipe, "kl": "k2"}, given)[1], tensor(theirs["gradient"]))
    exactly(ours({**recipe, "kl": "k3"}, given)[0], tensor(theirs["loss"]))


# -- advantages --------------------------------------------------------------------------------------------------------

SIGNAL = REWARDS[:2]
"""The third group has none: every program gives it zeros."""


def sample_std(group: list[float]) -> float:
    return tensor(group).std().item()


def population_std(group: list[float]) -> float:
    return tensor(group).std(correction=0).item()


def test_departure_our_grpo_advantages_are_larger_than_trls_and_verls_by_the_root_of_n_over_n_minus_one():
    """They divide by the sample's deviation (n - 1 in its denominator) plus 1e-4 and 1e-6, we by the population's:
    times sqrt(3 / 2) in groups of three, but for what they add."""
    verl = PUBLISHED["advantages"]["verl"]["norm_adv_by_std_in_grpo: true"]
    for theirs, added in ((TRL["cases"]["grpo"]["advantages"], 1e-4), (verl, 1e-6)):
        for place, group in enumerate(SIGNAL):
            expected = (tensor(theirs[3 * place : 3 * place + 3]) * (sample_std(group) + added)) / population_std(group)
            exactly(tensor(group_advantages(group, "grpo")), expected)
            assert sample_std(group) / population_std(group) == pytest.approx((3 / 2) ** 0.5)
        assert theirs[6:] == group_advantages(REWARDS[2], "grpo") == [0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "peer", "name"),
    [
        ("grpo", "open-instruct", "standard"),
        ("centered", "open-instruct", "centered"),
        ("centered", "verl", "norm_adv_by_std_in_grpo: false"),
        ("rloo", "verl", "adv_estimator: rloo"),
    ],
)
def test_advantages_are_those_of_the_published_formula(kind, peer, name):
    values = [value for group in REWARDS for value in group_advantages(group, kind)]
    exactly(tensor(values), tensor(PUBLISHED["advantages"][peer][name]))


def test_departure_an_answer_without_a_reward_trains_with_advantage_zero_in_trl_and_not_at_all_here():
    theirs = TRL["advantages with a missing reward"][:3]
    first, missing, last = group_advantages([REWARDS[0][0], None, REWARDS[0][2]], "grpo")
    assert (missing, theirs[1]) == (None, 0)
    present = [REWARDS[0][0], REWARDS[0][2]]
    scale = (sample_std(present) + 1e-4) / population_std(present)
    assert [first, last] == pytest.approx([theirs[0] * scale, theirs[2] * scale], rel=1e-6)


# -- the names in a recipe ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMED_LOSSES)
def test_a_named_setting_says_its_keys_and_can_be_read_again_from_the_resolved_recipe(name):
    constant = {"constant": 9} if name == "dr_grpo" else {}
    recipe = LossRecipe.model_validate({"setting": name, **constant})
    for key, value in NAMED_LOSSES[name].items():
        assert getattr(recipe, key) == value
    assert LossRecipe.model_validate(recipe.model_dump(exclude_none=True)) == recipe
    assert f'setting = "{name}"' in tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {"setting": "dapo", "clip_high": 0.2},
            'clip_high = 0.2 contradicts setting = "dapo", which sets 0.28; remove one',
        ),
        (
            {"setting": "gspo", "old_logprobs": "learner"},
            'old_logprobs = "learner" contradicts setting = "gspo", which sets "sampler"',
        ),
        ({"setting": "dr_grpo"}, "constant is missing"),
        ({"setting": "gpso"}, "'grpo', 'dr_grpo', 'dapo', 'gspo' or 'cispo'"),
        (
            {"ratio": "sequence", "old_logprobs": "learner"},
            'ratio = "sequence" has no effect with old_logprobs = "learner"',
        ),
        (
            {"policy_loss": "cispo", "old_logprobs": "learner"},
            'policy_loss = "cispo" has no effect with old_logprobs = "learner"',
        ),
        ({"tis_cap": 2.0, "old_logprobs": "sampler"}, 'tis_cap repeats the correction of old_logprobs = "sampler"'),
        ({"setting": "cispo", "tis_cap": 2.0}, 'tis_cap repeats the correction of old_logprobs = "sampler"'),
    ],
)
def test_a_loss_that_would_not_be_what_it_says_is_refused(keys, expected):
    with pytest.raises(ValidationError) as caught:
        LossRecipe.model_validate(keys)
    assert expected in str(caught.value)


def test_the_docs_show_the_named_settings_as_they_are():
    section = DOCS.read_text().partition("## Named settings")[2].partition("\n## ")[0]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in section.splitlines() if "arXiv" in line]
    rows = [row for row in rows if len(row) == 9]
    assert [row[0] for row in rows] == list(NAMED_LOSSES)
    for name, _, *values in rows:
        keys = ("advantage", "normalise", "policy_loss", "ratio", "clip_low", "clip_high")
        expected = [str(NAMED_LOSSES[name][key]) for key in keys]
        assert values == [*expected, NAMED_LOSSES[name].get("old_logprobs", "any")]
