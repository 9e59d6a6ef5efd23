from __future__ import annotations

from sleuth.report.curves import BOTTOM, TOP, charts_of, draw, panels, smoothing, stages_of

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


def test_a_single_step_can_be_drawn() -> None:
    assert draw(REWARD, [{"step": 1, "reward_mean": 0.0}]) is not None


def test_each_stage_has_its_own_curves() -> None:
    rows = [{"stage": "warm", "step": 1}, {"stage": "warm", "step": 2}, {"stage": "grpo", "step": 3}]
    assert {stage: len(of_stage) for stage, of_stage in stages_of(rows).items()} == {"warm": 2, "grpo": 1}


def test_smoothing_is_odd_and_none_for_a_short_run() -> None:
    assert [smoothing(count) for count in (1, 20, 60, 300)] == [1, 1, 3, 15]


def test_a_scorer_beside_the_strict_one_has_a_chart_next_to_exact_match() -> None:
    rows = [{"step": 1, "reward_mean": 0.5, "em": 0.2, "score_verl": 0.5, "format": 1.0, "loss": 0.1}]
    titles = [chart.title for chart in charts_of(rows)]
    assert titles == ["Reward", "Score by verl", "Exact match", "Well-formed", "Loss"]
