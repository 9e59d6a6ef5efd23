from __future__ import annotations

from typing import Any

from sleuth.report.curves import BOTTOM, LEFT, RIGHT, TOP, matched_charts, overlaid, panels

EM = next(panel for panel in panels() if panel[0].name == "em")


def rows(values: list[float | None], stage: str = "grpo", first: int = 1) -> list[dict[str, Any]]:
    return [{"stage": stage, "step": step, "em": value} for step, value in enumerate(values, start=first)]


def test_arms_share_their_axes() -> None:
    chart = overlaid(EM, {"short": [rows([0.0, 1.0])], "long": [rows([0.0, 0.0, 0.0, 0.5])]})
    assert chart is not None
    assert (chart.steps, chart.at[0], chart.at[-1]) == ((1, 2, 3, 4), LEFT, RIGHT)
    short, long = chart.curves
    assert short.values == (0.0, 1.0, None, None)
    assert short.heights == (BOTTOM, TOP, None, None)
    assert long.heights[-1] == BOTTOM - (BOTTOM - TOP) / 2


def test_an_arm_of_several_runs_is_their_mean_in_a_band() -> None:
    chart = overlaid(EM, {"plain": [rows([0.0, 0.2]), rows([1.0, 0.6])]})
    assert chart is not None
    [curve] = chart.curves
    assert curve.values == (0.5, 0.4)
    assert curve.dots == ""
    assert curve.area.startswith(f"M{LEFT} {TOP}L{RIGHT} ")


def test_an_arm_without_a_value_keeps_its_place_so_that_colours_stay() -> None:
    chart = overlaid(EM, {"a": [rows([None])], "b": [rows([0.5])]})
    assert chart is not None
    assert (chart.curves[0].label, chart.curves[0].line) == ("a", "")
    assert overlaid(EM, {"a": [rows([None])]}) is None


def test_only_stages_that_every_run_has_are_matched() -> None:
    warm = rows([0.1], stage="warm")
    charts = matched_charts({"a": [[*warm, *rows([0.5])]], "b": [rows([0.6], stage="other"), rows([0.2])][1:]})
    assert list(charts) == ["grpo"]
    assert [chart.title for chart in charts["grpo"]] == ["Exact match"]
    assert matched_charts({"a": [warm], "b": [rows([0.5])]}) == matched_charts({}) == {}
