from __future__ import annotations

from typing import Any

import pytest

from sleuth.report.curves import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Scale,
    charts_of,
    draw,
    matched_charts,
    number,
    overlaid,
    panels,
    round_domain,
    running_mean,
    signed,
    ticks,
)

REWARD = panels()[0]
SECONDS = next(panel for panel in panels() if len(panel) == 2)


def test_a_metric_that_never_had_a_value_has_no_chart() -> None:
    rows = [{"step": step, "reward_mean": 0.5, "kl": None} for step in (1, 2)]
    assert [chart.title for chart in charts_of(rows)] == ["Reward"]


def test_a_chart_reads_out_the_values_as_they_were_logged() -> None:
    rows = [{"step": 1, "reward_mean": 0.0}, {"step": 2, "reward_mean": None}, {"step": 3, "reward_mean": 1.0}]
    chart = draw(REWARD, rows)
    assert chart is not None
    assert chart.steps == (1, 3)
    assert chart.curves[0].values == (0.0, 1.0)
    assert chart.curves[0].heights == (BOTTOM, TOP)


def test_seconds_are_stacked_on_each_other() -> None:
    rows = [{"step": step, "seconds_rollout": 3.0, "seconds_update": 1.0} for step in (1, 2)]
    chart = draw(SECONDS, rows)
    assert chart is not None
    rollout, update = chart.curves
    assert rollout.heights[0] == BOTTOM - 3 / 4 * (BOTTOM - TOP)
    assert update.heights[0] == TOP
    assert update.values == (1.0, 1.0)


def test_a_long_run_is_thinned_to_what_can_be_seen() -> None:
    chart = draw(REWARD, [{"step": step, "reward_mean": 0.1} for step in range(1, 10_001)])
    assert chart is not None
    assert len(chart.steps) <= 500


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


def test_numbers_read_well() -> None:
    written = [number(value) for value in (0, 0.25, 1234, 25_000, 3e-7, -0.5)]
    assert written == ["0", "0.25", "1234", "25k", "3e-7", "\N{MINUS SIGN}0.5"]
    assert [signed(0.5), signed(-0.25)] == ["+0.500", "\N{MINUS SIGN}0.250"]


EM = next(panel for panel in panels() if panel[0].name == "em")


def rows_of(values: list[float | None], stage: str = "grpo", first: int = 1) -> list[dict[str, Any]]:
    return [{"stage": stage, "step": step, "em": value} for step, value in enumerate(values, start=first)]


def test_arms_share_their_axes() -> None:
    chart = overlaid(EM, {"short": [rows_of([0.0, 1.0])], "long": [rows_of([0.0, 0.0, 0.0, 0.5])]})
    assert chart is not None
    assert (chart.steps, chart.at[0], chart.at[-1]) == ((1, 2, 3, 4), LEFT, RIGHT)
    short, long = chart.curves
    assert short.values == (0.0, 1.0, None, None)
    assert short.heights == (BOTTOM, TOP, None, None)
    assert long.heights[-1] == BOTTOM - (BOTTOM - TOP) / 2


def test_an_arm_of_several_runs_is_their_mean_in_a_band() -> None:
    chart = overlaid(EM, {"plain": [rows_of([0.0, 0.2]), rows_of([1.0, 0.6])]})
    assert chart is not None
    [curve] = chart.curves
    assert curve.values == (0.5, 0.4)
    assert curve.dots == ""
    assert curve.area.startswith(f"M{LEFT} {TOP}L{RIGHT} ")


def test_only_stages_that_every_run_has_are_matched() -> None:
    warm = rows_of([0.1], stage="warm")
    charts = matched_charts({"a": [[*warm, *rows_of([0.5])]], "b": [rows_of([0.6], stage="other"), rows_of([0.2])][1:]})
    assert list(charts) == ["grpo"]
    assert [chart.title for chart in charts["grpo"]] == ["Exact match"]
    assert matched_charts({"a": [warm], "b": [rows_of([0.5])]}) == matched_charts({}) == {}
