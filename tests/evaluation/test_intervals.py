from __future__ import annotations

import pytest

from sleuth.evaluation.intervals import UNMEASURED, Measured, bootstrap_mean, paired_bootstrap, share, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # By hand, z = 1.96: centre (p + z²/2n) / (1 + z²/n), half z sqrt(p(1-p)/n + z²/4n²) / (1 + z²/n).
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (50, 100, 0.4038, 0.5962)],
)
def test_wilson_matches_the_formula_by_hand(successes: int, n: int, low: float, high: float) -> None:
    measured = wilson(successes, n)
    assert (measured.value, measured.n) == (successes / n, n)
    assert (measured.low, measured.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_nothing_measured_is_neither_zero_nor_a_crash() -> None:
    assert wilson(0, 0) == share([]) == bootstrap_mean([None, None]) == paired_bootstrap([], []) == UNMEASURED
    assert UNMEASURED.as_json() == {"value": None, "low": None, "high": None, "n": 0}


@pytest.mark.parametrize(("successes", "n"), [(3, 2), (-1, 2)])
def test_impossible_counts_are_refused(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="successes in"):
        wilson(successes, n)


def test_missing_values_are_left_out_and_never_zero() -> None:
    assert share([1, None, 1, 0, None]) == wilson(2, 3)
    measured = bootstrap_mean([2.0, None, 4.0])
    assert (measured.value, measured.n) == (3.0, 2)
    assert share([0.0, 0.0]).value == 0.0


def test_the_bootstrap_interval_holds_the_binomial_quantiles() -> None:
    # A resampled mean of five ones and five zeros is Binomial(10, 1/2) / 10:
    # P(X <= 1) = 0.011 < 0.025 < P(X <= 2) = 0.055, so the 2.5 % quantile is 0.2, and 0.8 by symmetry.
    assert bootstrap_mean([1.0, 0.0] * 5) == Measured(value=0.5, low=0.2, high=0.8, n=10)


def test_constant_values_have_no_spread() -> None:
    assert bootstrap_mean([3.0] * 7) == Measured(value=3.0, low=3.0, high=3.0, n=7)


def test_the_same_seed_draws_the_same_interval() -> None:
    values = [float(i * i % 17) for i in range(40)]
    assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3)
    assert bootstrap_mean(values, seed=3) != bootstrap_mean(values, seed=4)


def test_siblings_of_one_cluster_do_not_narrow_an_interval() -> None:
    values = [1.0, 0.0] * 5
    clusters = list(range(10))
    assert bootstrap_mean(values * 4, clusters * 4) == bootstrap_mean(values)
    assert share(values * 4, clusters * 4) == share(values)


def test_a_cluster_counts_once_and_by_what_is_there() -> None:
    assert share([1, 0, None, 1, None], ["a", "a", "a", "b", "c"]) == wilson(1.5, 2)


def test_a_paired_comparison_is_of_the_differences() -> None:
    a, b = [5.0, 9.0, 2.0], [4.0, 8.0, 1.0]
    assert paired_bootstrap(a, b) == Measured(value=1.0, low=1.0, high=1.0, n=3)
    assert paired_bootstrap(b, a).value == -1.0
    clustered = paired_bootstrap([1, 1, 0], [0, 0, 0], clusters=["x", "x", "y"])
    assert clustered == Measured(value=0.5, low=0.0, high=1.0, n=2)


def test_a_pair_that_lacks_a_side_is_left_out() -> None:
    assert paired_bootstrap([1.0, None, 3.0], [0.0, 5.0, None]) == Measured(value=1.0, low=1.0, high=1.0, n=1)


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        paired_bootstrap([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="zip"):
        bootstrap_mean([1.0], clusters=["a", "b"])
