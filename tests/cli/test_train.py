"""`sleuth train`: what it leaves behind, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

from verb import sleuth

from sleuth.evaluation.paired import mean_difference

BRIEF = ("--set=stage.0.data.limit=2", "--set=stage.1.steps=2", "--set=stage.2.data.limit=2")


def test_a_start_that_fails_after_loading_leaves_nothing_and_a_corrected_recipe_runs_in_quiet(
    recipe_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "mine"
    failed = sleuth("train", recipe_file, "--run", folder, *BRIEF, "--set=stage.1.context=100000")
    assert failed.exit_code == 2
    assert "context = 100000 is more than the" in failed.stderr
    assert not (tmp_path / "runs").exists()
    done = sleuth("train", recipe_file, "--run", folder, *BRIEF, "--quiet")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "the last checkpoint" in done.stdout
    assert "base: exact match" in (folder / "log.txt").read_text()


def test_the_terminal_tells_the_figures_of_each_evaluation_the_headline_and_the_next_command(
    recipe_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    done = sleuth("train", recipe_file, "--run", folder, *BRIEF)
    evaluations = {name: json.loads((folder / f"eval/{name}.json").read_text()) for name in ("base", "trained")}
    for name, evaluation in evaluations.items():
        em = evaluation["em"]
        assert f"{name}: exact match {em['value']:.3f} [{em['low']:.2f}, {em['high']:.2f}], " in done.stderr
    change = mean_difference("em", evaluations["trained"]["records"], evaluations["base"]["records"])
    assert change is not None
    levels = [evaluation["em"]["value"] for evaluation in evaluations.values()]
    first, second = done.stdout.splitlines()
    assert first == (
        f"exact match {levels[0]:.3f} -> {levels[1]:.3f} ({change.value:+.3f} [{change.low:.2f}, {change.high:.2f}])"
    )
    assert second.endswith(f"Look at the run with `sleuth report {folder}`.")


def test_a_continued_run_prints_where_it_goes_on(recipe_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    half = sleuth("train", recipe_file, "--run", folder, *BRIEF, "--set=stage.1.stop_after=1")
    assert "continuing" not in half.stderr
    assert "continuing at step 1 of 2\n" in sleuth("train", recipe_file, "--run", folder, *BRIEF).stderr
