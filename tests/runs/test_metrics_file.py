from __future__ import annotations

from pathlib import Path

import pytest

from sleuth.runs.metrics import MetricsFile
from sleuth.types import SleuthError


@pytest.fixture
def metrics(tmp_path: Path) -> MetricsFile:
    return MetricsFile(tmp_path / "metrics.jsonl")


def steps(metrics: MetricsFile) -> list[tuple[str, int]]:
    return [(row["stage"], row["step"]) for row in metrics.rows()]


def test_a_row_is_on_the_disk_as_soon_as_it_is_appended(metrics: MetricsFile) -> None:
    metrics.append("grpo", 1, {"reward_mean": 0.25, "note": None})
    assert metrics.path.read_text() == '{"stage": "grpo", "step": 1, "reward_mean": 0.25, "note": null}\n'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_figure_that_is_not_finite_is_null(metrics: MetricsFile, value: float) -> None:
    metrics.append("grpo", 1, {"kl": value})
    assert metrics.rows() == [{"stage": "grpo", "step": 1, "kl": None}]


def test_rewinding_forgets_later_steps_of_that_stage_alone(metrics: MetricsFile) -> None:
    for stage, step in (("first", 1), ("first", 2), ("first", 3), ("second", 4), ("second", 5)):
        metrics.append(stage, step, {})
    metrics.rewind("second", 4)
    assert steps(metrics) == [("first", 1), ("first", 2), ("first", 3), ("second", 4)]
    metrics.rewind("first", 1)
    assert steps(metrics) == [("first", 1), ("second", 4)]


@pytest.mark.parametrize("torn", ['{"stage": "grpo", "st', "\x00\x00\x00", "{"])
def test_a_torn_last_line_is_dropped(metrics: MetricsFile, torn: str) -> None:
    metrics.append("grpo", 1, {})
    with open(metrics.path, "a", encoding="utf-8") as file:
        file.write(torn)
    metrics.rewind("grpo", 9)
    metrics.append("grpo", 2, {})
    assert steps(metrics) == [("grpo", 1), ("grpo", 2)]


def test_a_broken_line_in_the_middle_is_told_with_its_number(metrics: MetricsFile) -> None:
    metrics.path.write_text('{"stage": "grpo", "step": 1}\n{"sta\n{"stage": "grpo", "step": 3}\n', encoding="utf-8")
    with pytest.raises(SleuthError, match=r"metrics\.jsonl:2: is not a JSON object"):
        metrics.rows()


def test_figures_of_older_runs_are_read_under_todays_names(metrics: MetricsFile) -> None:
    metrics.append("grpo", 1, {"signal_fraction": 0.5, "mismatch_kl": 1e-8, "kl": 0.1})
    figures = {"nonzero_advantage_fraction": 0.5, "sampler_learner_kl": 1e-8, "kl": 0.1}
    assert metrics.rows() == [{"stage": "grpo", "step": 1} | figures]


@pytest.mark.parametrize("line", ["{nonsense", "[1]", '{"step": 3}', '{"stage": "a", "step": 1.5}', "\x00"])
def test_a_reader_beside_the_run_leaves_damaged_lines_out(metrics: MetricsFile, line: str) -> None:
    metrics.append("grpo", 1, {})
    with metrics.path.open("a") as file:
        file.write(f'{line}\n{{"stage": "grpo", "step": 2, "kl": 1e999, "em": NaN}}\n{{"sta')
    damaged: list[int] = []
    assert metrics.rows(damaged)[1] == {"stage": "grpo", "step": 2, "kl": None, "em": None}
    assert damaged == [2]
