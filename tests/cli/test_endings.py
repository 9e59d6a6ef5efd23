from __future__ import annotations

import errno
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sleuth.cli.app import Verbs
from sleuth.cli.watching import watched
from sleuth.types import RetrievalFailed, SleuthError


def ending(error: BaseException) -> tuple[int, str]:
    """Exit status and stderr of a verb that raises."""
    app = typer.Typer(cls=Verbs, pretty_exceptions_enable=False)

    @app.command("fail")
    def fail() -> None:
        raise error

    app.command("other")(lambda: None)
    result = CliRunner().invoke(app, ["fail"])
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (SleuthError("q.jsonl:3: no `question`"), 2, "error: q.jsonl:3: no `question`\n"),
        (SleuthError("two\nlines"), 2, "error: two lines\n"),
        (RetrievalFailed("the index does not answer"), 1, "error: the index does not answer\n"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/a"), 1, "error: runs/a: No space left on device\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_each_ending_has_its_status_and_one_line(error: BaseException, status: int, line: str) -> None:
    assert ending(error) == (status, line)


def test_a_bug_of_ours_is_not_dressed_up_as_a_mistake_of_the_user() -> None:
    app = typer.Typer(cls=Verbs)
    app.command("divide")(lambda: 1 / 0)
    app.command("other")(lambda: None)
    assert isinstance(CliRunner().invoke(app, ["divide"]).exception, ZeroDivisionError)


def test_help_and_the_light_verbs_never_import_torch(tmp_path: Path) -> None:
    script = """
import sys
from typer.testing import CliRunner
from sleuth.cli.app import VERBS, app
for verb in VERBS:
    assert CliRunner().invoke(app, [verb, "--help"]).exit_code == 0
print([name for name in ("torch", "transformers", "numpy", "pyarrow", "tantivy") if name in sys.modules])
for line in ("world w --people 200", "index w/corpus.jsonl w/index", "search w/index Mills", "report w"):
    CliRunner().invoke(app, line.split())
print([name for name in ("torch", "transformers") if name in sys.modules])
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n[]\n"
    assert (tmp_path / "w" / "index").is_dir()


def test_quick_work_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with watched("quick") as progress:
        progress(1, 2)
        progress(2, 2)
    assert capsys.readouterr().err == ""


def test_slow_work_shows_plain_lines_on_stderr_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched("slow") as progress:
        later = time.monotonic() + 5
        monkeypatch.setattr("time.monotonic", lambda: later)
        progress(1, 2)
        progress(2, 2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("slow 1/2\nslow 2/2")
