"""Metrics that grow are read on from where the last look ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sleuth.runs.metrics import MetricsFile, MetricsTail


def write(file: Path, *steps: int) -> None:
    for step in steps:
        MetricsFile(file).append("grpo", step, {"reward_mean": step / 10})


def steps_of(tail: MetricsTail) -> list[int]:
    return [row["step"] for row in tail.rows]


def test_each_look_reads_only_what_is_new(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    tail = MetricsTail(file)
    assert not tail.look()
    write(file, *range(1, 21))
    assert tail.look()
    with file.open("r+b") as writing:  # who read it again would find it damaged
        writing.write(b"x" * 40)
    assert not tail.look()
    write(file, 21)
    assert tail.look()
    assert (steps_of(tail), tail.damaged) == (list(range(1, 22)), 0)


def test_a_row_is_read_once_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    write(file, 1)
    tail = MetricsTail(file)
    tail.look()
    line = json.dumps({"stage": "grpo", "step": 2}) + "\n"
    for end in (5, len(line) - 1):
        file.write_text(file.read_text().partition("\n")[0] + "\n" + line[:end])
        assert not tail.look()
        assert (steps_of(tail), tail.damaged) == ([1], 0)
    file.write_text(file.read_text().partition("\n")[0] + "\n" + line)
    assert tail.look()
    assert steps_of(tail) == [1, 2]


def test_rows_that_were_removed_and_written_again_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    write(file, 1, 2, 3)
    tail = MetricsTail(file)
    tail.look()
    MetricsFile(file).repair()  # as a run that continues does, before it removes rows
    assert not tail.look()
    MetricsFile(file).rewind("grpo", 1)
    assert tail.look()
    assert steps_of(tail) == [1]
    MetricsFile(file).rewind("grpo", 0)
    for step in (1, 2, 3, 4):  # longer than before when it is looked at next
        MetricsFile(file).append("grpo", step, {"reward_mean": 0.5})
    assert tail.look()
    assert [row["reward_mean"] for row in tail.rows] == [0.5] * 4
    file.unlink()
    assert tail.look()
    assert tail.rows == []


@pytest.mark.parametrize(
    "line", ["{nonsense", "[1]", '{"step": 3}', '{"stage": "a", "step": 1' + "0" * 400 + "}", "\x00"]
)
def test_a_damaged_line_is_counted_and_left_out(tmp_path: Path, line: str) -> None:
    file = tmp_path / "metrics.jsonl"
    write(file, 1)
    with file.open("a") as writing:
        writing.write(line + "\n")
    write(file, 2)
    tail = MetricsTail(file)
    tail.look()
    assert (steps_of(tail), tail.damaged) == ([1, 2], 1)


def test_numbers_that_no_chart_can_show_are_missing(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(
        '{"stage": "a", "step": 1, "em": NaN, "kl": 1e999, "loss": 1' + "0" * 400 + ', "mismatch_kl": 0.5}\n'
    )
    tail = MetricsTail(file)
    tail.look()
    assert tail.rows == [{"stage": "a", "step": 1, "em": None, "kl": None, "loss": None, "sampler_learner_kl": 0.5}]


def test_a_look_is_bounded_and_an_endless_line_is_one_damaged_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MetricsTail, "LOOK_BYTES", 1000)
    file = tmp_path / "metrics.jsonl"
    write(file, *range(1, 31))
    tail = MetricsTail(file)
    tail.look()
    assert 10 < len(tail.rows) < 30
    with file.open("a") as writing:
        writing.write("x" * 2500 + "\n")
    write(file, 31)
    while tail.look():
        pass
    assert steps_of(tail) == list(range(1, 32))
    assert tail.damaged == 1
