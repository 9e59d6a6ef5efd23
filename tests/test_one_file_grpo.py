from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from sleuth.learn.batch import Row, collate
from sleuth.learn.logprobs import token_logprobs
from sleuth.learn.losses import clipped_policy_loss, group_advantages
from sleuth.learn.prefix_tree import Pack, prefix_tree

FILE = Path(__file__).parents[1] / "examples" / "one_file_grpo.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("one_file_grpo", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sampled(example, model):
    generator = torch.Generator().manual_seed(5)
    prompts = example.draw_prompts(6, generator).repeat_interleave(4, dim=0)
    tokens, mask = example.sample(model, prompts, generator)
    return tokens, mask, torch.randn(24, generator=generator)


def test_the_one_file_example_does_not_import_the_library():
    assert "sleuth" not in FILE.read_text()


def test_the_one_file_example_gives_the_librarys_loss_and_gradients(example):
    model = example.tiny_model(0).eval()
    tokens, mask, advantages = sampled(example, model)
    old = example.token_logprobs(model, tokens).detach() + 0.3 * torch.randn(tokens.shape)  # some ratios are clipped

    loss = example.grpo_loss(example.token_logprobs(model, tokens), old, advantages, mask)
    loss.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()

    rows = zip(tokens.tolist(), mask.tolist(), advantages.tolist(), strict=True)
    batch = collate([Row(tokens=tuple(ids), trained=tuple(written), advantage=a) for ids, written, a in rows])
    logprobs, _ = token_logprobs(
        model, Pack(rows=batch, tree=prefix_tree(batch), members=tuple(range(len(batch.lengths))))
    )
    bounds = {"low": example.CLIP_LOW, "high": example.CLIP_HIGH}
    ours = clipped_policy_loss(logprobs, old, batch.advantages, batch.weights, **bounds)
    ours.backward()
    assert ours.item() == pytest.approx(loss.item(), abs=1e-6)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert gradient.any()
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-6)


def test_the_one_file_example_gives_the_librarys_advantages(example):
    rewards = torch.tensor([[0.0, 0.5, 1.0, 0.0], [0.5, 0.5, 0.5, 0.5]])
    expected = [group_advantages(group, "grpo") for group in rewards.tolist()]
    torch.testing.assert_close(example.group_advantages(rewards), torch.tensor(expected))


def test_the_one_file_example_learns(example):
    history = example.train(20, log_every=0)
    assert history[0] < 0.1
    assert sum(history[-4:]) / 4 > 0.15, "chance is 0.03"
