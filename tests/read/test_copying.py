"""The loss on where the copying head attends is that of the attention which transformers computes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from padded import padded_logprobs
from torch import Tensor

from sleuth.learn.batch import Batch, Row, collate
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy
from sleuth.read.rows_stage import CopyingLoss, CopyingUpdate

WEIGHT = 0.7


def copying_rows() -> Batch:
    """Rows of two prompts, in pairs that share one, whose last tokens copy earlier ones; the very last copies none."""
    draw = random.Random(0)

    def row(prompt: tuple[int, ...]) -> Row:
        sources = draw.sample(range(len(prompt)), 3)
        answer = tuple(prompt[source] for source in sources)
        return Row(
            tokens=(*prompt, *answer, 40),
            trained=(*(False,) * len(prompt), *(True,) * 4),
            token_weight=(*(0.0,) * len(prompt), 3.0, 1.0, 1.0, 1.0),
            sources=(*(-1,) * len(prompt), *sources, -1),
        )

    prompts = [tuple(draw.randrange(40) for _ in range(length)) for length in (9, 14)]
    return collate([row(prompt) for prompt in prompts for _ in range(2)])


def dense_loss(model, batch: Batch) -> tuple[Tensor, Tensor]:
    """The two losses from the attention matrix of the last layer and all logits."""
    answer = -(padded_logprobs(model, batch) * batch.weights).sum()
    attention = model(batch.tokens, output_attentions=True).attentions[-1]  # (B, H, T, T)
    copying = torch.zeros(())
    assert batch.sources is not None
    for row, token in (batch.sources >= 0).nonzero().tolist():
        seen = attention[row, 0, token - 1, batch.sources[row, token]]
        copying = copying - batch.weights[row, token] * seen.log()
    return answer, copying


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("budget", [1_000, 20])
def test_loss_and_gradient_are_those_of_dense_attention(make_model, family, budget):
    batch, plain, model = copying_rows(), make_model(family), make_model(family)
    model.load_state_dict(plain.state_dict())
    plain.set_attn_implementation("eager")
    answer, copying = dense_loss(plain, batch)
    (answer + WEIGHT * copying).backward()
    norm = torch.nn.utils.get_total_norm([weight.grad for weight in plain.parameters()])
    policy = Policy(model, Optimisation(steps=1, learning_rate=1e-9, max_grad_norm=1e9))
    gradients = {}
    collect = policy.masters.clip_gradients

    def seen(max_norm: float) -> float:
        gradients.update({name: weight.grad.clone() for name, weight in model.named_parameters()})
        return collect(max_norm)

    policy.masters.clip_gradients = seen
    update = policy.minimise(batch, CopyingLoss(copying=WEIGHT), CopyingUpdate, budget=budget)
    assert update.copying_loss == pytest.approx(copying.item(), rel=1e-5)
    assert update.loss == pytest.approx((answer + WEIGHT * copying).item(), rel=1e-5)
    assert update.gradient_norm == pytest.approx(norm.item(), rel=1e-4)
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, atol=1e-5, rtol=1e-4, msg=name)


def test_rows_without_sources_have_no_such_loss(make_model):
    batch = copying_rows()
    nothing = replace(batch, sources=torch.full_like(batch.tokens, -1))
    model = make_model("qwen3")
    policy = Policy(model, Optimisation(steps=1, learning_rate=1e-9))
    update = policy.minimise(nothing, CopyingLoss(copying=WEIGHT), CopyingUpdate, budget=1_000)
    assert update.copying_loss == 0
    assert update.loss == pytest.approx(-(padded_logprobs(model, batch) * batch.weights).sum().item(), rel=1e-5)
