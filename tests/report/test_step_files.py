from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from synthetic_run import write_run

from sleuth.report import write_report
from sleuth.report.rollouts_shown import FOLDER, with_files


def steps_in(run: Path) -> dict[str, dict[str, Any]]:
    """What each file adds to the page."""
    found = {file.name: file.read_text(encoding="utf-8") for file in (run / FOLDER).iterdir()}
    return {name: json.loads(text.removeprefix("addStep(").removesuffix(");\n")) for name, text in found.items()}


def test_the_files_beside_the_page_hold_every_group_of_every_step(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo", rollout_steps=(1, 2, 9), groups=9)
    write_report(run, all_rollouts=True)
    steps = steps_in(run)
    assert sorted(steps) == [f"step-{step:06d}.js" for step in (1, 2, 9)]
    for step in steps.values():
        assert len(step["groups"]) == 9
        first = step["groups"][0]["siblings"][0]["segments"][0]
        assert step["texts"][first["text"]].startswith("Question: ")


def test_a_second_report_writes_only_the_files_of_newer_rollouts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo", rollout_steps=(1, 2), groups=1)
    write_report(run, all_rollouts=True)
    for file in (run / FOLDER).iterdir():
        file.write_text("kept")
    rollouts = run / "rollouts" / "step-000002.parquet"
    os.utime(rollouts, (rollouts.stat().st_atime, rollouts.stat().st_mtime + 60))
    write_report(run, all_rollouts=True)
    assert (run / FOLDER / "step-000001.js").read_text() == "kept"
    assert (run / FOLDER / "step-000002.js").read_text().startswith("addStep(")


def test_a_page_names_the_files_of_what_it_does_not_hold_alone() -> None:
    files = [Path("step-000001.parquet"), Path("step-000002.parquet"), Path("step-000003.parquet")]
    whole, partial = {"step": 1, "of": 1, "groups": ["a"]}, {"step": 3, "of": 2, "groups": ["a"]}
    first, second, third = with_files([whole, partial], files)
    assert first == whole
    assert second == {"step": 2, "of": None, "groups": [], "file": "report_rollouts/step-000002.js"}
    assert third == partial | {"file": "report_rollouts/step-000003.js"}


def test_a_report_without_them_names_the_command_and_allows_no_other_script(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo")
    page = write_report(run).read_text(encoding="utf-8")
    assert not (run / FOLDER).exists()
    assert "'nonce-" not in page
    assert "sleuth report RUN --all-rollouts" in page
    policies = [write_report(run, all_rollouts=True).read_text(encoding="utf-8").split("'nonce-")[1] for _ in range(2)]
    assert policies[0][:20] != policies[1][:20]
