from __future__ import annotations

import numpy as np
import pytest
import torch

from sleuth.engines import sampling
from sleuth.engines.sampling import uniforms


@pytest.fixture(params=["compiled", "torch"])
def sample(request, monkeypatch):
    """In both of its ways; torch's is that of other devices."""

    def by_torch(logits, temperatures, draws):
        tokens, logprobs = sampling.sample_rows(logits, *torch.from_numpy(np.stack([temperatures, draws]))).numpy()
        return tokens.astype(np.int64), logprobs

    if request.param == "torch":
        monkeypatch.setattr(sampling, "draw_tokens", lambda logits, *of: by_torch(torch.from_numpy(logits), *of))
    return sampling.sample


def test_draws_follow_the_key_and_nothing_else():
    assert np.array_equal(uniforms((0, 3, 1), 5), uniforms((0, 3, 1), 9)[:5])
    assert not np.array_equal(uniforms((0, 3, 1), 5), uniforms((0, 31), 5))
    assert all(0 <= draw < 1 for draw in uniforms((), 100))


def test_tokens_are_drawn_as_often_as_they_are_likely(sample):
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    tokens, logprobs = sample(logits.repeat(20000, 1), np.full(20000, 0.5), uniforms((1,), 20000))
    expected = (logits[0] / 0.5).softmax(-1).numpy()
    assert np.allclose(np.bincount(tokens, minlength=4) / 20000, expected, atol=0.01)
    assert np.allclose(np.exp(logprobs), expected[tokens])


@pytest.mark.parametrize("words", [1, 40, 64, 65, 1000])
def test_a_token_is_where_the_whole_cumulative_sum_passes_the_draw(sample, words):
    """The search in two steps, stretch by stretch, finds what a search of the row finds."""
    logits, draws = torch.randn(50, words, generator=torch.Generator().manual_seed(0)) * 3, uniforms((7,), 50)
    temperatures = np.where(np.arange(50) % 2, 1.0, 0.6)
    plain = (logits.double() / torch.from_numpy(temperatures)[:, None]).log_softmax(-1)
    expected = torch.searchsorted(plain.exp().cumsum(-1), torch.from_numpy(draws)[:, None], right=True)[:, 0]
    tokens, logprobs = sample(logits.clone(), temperatures, draws)
    assert tokens.tolist() == expected.clamp(max=words - 1).tolist()
    assert np.allclose(logprobs, plain.gather(1, torch.from_numpy(tokens)[:, None])[:, 0], atol=1e-5)


def test_each_row_keeps_its_own_temperature_and_zero_is_greedy(sample):
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    tokens, logprobs = sample(logits.repeat(3, 1), np.array([0.0, 1.0, 100.0]), np.array([0.999, 0.999, 0.999]))
    assert tokens.tolist() == [1, 2, 2]
    assert np.allclose(logprobs[0], logits[0].log_softmax(-1)[1])  # greedy tells it at temperature 1


def test_equal_logits_share_the_probability_at_the_smallest_temperatures(sample):
    tokens, logprobs = sample(torch.tensor([[3.0, 1.0, 3.0]]).repeat(2, 1), np.full(2, 1e-46), np.array([0.2, 0.7]))
    assert tokens.tolist() == [0, 2]
    assert np.allclose(logprobs, np.log(0.5))


def test_nan_logits_give_nan_log_probabilities(sample):
    logits = torch.randn(130, 130)
    logits[torch.arange(130), torch.arange(130)] = torch.nan
    assert np.isnan(sample(logits, np.ones(130), np.full(130, 0.5))[1]).all()
