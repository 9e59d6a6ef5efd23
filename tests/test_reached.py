"""The minimum figures that `make` requires of a run: reached, missed, or unknown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "reached.py"
MEASURED = '{"em_one_hop": {"value": 0.75}, "em_two_hop": {"value": 0.5}}'


def reached(run: Path, *minima: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, TOOL, run, *minima], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "eval").mkdir()
    return tmp_path


@pytest.mark.parametrize(("minima", "status"), [(("0.75", "0.5"), 0), (("0.75", "0.51"), 1), (("0.76", "0.5"), 1)])
def test_every_named_figure_has_to_reach_its_minimum(run: Path, minima: tuple[str, str], status: int) -> None:
    (run / "eval" / "trained.json").write_text(MEASURED)
    said = f"{run}: em_one_hop 0.750 (minimum {minima[0]}), em_two_hop 0.500 (minimum {minima[1]})\n"
    assert reached(run, f"em_one_hop={minima[0]}", f"em_two_hop={minima[1]}") == (status, said, "")


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (None, "No such file or directory; a run writes it at its end"),
        (MEASURED[:30], "not the JSON of an evaluation"),
        (MEASURED.replace("0.5", "null"), "should hold figures of em_one_hop and of em_two_hop"),
    ],
)
def test_an_unreadable_evaluation_is_refused_in_one_line_without_a_verdict(
    run: Path, contents: str | None, said: str
) -> None:
    if contents is not None:
        (run / "eval" / "trained.json").write_text(contents)
    status, out, err = reached(run, "em_one_hop=0.75", "em_two_hop=0.5")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {run / 'eval' / 'trained.json'}: ")
    assert said in err
