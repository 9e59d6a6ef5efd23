from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleuth.learn.losses import group_advantages, has_signal

scores = st.lists(st.none() | st.integers(-50, 50).map(lambda tenths: tenths / 10), min_size=1, max_size=9)


def slow_advantages(values, kind):
    """Each advantage from its definition, one sibling at a time."""
    result = []
    for index, value in enumerate(values):
        if value is None:
            result.append(None)
            continue
        others = [other for place, other in enumerate(values) if place != index and other is not None]
        present = [*others, value]
        mean = sum(present) / len(present)
        if kind == "rloo":
            result.append(value - sum(others) / len(others) if others else 0.0)
        elif kind == "centered":
            result.append(value - mean)
        else:
            std = math.sqrt(sum((other - mean) ** 2 for other in present) / len(present))
            result.append((value - mean) / max(std, 1e-4))
    return result


def test_grpo_divides_by_the_population_standard_deviation():
    # mean 1/4; variance (9/16 + 3 * 1/16) / 4 = 3/16; (3/4) / sqrt(3/16) = sqrt(3); (-1/4) / sqrt(3/16) = -1/sqrt(3)
    third = -1 / math.sqrt(3)
    assert group_advantages([1, 0, 0, 0], "grpo") == pytest.approx([math.sqrt(3), third, third, third])


def test_centered_only_subtracts_the_mean():
    assert group_advantages([1, 0, 0, 0], "centered") == [0.75, -0.25, -0.25, -0.25]


def test_rloo_subtracts_the_mean_of_the_others():
    # 1 - 0; 0 - 1/3
    assert group_advantages([1, 0, 0, 0], "rloo") == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])


@pytest.mark.parametrize("kind", ["grpo", "centered", "rloo"])
def test_a_missing_sibling_leaves_mean_deviation_and_result(kind):
    whole = group_advantages([0.2, 0.9, 0.4], kind)
    assert group_advantages([None, 0.2, 0.9, None, 0.4], kind) == [None, whole[0], whole[1], None, whole[2]]


@pytest.mark.parametrize("kind", ["grpo", "centered", "rloo"])
@pytest.mark.parametrize("values", [[0.1, 0.1, 0.1], [0.7], [None, 0.3], [None, None]])
def test_a_group_without_signal_gets_exactly_zero(kind, values):
    assert not has_signal(values)
    assert group_advantages(values, kind) == [None if value is None else 0.0 for value in values]


def test_the_floor_keeps_noise_small():
    # std = 5e-7 is under the floor: (5e-7) / 1e-4 = 0.005 instead of 1
    assert group_advantages([0.5, 0.500001], "grpo") == pytest.approx([-0.005, 0.005], rel=1e-4)


@pytest.mark.parametrize("kind", ["grpo", "centered", "rloo"])
@given(values=scores)
def test_advantages_equal_their_definition(kind, values):
    expected = slow_advantages(values, kind)
    for ours, theirs in zip(group_advantages(values, kind), expected, strict=True):
        assert ours == (None if theirs is None else pytest.approx(theirs, abs=1e-9))


def test_only_the_best_is_imitated_and_only_if_above_zero() -> None:
    assert group_advantages([0.2, None, 0.5, -1.0], "best") == [0.0, None, 1.0, 0.0]
    assert group_advantages([0.5, 0.5, 0.1], "best") == [1.0, 0.0, 0.0]
    assert group_advantages([-0.2, -0.5], "best") == [0.0, 0.0]
    assert group_advantages([0.4, 0.4], "best") == [0.0, 0.0]  # siblings that are alike teach nothing
