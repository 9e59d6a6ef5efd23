from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sleuth.learn.batch import Row, collate, trajectory_row
from sleuth.learn.losses import Normaliser
from sleuth.types import Credit, Segment, Trajectory

TRAJECTORY = Trajectory(
    segments=(
        Segment(author="template", tokens=(1, 2), text="where?"),
        Segment(author="policy", tokens=(3, 4), text="<search> Ada", logprobs=(-0.5, -0.25)),
        Segment(author="env", tokens=(5, 6, 7), text="Ada was born in Tarn."),
        Segment(author="policy", tokens=(8,), text="Tarn", logprobs=(-1.0,)),
    )
)


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


def test_credit_is_added_to_the_advantage_of_its_segment_alone():
    paid = trajectory_row(
        TRAJECTORY, 0.75, credits=(Credit(segment=1, value=-0.25), Credit(segment=2, value=9.0))
    )  # nobody trains what the environment wrote
    plain = trajectory_row(TRAJECTORY, 0.5)
    batch = collate([paid, plain])
    assert batch.advantages.tolist() == [[0, 0, 0.5, 0.5, 0, 0, 0, 0.75], [0, 0, 0.5, 0.5, 0, 0, 0, 0.5]]
    assert batch.weights.tolist() == collate([plain, plain]).weights.tolist()


def test_credits_of_single_tokens_add_up_where_they_meet():
    credits = (Credit(segment=1, value=1.0, end=1), Credit(segment=1, value=0.5), Credit(segment=3, value=2.0, begin=1))
    batch = collate([trajectory_row(TRAJECTORY, 0.25, credits=credits)])
    assert batch.advantages.tolist() == [[0, 0, 1.75, 0.75, 0, 0, 0, 0.25]]


def test_a_row_that_is_paid_for_one_segment_alone_is_computed():
    idle = trajectory_row(TRAJECTORY, 0.0)
    charged = trajectory_row(TRAJECTORY, 0.0, credits=(Credit(segment=1, value=-0.25),))
    with_advantage = collate([idle, charged]).with_advantage()
    assert with_advantage.advantages.tolist() == [[0, 0, -0.25, -0.25, 0, 0, 0, 0]]


def test_a_segment_without_log_probabilities_leaves_the_batch_without_them():
    silent = Trajectory(segments=(*TRAJECTORY.segments, Segment(author="policy", tokens=(9,), text=".")))
    assert trajectory_row(silent, 0.0).sampler_logprobs is None
    assert collate([trajectory_row(TRAJECTORY, 1.0), trajectory_row(silent, 1.0)]).sampler_logprobs is None
    assert collate([trajectory_row(TRAJECTORY, 1.0)]).sampler_logprobs is not None


def test_emphasis_counts_only_on_trained_tokens():
    loud = Row(tokens=(4, 5, 6), trained=(False, True, False), token_weight=(9.0, 3.0, 9.0))
    batch = collate([loud, Row(tokens=(7, 8), trained=(False, True))])
    assert batch.weights.tolist() == [[0, 0.75, 0], [0, 0.25, 0]]


def test_counts_tell_trained_and_dense_tokens():
    batch = collate([plain_row(3), plain_row(5), plain_row(2)])
    assert (batch.tokens_trained, batch.tokens_dense) == (7, 10)


@pytest.mark.parametrize(
    ("normalise", "of_episodes"),
    [("token", [6 / 9, 3 / 9]), ("sequence", [1 / 2, 1 / 2]), ("constant", [6 / 20, 3 / 20])],
)
def test_rows_of_one_story_count_as_one_row(normalise: Normaliser, of_episodes: list[float]):
    rows = [replace(plain_row(length), episode_id=episode_id) for length, episode_id in ((3, 7), (4, 2), (5, 7))]
    weights = collate(rows, normalise=normalise, constant=10).weights
    assert weights[[0, 2]].sum().item() == pytest.approx(of_episodes[0])
    assert weights[1].sum().item() == pytest.approx(of_episodes[1])
    assert torch.equal(weights[0, 1:3], weights[2, 1:3])


def test_a_part_keeps_the_weights_it_had_in_the_whole():
    batch = collate([plain_row(3), plain_row(5)], normalise="sequence")
    assert torch.equal(batch.take([1]).weights[0], batch.weights[1])
    assert torch.equal(batch.take([0]).weights[0], batch.weights[0, :3])
