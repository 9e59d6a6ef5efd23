from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from synthetic_run import write_run

from sleuth.report import write_report
from sleuth.report.summary import duration, stage_times

COSTS = {
    "base": {"seconds": {"asking": 2.0, "total": 2.5}},
    "grpo": {"seconds": {"saving": 1.0, "total": 10.0}},
}
ROWS = {"grpo": [{"seconds_rollout": 3.0, "seconds_update": 1.0}, {"seconds_rollout": 2.0, "seconds_update": None}]}


def test_the_seconds_of_a_stage_are_split_by_purpose_and_add_up() -> None:
    base, grpo = stage_times({"costs": COSTS}, ROWS)
    assert [(part.name, part.seconds) for part in base.parts] == [("questions", 2.0), ("other", 0.5)]
    assert [(part.name, part.seconds) for part in grpo.parts] == [
        ("rollouts", 5.0),
        ("updates", 1.0),
        ("saves", 1.0),
        ("other", 3.0),
    ]
    assert sum(part.share for part in grpo.parts) == 1.0
    assert sum(part.share for part in base.parts) == 0.25
    assert (base.seconds, grpo.seconds) == (2.5, 10.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (200, "3 min 20 s"), (3599.6, "1 h 00 min")],
)
def test_durations_are_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_report_shows_what_was_planned_beside_what_was_measured(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["costs"] = {"grpo": COSTS["grpo"] | {"host_memory_bytes": 1_200_000_000, "gpu_memory_bytes": 0}}
    manifest["planned"] = {"grpo": {"memory_bytes": 1_000_000_000, "seconds": 300.0}}
    (run / "manifest.json").write_text(json.dumps(manifest))
    page = write_report(run).read_text(encoding="utf-8")
    cells = re.findall(r'data-column="((?:Memory|Time), \w+)">([^<]*)<', page)
    assert cells == [
        ("Memory, planned", "1.0 GB"),
        ("Memory, measured", "1.2 GB"),
        ("Time, planned", "5 min 00 s"),
        ("Time, measured", "3 min 23 s"),
    ]
