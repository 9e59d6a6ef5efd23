"""A plan beside the run that it was made for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sleuth.cli.app import app
from sleuth.runs.disk import bytes_in


@pytest.mark.slow
def test_what_was_planned_is_what_a_run_takes(recipe_file: Path, tmp_path: Path, finished: Callable[..., Path]) -> None:
    """Counts to the last one, bytes nearly; time is measured by hand, where nothing else runs.

    The run would save in the midst of the steps that the probe makes.
    """
    place = tmp_path / "run"
    planned = CliRunner().invoke(app, ["plan", str(recipe_file), "--run", str(place), "--probe", "3", "--json"])
    assert planned.exit_code == 0, planned.stderr
    told = json.loads(planned.stdout)
    assert not list(tmp_path.glob("sleuth-plan-*"))
    assert not place.exists()
    taken = finished().parents[1]
    rows = [json.loads(line) for line in (taken / "metrics.jsonl").read_text().splitlines()]
    assert told["steps"] == len(rows) == 4
    assert told["episodes"] == 4 + 4 * 4 * 8 + 4
    assert told["peak_disk_bytes"] == pytest.approx(bytes_in(taken), rel=0.1)  # both checkpoints are there at the end
    written = sum(row["response_tokens_mean"] * 32 for row in rows)
    assert told["stages"][1]["tokens"] == pytest.approx(written, rel=0.5)  # a policy that learns writes otherwise
    assert told["seconds"] > 0
    assert told["peak_memory_bytes"] > 10**8
