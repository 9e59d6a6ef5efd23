from __future__ import annotations

import math

import numpy as np
import pytest

from sleuth.evaluation import intervals
from sleuth.evaluation.intervals import (
    MANY,
    UNMEASURED,
    Measured,
    Stratum,
    bootstrap_f1,
    bootstrap_mean,
    bootstrap_ratio,
    bounded_mean,
    difference_of_shares,
    mean_of_means,
    paired_bootstrap,
    share,
    wilson,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # By hand, z = 1.96: centre (p + z²/2n) / (1 + z²/n), half z sqrt(p(1-p)/n + z²/4n²) / (1 + z²/n).
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (50, 100, 0.4038, 0.5962)],
)
def test_wilson_matches_the_formula_by_hand(successes: int, n: int, low: float, high: float) -> None:
    measured = wilson(successes, n)
    assert (measured.value, measured.n) == (successes / n, n)
    assert (measured.low, measured.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_a_figure_is_told_with_its_interval_in_the_same_number_format() -> None:
    figure = wilson(8, 10)
    assert figure.formatted() == "0.800 (0.490 to 0.943)"
    assert figure.formatted("+.4f") == "+0.8000 (+0.4902 to +0.9433)"
    assert (UNMEASURED.formatted(), UNMEASURED.formatted(".2f", unmeasured="none")) == ("missing", "none")


def test_nothing_measured_is_neither_zero_nor_a_crash() -> None:
    assert wilson(0, 0) == share([]) == bootstrap_mean([None, None]) == paired_bootstrap([], []) == UNMEASURED
    assert UNMEASURED.as_json() == {"value": None, "low": None, "high": None, "n": 0}


def test_impossible_counts_and_unequal_lengths_are_refused() -> None:
    for successes in (3, -1):
        with pytest.raises(ValueError, match="successes in"):
            wilson(successes, 2)
    with pytest.raises(ValueError, match="zip"):
        paired_bootstrap([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="zip"):
        bootstrap_mean([1.0], clusters=["a", "b"])


def test_missing_values_are_left_out_and_never_zero() -> None:
    assert share([1, None, 1, 0, None]) == wilson(2, 3)
    measured = bootstrap_mean([2.0, None, 4.0])
    assert (measured.value, measured.n) == (3.0, 2)
    assert share([0.0, 0.0]).value == 0.0
    assert share([1, 0, None, 1, None], ["a", "a", "a", "b", "c"]) == wilson(1.5, 2)  # of a cluster, what is there
    assert paired_bootstrap([1.0, None, 3.0], [0.0, 5.0, None]) == Measured(value=1.0, low=1.0, high=1.0, n=1)


def test_the_bootstrap_interval_holds_the_binomial_quantiles() -> None:
    # A resampled mean of five ones and five zeros is Binomial(10, 1/2) / 10:
    # P(X <= 1) = 0.011 < 0.025 < P(X <= 2) = 0.055, so the 2.5 % quantile is 0.2, and 0.8 by symmetry.
    assert bootstrap_mean([1.0, 0.0] * 5) == Measured(value=0.5, low=0.2, high=0.8, n=10)
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
    strata = [Stratum(values=[1.0, 0.0, 1.0], clusters="abc"), Stratum(values=[2.0, 5.0], clusters="ab")]
    often = [Stratum(values=[1.0, 0.0, 1.0] * 4, clusters="abc" * 4), Stratum(values=[2.0, 5.0] * 4, clusters="ab" * 4)]
    assert mean_of_means(often) == mean_of_means(strata)
    assert bootstrap_f1([1.0, 0.0, 1.0], [1.0, 1.0, 1.0], ["a", "a", "b"]).n == 2


def test_a_paired_comparison_is_of_the_differences() -> None:
    a, b = [5.0, 9.0, 2.0], [4.0, 8.0, 1.0]
    assert paired_bootstrap(a, b) == Measured(value=1.0, low=1.0, high=1.0, n=3)
    assert paired_bootstrap(b, a).value == -1.0
    clustered = paired_bootstrap([1, 1, 0], [0, 0, 0], clusters=["x", "x", "y"])
    assert clustered == Measured(value=0.5, low=0.0, high=1.0, n=2)


def test_a_mean_of_means_counts_every_stratum_alike() -> None:
    large, small = Stratum(values=[1.0] * 90 + [0.0] * 10), Stratum(values=[0.0, 0.0, 0.0, 1.0])
    measured = mean_of_means([large, small])
    assert (measured.value, measured.n) == ((0.9 + 0.25) / 2, 104)
    values, clusters = [float(i % 5) for i in range(30)], [i // 3 for i in range(30)]
    assert mean_of_means([Stratum(values=values, clusters=clusters)]) == bootstrap_mean(values, clusters)
    assert mean_of_means([Stratum(values=[1.0]), Stratum(values=[None])]) == mean_of_means([]) == UNMEASURED


def test_a_stratum_is_resampled_within_itself() -> None:
    # Both sets are constant, so that no draw within a set moves its mean; draws across sets would.
    assert mean_of_means([Stratum(values=[1.0] * 5), Stratum(values=[0.0] * 50)]) == Measured(
        value=0.5, low=0.5, high=0.5, n=55
    )


def test_the_interval_of_two_strata_holds_the_quantiles_of_their_sum() -> None:
    # Two sets of five ones and five zeros: (X + Y) / 20 with X + Y Binomial(20, 1/2).
    # P(X + Y <= 5) = 0.0207 < 0.025 < P(X + Y <= 6) = 0.0577: 6 / 20 = 0.3, and 0.7 by symmetry.
    halves = Stratum(values=[1.0, 0.0] * 5)
    assert mean_of_means([halves, halves]) == Measured(value=0.5, low=pytest.approx(0.3), high=pytest.approx(0.7), n=20)


def test_of_many_values_the_bootstrap_interval_is_that_of_the_normal_law() -> None:
    # 4,000 draws of 0 or 1, one in four right: 0.25 +- 1.96 sqrt(0.25 x 0.75 / 4000) = 0.25 +- 0.01342.
    measured = bootstrap_mean([1.0, 0.0, 0.0, 0.0] * (MANY // 2))
    assert (measured.value, measured.n) == (0.25, 2 * MANY)
    assert (measured.low, measured.high) == (pytest.approx(0.23658, abs=5e-4), pytest.approx(0.26342, abs=5e-4))


def test_an_f1_is_of_all_verdicts_together_and_not_their_mean() -> None:
    given = [1.0, 1.0, 0.0, 0.0, None]
    wanted = [1.0, 0.0, 1.0, 0.0, 1.0]
    found = bootstrap_f1(given, wanted)
    assert (found.value, found.n) == (2 * 1 / (2 + 2), 4)
    assert found.low is not None
    assert found.high is not None
    assert 0.0 <= found.low < 0.5 < found.high <= 1.0
    assert bootstrap_f1([1.0, 0.0] * 200, [1.0, 0.0] * 200) == Measured(value=1.0, low=1.0, high=1.0, n=400)
    assert bootstrap_f1([0.0, 0.0], [0.0, 0.0]) == bootstrap_f1([None], [1.0]) == UNMEASURED


def test_a_ratio_is_of_the_means_and_not_the_mean_of_ratios() -> None:
    found = bootstrap_ratio([1.0, 3.0, None], [1.0, 7.0, 5.0])
    assert (found.value, found.n) == (0.5, 2)
    assert bootstrap_ratio([-1.0, -1.0], [2.0, 2.0]) == Measured(value=-0.5, low=-0.5, high=-0.5, n=2)
    assert bootstrap_ratio([1.0, 0.0, 5.0], [1.0, 2.0, 4.0], ["a", "a", "b"]).value == 5.5 / 5.5  # clusters count alike
    assert bootstrap_ratio([1.0], [0.0]) == bootstrap_ratio([None], [1.0]) == UNMEASURED


def test_the_interval_of_a_ratio_covers_it_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 4 * intervals.BLOCK)
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(100):
        below = rng.gamma(2.0, size=60)
        measured = bootstrap_ratio([*(0.4 * below + rng.normal(0, 0.3, size=60))], [*below])
        assert measured.low is not None
        assert measured.high is not None
        covered += measured.low <= 0.4 <= measured.high
    assert 0.9 <= covered / 100 <= 0.99


def test_outcomes_that_are_all_alike_are_still_uncertain() -> None:
    assert bounded_mean([0.0] * 10) == wilson(0, 10)
    assert bounded_mean([1, 0, None], ["a", "a", "b"]) == wilson(0.5, 1)
    assert bounded_mean([0.1, 0.1]) == bootstrap_mean([0.1, 0.1])
    none_right = mean_of_means([Stratum(values=[0.0] * 10), Stratum(values=[0.0] * 10)], outcomes=True)
    assert (none_right.value, none_right.low, none_right.n) == (0.0, 0.0, 20)
    assert none_right.high == pytest.approx(0.2775 * 2**0.5 / 2, abs=5e-5)  # Wilson's of 0 in 10, combined by hand
    one_of_two = mean_of_means([Stratum(values=[1.0] * 10), Stratum(values=[0.0] * 10)], outcomes=True)
    assert (one_of_two.low, one_of_two.high) == (
        pytest.approx(0.5 - 0.13875, abs=5e-5),
        pytest.approx(0.63875, abs=5e-5),
    )


def test_a_difference_of_shares_is_that_of_four_more_pairs_by_hand() -> None:
    """Of 16 pairs 6 gained and 2 lost: mean 4/20 of 20, sum of squares 10, so var (10 - 20/25) / 19. One pair lacks a
    side."""
    ours, theirs = [1] * 6 + [0] * 2 + [1] * 9, [0] * 6 + [1] * 2 + [1] * 8 + [None]
    found = difference_of_shares(ours, theirs)
    half = 1.959963984540054 * math.sqrt((10 - 0.8) / 19 / 20)
    assert (found.value, found.n) == (0.25, 16)
    assert (found.low, found.high) == (pytest.approx(0.2 - half), pytest.approx(0.2 + half))


def test_pairs_that_are_all_alike_are_no_certainty() -> None:
    alike = difference_of_shares([0.0] * 30, [0.0] * 30)
    assert (alike.value, alike.high) == (0.0, pytest.approx(-(alike.low or 0.0)))
    assert (alike.high or 0.0) > 0.02
    assert difference_of_shares([None], [1.0]) == UNMEASURED
