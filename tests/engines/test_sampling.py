from __future__ import annotations

import torch

from sleuth.engines.sampling import sample, uniforms


def test_draws_follow_the_key_and_nothing_else():
    assert uniforms((0, 3, 1), 5) == uniforms((0, 3, 1), 9)[:5]
    assert uniforms((0, 3, 1), 5) != uniforms((0, 31), 5)
    assert all(0 <= draw < 1 for draw in uniforms((), 100))


def test_tokens_are_drawn_as_often_as_they_are_likely():
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    draws = torch.tensor(uniforms((1,), 20000))
    tokens, logprobs = sample(logits.expand(20000, -1), torch.full((20000,), 0.5), draws)
    expected = (logits[0] / 0.5).softmax(-1)
    assert torch.allclose(tokens.bincount(minlength=4) / 20000, expected, atol=0.01)
    assert torch.allclose(logprobs.exp(), expected[tokens])


def test_each_row_keeps_its_own_temperature_and_zero_is_greedy():
    logits = torch.tensor([[0.0, 3.0, 1.0]]).expand(3, -1)
    tokens, logprobs = sample(logits, torch.tensor([0.0, 1.0, 100.0]), torch.tensor([0.999, 0.999, 0.999]))
    assert tokens.tolist() == [1, 2, 2]
    assert torch.allclose(logprobs[0], logits[0].log_softmax(-1)[1])  # greedy tells it at temperature 1


def test_a_token_of_probability_zero_is_never_drawn():
    never = float("-inf")
    logits = torch.tensor([[never, 0.0, never, -200.0, 0.0, never]])
    edges = torch.tensor([0.0, 0.5, 1 - 2**-53, 1.0], dtype=torch.float64)
    tokens, logprobs = sample(logits.expand(4, -1), torch.ones(4), edges)
    assert tokens.tolist() == [1, 4, 4, 4]
    assert logprobs.isfinite().all()
