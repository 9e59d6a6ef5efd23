"""The reading of stderr that `make newest` ends with."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "quiet.py"
spec = importlib.util.spec_from_file_location("quiet", TOOL)
assert spec is not None
assert spec.loader is not None
quiet = importlib.util.module_from_spec(spec)
spec.loader.exec_module(quiet)


def command_that(tmp_path: Path, script: str) -> Path:
    """A `sleuth` that runs this script of the shell."""
    sleuth = tmp_path / "sleuth"
    sleuth.write_text(f"#!/bin/sh\n{script}\n")
    sleuth.chmod(0o755)
    return sleuth


def test_progress_is_quiet(tmp_path: Path) -> None:
    sleuth = command_that(tmp_path, 'echo "grpo 1/2 reward 0.031, 0:00:07 elapsed" >&2')
    assert quiet.main(sleuth) == 0


@pytest.mark.parametrize(
    "line",
    ["nanobind: leaked 4 instances!", "layers.py:78: FutureWarning: both are set", "[transformers] `x` is deprecated"],
)
def test_a_line_of_a_library_is_printed_and_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture, line: str) -> None:
    assert quiet.main(command_that(tmp_path, f"echo '{line}' >&2")) == 1
    assert f"sleuth init mine: {line}\n" in capsys.readouterr().out


def test_a_command_that_fails_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert quiet.main(command_that(tmp_path, "echo no; exit 3")) == 1
    assert "exit status 3" in capsys.readouterr().out
