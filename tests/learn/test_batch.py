from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.learn.batch import Row, collate, trajectory_row
from sleuth.types import Segment, Trajectory

TRAJECTORY = Trajectory(
    segments=(
        Segment(author="template", tokens=(1, 2), text="where?"),
        Segment(author="policy", tokens=(3, 4), text="<search> Ada", logprobs=(-0.5, -0.25)),
        Segment(author="env", tokens=(5, 6, 7), text="Ada was born in Tarn."),
        Segment(author="policy", tokens=(8,), text="Tarn", logprobs=(-1.0,)),
    )
)

ragged = st.lists(st.integers(2, 20), min_size=1, max_size=12)


def plain_row(length: int, first: int = 0) -> Row:
    return Row(tokens=tuple(range(first, first + length)), trained=(False, *[True] * (length - 1)), advantage=1.0)


def test_only_what_the_policy_wrote_is_trained():
    row = trajectory_row(TRAJECTORY, 0.75)
    assert row.tokens == (1, 2, 3, 4, 5, 6, 7, 8)
    assert row.trained == (False, False, True, True, False, False, False, True)
    assert row.sampler_logprobs == (0.0, 0.0, -0.5, -0.25, 0.0, 0.0, 0.0, -1.0)
    batch = collate([row])
    assert batch.weights.tolist() == [[0, 0, pytest.approx(1 / 3), pytest.approx(1 / 3), 0, 0, 0, pytest.approx(1 / 3)]]
    assert batch.advantages.tolist() == [[0, 0, 0.75, 0.75, 0, 0, 0, 0.75]]


def test_a_segment_without_log_probabilities_leaves_the_batch_without_them():
    silent = Trajectory(segments=(*TRAJECTORY.segments, Segment(author="policy", tokens=(9,), text=".")))
    assert trajectory_row(silent, 0.0).sampler_logprobs is None
    assert collate([trajectory_row(TRAJECTORY, 1.0), trajectory_row(silent, 1.0)]).sampler_logprobs is None
    assert collate([trajectory_row(TRAJECTORY, 1.0)]).sampler_logprobs is not None


def test_the_first_token_of_a_row_is_never_trained():
    batch = collate([Row(tokens=(4, 5, 6), trained=(True, True, True))])
    assert batch.trained.tolist() == [[False, True, True]]
    assert batch.weights.tolist() == [[0, 0.5, 0.5]]


def test_emphasis_counts_only_on_trained_tokens():
    loud = Row(tokens=(4, 5, 6), trained=(False, True, False), emphasis=(9.0, 3.0, 9.0))
    batch = collate([loud, Row(tokens=(7, 8), trained=(False, True))])
    assert batch.weights.tolist() == [[0, 0.75, 0], [0, 0.25, 0]]


def test_counts_tell_trained_computed_and_dense_tokens():
    batch = collate([plain_row(3), plain_row(5), plain_row(2)])
    assert (batch.tokens_trained, batch.tokens_computed, batch.tokens_dense) == (7, 15, 10)


def test_micro_batches_are_longest_first_with_ties_in_order():
    batch = collate([plain_row(3, 10), plain_row(5, 20), plain_row(3, 30), plain_row(5, 40)])
    first, second = batch.micro_batches(10)
    assert first.tokens[:, 0].tolist() == [20, 40]
    assert second.tokens[:, 0].tolist() == [10, 30]
    assert second.tokens.shape == (2, 3)


@given(lengths=ragged, budget=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_micro_batches_fit_the_budget_and_lose_nothing(lengths, budget):
    batch = collate([plain_row(length, 100 * index) for index, length in enumerate(lengths)])
    parts = batch.micro_batches(budget)
    for part in parts:
        assert part.tokens_computed <= budget or len(part.lengths) == 1
        assert part.tokens.shape[1] == int(part.lengths.max())
    rows = sorted(tuple(row[: part.lengths[i]].tolist()) for part in parts for i, row in enumerate(part.tokens))
    assert rows == sorted(plain_row(length, 100 * index).tokens for index, length in enumerate(lengths))
    assert sum(part.weights.sum().item() for part in parts) == pytest.approx(1.0)


def test_a_part_keeps_the_weights_it_had_in_the_whole():
    batch = collate([plain_row(3), plain_row(5)], normalise="sequence")
    assert torch.equal(batch.take([1]).weights[0], batch.weights[1])
    assert torch.equal(batch.take([0]).weights[0], batch.weights[0, :3])
