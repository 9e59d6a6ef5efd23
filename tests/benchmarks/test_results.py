from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.__main__ import read_options

ROOT = Path(__file__).parents[2]


def test_the_page_claims_no_ratio_that_was_not_measured():
    rows = json.loads((ROOT / "benchmarks/results/latest.json").read_text())["rows"]
    measured = {f"{row['ratio']:.2f} ({row['low']:.1f} to {row['high']:.1f})" for row in rows}
    speed = (ROOT / "benchmarks/README.md").read_text().partition("\n## The last table\n")[2].partition("\n## ")[0]
    claimed = re.findall(r"\| (\d[^|]*) (?=\|)", speed)
    assert claimed
    assert set(claimed) <= measured


def test_no_rounds_at_all_are_refused_before_anything_is_measured(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["benchmarks", "--rounds", "0"])
    with pytest.raises(SystemExit, match="2"):
        read_options()
    assert "--rounds 0: at least 1" in capsys.readouterr().err
