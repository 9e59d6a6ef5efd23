"""A loss of a user's function: the same gradients as ours where it computes the same, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sleuth.learn.losses import clipped_policy_loss
from sleuth.learn.objective import FunctionLoss, PolicyLoss, require_loss
from sleuth.own.functions import UserCodeError, load_function

FOUR = "logprobs, old_logprobs, advantages, weights"
CLIPPED = """ratio = (logprobs - old_logprobs).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    return -(gain * weights).sum()"""
PLAIN = "return -factor * (logprobs * advantages * weights).sum()"


def loss(folder: Path, body: str, arguments: str = FOUR, **parameters: object) -> FunctionLoss:
    file = folder / "minimised.py"
    file.write_text(f"import torch\n\ndef own({arguments}):\n    {body}\n")
    return FunctionLoss(load_function(f"{file}:own"), parameters)


def test_a_copy_of_our_loss_is_our_loss(tmp_path: Path) -> None:
    own = loss(tmp_path, CLIPPED, f"{FOUR}, *, low, high")
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


def test_parameters_are_passed_and_the_loss_is_computed_on_whole_rows(tmp_path: Path) -> None:
    own = loss(tmp_path, PLAIN, f"{FOUR}, *, factor=1.0", factor=3.0)
    require_loss(own, low=0.2, high=0.3)
    tensors = (torch.ones((1, 2), requires_grad=True), *(torch.ones((1, 2)) for _ in range(3)))
    assert own(*tensors, low=0.2, high=0.3).item() == -6.0
    assert PolicyLoss().is_sum_over_tokens
    assert not PolicyLoss(function=own).is_sum_over_tokens
    assert not PolicyLoss(old_logprobs="sampler", ratio="sequence").is_sum_over_tokens


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "return -(logprobs * advantages * weights).mean()",
            "so that it would depend on micro-batches; return the sum over tokens of values times weights",
        ),
        (
            "return -(logprobs * advantages).sum()",
            "gives a gradient to tokens with weight 0, which the policy did not write; multiply by weights",
        ),
        ("return 1.0", "returned 1.0; expected a tensor with one number"),
        ("return logprobs * weights", "returned a tensor of shape (3, 5); expected a tensor with one number"),
        ("return weights.sum()", "returned a number without a gradient; compute it from logprobs"),
        ("return (logprobs * weights).sum() / 0", "with a gradient that is not finite; check for divisions by 0"),
        (
            "return logprobs @ old_logprobs",
            "minimised.py:4: own: RuntimeError: mat1 and mat2 shapes cannot be multiplied",
        ),
    ],
)
def test_a_wrong_loss_is_refused_before_the_run(body: str, reason: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserCodeError) as caught:
        require_loss(loss(tmp_path, body), low=0.2, high=0.3)
    assert reason in str(caught.value)
    assert ": own: " in str(caught.value)


def test_a_wrong_signature_is_refused_with_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"takes 3 arguments; expected def own\(logprobs, old_logprobs, adv"):
        loss(tmp_path, "return 0", "logprobs, old_logprobs, advantages")
    with pytest.raises(UserCodeError, match="has no parameter factr; the nearest is factor"):
        loss(tmp_path, PLAIN, f"{FOUR}, *, factor=1.0", factr=1)
