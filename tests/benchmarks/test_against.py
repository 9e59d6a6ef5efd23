from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import against
from benchmarks.against import Change, compare, our_sides, read_options

ROOT = Path(__file__).parents[2]


def change(here: tuple[float, ...], there: tuple[float, ...], *, more_is_better: bool = False) -> Change:
    return Change(name="row", unit="s", more_is_better=more_is_better, here=here, there=there)


def test_a_row_is_worse_only_where_its_median_is_worse_than_every_run_there():
    assert change((3.1, 3.2, 9.0), (2.0, 3.0, 3.1)).worse
    assert not change((2.9, 3.0, 9.0), (2.0, 3.0, 3.1)).worse
    assert not change((1.0, 1.1, 1.2), (2.0, 3.0, 3.1)).worse  # better is not worse
    assert change((90.0, 95.0, 99.0), (96.0, 100.0, 101.0), more_is_better=True).worse
    assert not change((90.0, 97.0, 99.0), (96.0, 100.0, 101.0), more_is_better=True).worse


def test_both_checkouts_are_measured_in_turn_and_neither_always_first(monkeypatch):
    made = []

    def run_in(checkout: Path, job: str, **arguments) -> dict[str, float]:
        made.append(checkout.name)
        return {"seconds": len(made)}

    monkeypatch.setattr(against, "run_in", run_in)
    side = next(side for side in our_sides() if side.name == "update/search")
    row = compare(side, [(Path("here"), Path("a")), (Path("there"), Path("b"))], rounds=2)
    assert made == ["here", "there", "there", "here"]
    assert (row.here, row.there) == ((1, 4), (2, 3))


def test_a_folder_that_is_no_checkout_is_refused_before_anything_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("sys.argv", ["against", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        read_options()
    assert f"{tmp_path}: no checkout of Sleuth" in capsys.readouterr().err


@pytest.mark.slow
def test_a_checkout_is_measured_against_itself():
    command = [sys.executable, "-m", "benchmarks.against", str(ROOT), "--only", "sample/equal", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert "sample/equal" in done.stdout, done.stderr
    assert "tokens/s" in done.stdout
