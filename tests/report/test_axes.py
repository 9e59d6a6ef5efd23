from __future__ import annotations

import pytest

from sleuth.report.curves import Scale, area, dots, line, number, round_domain, running_mean, signed, ticks


def test_a_scale_maps_its_ends_to_its_pixels() -> None:
    x = Scale(low=0, high=10, start=40, end=140)
    assert (x(0), x(5), x(10)) == (40, 90, 140)


def test_ticks_are_round_numbers_inside_the_scale() -> None:
    steps = ticks(Scale(low=1, high=300, start=0, end=299), 4)
    assert [tick.label for tick in steps] == ["100", "200", "300"]
    shares = ticks(Scale(low=0, high=1, start=0, end=1), 4)
    assert [tick.label for tick in shares] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]


@pytest.mark.parametrize(
    ("values", "domain"),
    [([0.3, 0.83], (0, 1.0)), ([], (0, 1)), ([0.0, 0.0], (0, 1)), ([-0.2, 0.1], (-0.2, 0.1)), ([37.0], (0, 40))],
)
def test_a_domain_has_round_ends_and_holds_zero(values: list[float], domain: tuple[float, float]) -> None:
    assert round_domain(values) == pytest.approx(domain)


def test_a_running_mean_has_no_lag_and_skips_what_is_absent() -> None:
    assert running_mean([1, 2, 3, 4, 5], 3) == [1.5, 2, 3, 4, 4.5]
    assert running_mean([1, None, 3], 3) == [1, None, 3]
    assert running_mean([], 3) == []


def test_a_large_value_moves_a_running_mean_within_its_window_alone() -> None:
    means = running_mean([5e-13] * 30 + [1000.0] + [5e-13] * 30, 5)
    assert means[:28] == means[33:] == pytest.approx([5e-13] * 28, rel=1e-12)
    assert means[28:33] == pytest.approx([200.0] * 5)


def test_paths_are_svg() -> None:
    points = [(0.0, 1.5), (2.0, 3.0)]
    assert line(points) == "M0 1.5L2 3"
    assert dots(points) == "M0 1.5h0M2 3h0"
    assert area(points, [(0.0, 9.0), (2.0, 9.0)]) == "M0 1.5L2 3L2 9L0 9Z"
    assert line([]) == area([], []) == ""


def test_numbers_read_well() -> None:
    written = [number(value) for value in (0, 0.25, 1234, 25_000, 3e-7, -0.5)]
    assert written == ["0", "0.25", "1234", "25k", "3e-7", "\N{MINUS SIGN}0.5"]
    assert [signed(0.5), signed(-0.25)] == ["+0.500", "\N{MINUS SIGN}0.250"]
