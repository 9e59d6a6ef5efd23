"""`sleuth train`: what it leaves behind, and what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from verb import sleuth

from sleuth.evaluation.eval_session import EvalSession

BRIEF = ("--set=stage.0.data.limit=2", "--set=stage.1.steps=2", "--set=stage.2.data.limit=2")


def test_a_start_that_fails_after_loading_leaves_nothing_and_a_corrected_recipe_runs(
    recipe_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "mine"
    failed = sleuth("train", recipe_file, "--run", folder, *BRIEF, "--set=stage.1.context=100000")
    assert failed.exit_code == 2
    assert "context = 100000 is more than the" in failed.stderr
    assert not (tmp_path / "runs").exists()
    assert sleuth("train", recipe_file, "--run", folder, *BRIEF).exit_code == 0


def test_a_start_that_is_interrupted_while_it_loads_leaves_nothing(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EvalSession, "ask", interrupted)
    stopped = sleuth("train", recipe_file, "--run", tmp_path / "run", *BRIEF)
    assert (stopped.exit_code, stopped.stderr.splitlines()[-1]) == (130, "interrupted")
    assert not (tmp_path / "run").exists()
