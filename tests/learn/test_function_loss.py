"""A loss of a user's function: the same gradients as ours where it computes the same, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sleuth.learn.losses import FunctionAdvantages, FunctionLoss, PolicyLoss, clipped_policy_loss, require_loss
from sleuth.own.functions import UserCodeError, load_function

SOURCE = """
import torch

def clipped(logprobs, old_logprobs, advantages, weights, *, low, high):
    ratio = (logprobs - old_logprobs).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    return -(gain * weights).sum()

def plain(logprobs, old_logprobs, advantages, weights, *, factor=1.0):
    return -factor * (logprobs * advantages * weights).sum()

def mean(logprobs, old_logprobs, advantages, weights):
    return -(logprobs * advantages * weights).mean()

def unweighted(logprobs, old_logprobs, advantages, weights):
    return -(logprobs * advantages).sum()

def number(logprobs, old_logprobs, advantages, weights):
    return 1.0

def of_tokens(logprobs, old_logprobs, advantages, weights):
    return logprobs * weights

def constant(logprobs, old_logprobs, advantages, weights):
    return weights.sum()

def nan(logprobs, old_logprobs, advantages, weights):
    return (logprobs * weights).sum() / 0

def raises(logprobs, old_logprobs, advantages, weights):
    return logprobs @ old_logprobs

def three(logprobs, old_logprobs, advantages):
    return 0
"""


def loss(name: str, folder: Path, **parameters: object) -> FunctionLoss:
    file = folder / "minimised.py"
    if not file.exists():
        file.write_text(SOURCE)
    return FunctionLoss(load_function(f"{file}:{name}"), parameters)


def test_a_copy_of_our_loss_is_our_loss(tmp_path: Path) -> None:
    own = loss("clipped", tmp_path)
    require_loss(own, low=0.2, high=0.3)
    generator = torch.Generator().manual_seed(1)
    logprobs = (-torch.rand((4, 6), generator=generator)).requires_grad_()
    rest = (
        logprobs.detach() + torch.randn((4, 6), generator=generator),
        torch.randn((4, 1), generator=generator),
        torch.rand((4, 6), generator=generator),
    )
    ours, users = (one(logprobs, *rest, low=0.2, high=0.3) for one in (clipped_policy_loss, own))
    gradients = [torch.autograd.grad(one, logprobs)[0] for one in (ours, users)]
    assert torch.equal(ours, users)
    assert torch.equal(*gradients)


def test_parameters_are_passed_and_bounds_only_if_the_function_has_them(tmp_path: Path) -> None:
    require_loss(loss("plain", tmp_path), low=0.2, high=0.3)
    tensors = (torch.ones((1, 2), requires_grad=True), *(torch.ones((1, 2)) for _ in range(3)))
    assert loss("plain", tmp_path, factor=3.0)(*tensors, low=0.2, high=0.3).item() == -6.0
    assert (loss("plain", tmp_path).optional, loss("clipped", tmp_path).optional) == ([], ["low", "high"])


def test_a_loss_of_the_user_is_computed_on_whole_rows(tmp_path: Path) -> None:
    assert PolicyLoss().is_sum_over_tokens
    assert not PolicyLoss(function=loss("plain", tmp_path)).is_sum_over_tokens


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mean", "so that it would depend on micro-batches; return the sum over tokens of values times weights"),
        ("unweighted", "gives a gradient to tokens with weight 0, which the policy did not write; multiply by weights"),
        ("number", "returned 1.0; expected a tensor with one number"),
        ("of_tokens", "returned a tensor of shape (3, 5); expected a tensor with one number"),
        ("constant", "returned a number without a gradient; compute it from logprobs"),
        ("nan", "with a gradient that is not finite; check for divisions by 0"),
        ("raises", "minimised.py:31: raises: RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_a_wrong_loss_is_refused_before_the_run(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserCodeError) as caught:
        require_loss(loss(name, tmp_path), low=0.2, high=0.3)
    assert reason in str(caught.value)
    assert f": {name}: " in str(caught.value)


def test_a_wrong_signature_is_refused_with_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"takes 3 arguments; expected def three\(logprobs, old_logprobs, adv"):
        loss("three", tmp_path)
    with pytest.raises(UserCodeError, match="has no parameter factr; the nearest is factor"):
        loss("plain", tmp_path, factr=1)


def test_a_missing_score_has_no_advantage_whatever_the_function_says(tmp_path: Path) -> None:
    (tmp_path / "own_advantages.py").write_text(
        "def centred(scores):\n"
        "    known = [score or 0.0 for score in scores]\n"
        "    return [score - sum(known) / len(known) for score in known]\n"
    )
    advantages = FunctionAdvantages(load_function(f"{tmp_path}/own_advantages.py:centred"))
    assert advantages([[1.0, None, 0.5, 0.5], [None, None]]) == [[0.5, None, 0.0, 0.0], [None, None]]
