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
    mean_of_means,
    paired_bootstrap,
    prediction_powered,
    share,
    stratified,
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


def test_ratings_and_a_judge_give_the_interval_by_hand() -> None:
    """Eight pairs with the four that are added: mean y = 1/2 and f = 3/8, cov 1/14, var y = 2/7 and f = 15/56. Of all
    twelve of the judge five are 1: var 35/132. So l = (1/14) / ((1 + 8/4) 35/132) = 22/245."""
    weight = 22 / 245
    half = 1.959963984540054 * math.sqrt((2 / 7 - weight / 7 + weight**2 * 15 / 56) / 8 + weight**2 * (1 / 3) / 4)
    found = prediction_powered([(1, 1), (1, 0), (0, 0), (0, 0)], [1, 1, 0, 0])
    assert found.n == 4
    assert found.value == pytest.approx(1 / 2 - weight / 4 + weight / 2)
    assert (found.low, found.high) == (
        pytest.approx(1 / 2 + weight / 8 - half),
        pytest.approx(1 / 2 + weight / 8 + half),
    )


def test_a_gain_by_ratings_alone_is_that_of_four_more_pairs_by_hand() -> None:
    """Of 16 pairs 6 gained and 2 lost: mean 4/20 of 20, sum of squares 10, so var (10 - 20/25) / 19."""
    found = prediction_powered([(1, 0)] * 6 + [(-1, 0)] * 2 + [(0, 0)] * 8, gain=True)
    half = 1.959963984540054 * math.sqrt((10 - 0.8) / 19 / 20)
    assert (found.value, found.n) == (0.25, 16)
    assert (found.low, found.high) == (pytest.approx(0.2 - half), pytest.approx(0.2 + half))


@pytest.mark.parametrize("judge", [0.0, 1.0])
@pytest.mark.parametrize("person", [0.0, 1.0])
def test_ratings_that_are_all_alike_are_no_certainty(person: float, judge: float) -> None:
    for found in (
        prediction_powered([(person, judge)] * 30),
        prediction_powered([(person, judge)] * 30, [judge] * 300),
        prediction_powered([(0.0, 0.0)] * 30, [0.0] * 300, gain=True),
    ):
        low, value, high = (getattr(found, name) for name in ("low", "value", "high"))
        assert high - low > 0.05
        assert low <= value <= high
    assert prediction_powered([], [1.0, 0.0]) == UNMEASURED


def test_intervals_of_chosen_ratings_cover_the_gain_and_are_narrower_in_a_thousand_folders() -> None:
    """As below, but the models give the same answer to a half and more of what both answer rightly or wrongly; of three
    rated pairs two differ, which are two answers to rate, the other is one."""
    rng = np.random.default_rng(61)
    covered, width, plain = {"gain": 0, "base": 0}, 0.0, 0.0
    for _ in range(1_000):
        n, budget, true = rng.integers(150, 1_001), rng.integers(30, 101), rng.uniform(0.1, 0.9)
        passed, failed = rng.uniform(0.1, 0.4), rng.uniform(0.0, 0.1)
        gained, lost, rephrased = rng.uniform(0.1, 0.4), rng.uniform(0.0, 0.2), rng.uniform(0.05, 0.5)
        base = rng.random(n) < true
        trained = rng.random(n) < np.where(base, 1 - lost, gained)
        differ = (base != trained) | (rng.random(n) < rephrased)
        by_person = np.stack([base, trained]).astype(float)
        by_judge = (rng.random((2, n)) < np.where(by_person > 0, 1 - failed, passed)).astype(float)
        person, judge = by_person[1] - by_person[0], np.where(differ, by_judge[1] - by_judge[0], 0.0)
        apart, alike = np.flatnonzero(differ), np.flatnonzero(~differ)
        turns = np.concatenate([np.arange(len(apart)) // 2, np.arange(len(alike)) + 0.5])
        order = np.concatenate([apart, alike])[np.argsort(turns, kind="stable")]
        chosen = order[: np.searchsorted(np.cumsum(1 + differ[order]), budget, side="right")]
        rated = chosen[differ[chosen]]
        others = np.setdiff1d(apart, rated)
        pairs = [(float(y), float(f)) for y, f in zip(person[rated], judge[rated], strict=True)]
        found = stratified([(pairs, judge[others].tolist())], gain=True, equal=len(alike))
        covered["gain"] += (found.low or 0.0) <= (1 - true) * gained - true * lost <= (found.high or 0.0)
        by_judge = np.where(differ, by_judge[0], by_judge[1])  # one verdict for one answer
        strata = [
            ([*zip(by_person[0][a].tolist(), by_judge[a].tolist(), strict=True)], by_judge[b].tolist())
            for a, b in ((rated, others), (chosen[~differ[chosen]], np.setdiff1d(alike, chosen)))
        ]
        level = stratified(strata)
        covered["base"] += (level.low or 0.0) <= true <= (level.high or 0.0)
        width += (found.high or 0.0) - (found.low or 0.0)
        some = np.searchsorted(np.cumsum(1 + differ), budget, side="right")
        drawn = [(float(y), float(f)) for y, f in zip(person[:some], judge[:some], strict=True)]
        simple = prediction_powered(drawn, judge[some:].tolist(), gain=True)
        plain += (simple.high or 0.0) - (simple.low or 0.0)
    assert 930 <= covered["gain"] <= 970
    assert 930 <= covered["base"] <= 970
    assert width < 0.8 * plain


def test_rated_intervals_cover_in_a_thousand_folders_where_those_of_a_biased_judge_fail() -> None:
    """A folder has 150 to 1,000 questions and any share of right answers; its judge passes 0.1 to 0.4 of the wrong ones
    and fails up to 0.1 of the right ones; its owner rates 30 to 100 and is right. Of the gain the base is rated too."""
    rng = np.random.default_rng(61)
    covered = {"rated": 0, "judged": 0, "gain": 0}
    width = {"rated": 0.0, "alone": 0.0}
    for _ in range(1_000):
        n, rated, true = rng.integers(150, 1_001), rng.integers(30, 101), rng.uniform(0.1, 0.9)
        passed, failed = rng.uniform(0.1, 0.4), rng.uniform(0.0, 0.1)
        gained, lost = rng.uniform(0.1, 0.4), rng.uniform(0.0, 0.2)
        base = rng.random(n) < true
        trained = rng.random(n) < np.where(base, 1 - lost, gained)
        by_person = np.stack([base, trained]).astype(float)
        by_judge = (rng.random((2, n)) < np.where(by_person > 0, 1 - failed, passed)).astype(float)
        pairs = [(float(y), float(f)) for y, f in zip(by_person[0][:rated], by_judge[0][:rated], strict=True)]
        apart = np.stack([by_person[1] - by_person[0], by_judge[1] - by_judge[0]])
        gains = [(float(y), float(f)) for y, f in apart[:, :rated].T]
        for name, found, truth in (
            ("rated", prediction_powered(pairs, by_judge[0][rated:]), true),
            ("judged", share([*map(float, by_judge[0])]), true),
            ("gain", prediction_powered(gains, apart[1][rated:], gain=True), (1 - true) * gained - true * lost),
        ):
            covered[name] += (found.low or 0.0) <= truth <= (found.high or 0.0)
        for name, others in (("rated", by_judge[0][rated:]), ("alone", ())):
            found = prediction_powered(pairs, others)
            width[name] += (found.high or 0.0) - (found.low or 0.0)
    assert 930 <= covered["rated"] <= 970
    assert 930 <= covered["gain"] <= 970
    assert covered["judged"] < 300
    assert width["rated"] < 0.93 * width["alone"]
