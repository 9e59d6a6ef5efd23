"""The win rate of one model over another, by hand and by `sleuth win-rate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sleuth.cli.app import app
from sleuth.evaluation.intervals import UNMEASURED, wilson
from sleuth.think.win_rate import win_rate
from sleuth.think.world_texts import CarelessTexts
from sleuth.types import Verdict


def verdicts(*scores: float | None) -> list[Verdict]:
    return [Verdict(score=score) for score in scores]


def test_ties_are_halves_of_the_rate_and_no_part_of_the_sign_test() -> None:
    found = win_rate(verdicts(*[1.0] * 9, 0.0, *[0.5] * 4))
    counts = {"wins": 9, "ties": 4, "losses": 1, "no_verdict": 0, "p": 22 / 1024}
    assert found == {"win_rate": wilson(11, 14).as_json(), **counts}


def test_a_failed_comparison_is_missing_and_never_a_loss() -> None:
    found = win_rate([*verdicts(1.0, 1.0, None), Verdict(score=None, invalid=True)])
    assert (found["wins"], found["losses"], found["no_verdict"], found["win_rate"]["n"]) == (2, 0, 2, 2)
    assert win_rate(verdicts(None))["win_rate"] == UNMEASURED.as_json()


ROOT = Path(__file__).parents[2]
BASE = str(ROOT / "models" / "tiny-base")

RECIPE = """
name = "compares"
model = "{base}"

[[stage]]
kind = "win_rate"
name = "against_base"
judge = "ending"
stops = ["."]
data = {{ kind = "text", texts = "{texts}", suffix_tokens = 6 }}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    texts = [CarelessTexts(200, "test", (0,)).text(number) for number in range(6)]
    rows = [{"text": t.text, "cut": len(t.beginning), "golden_answers": [t.answer]} for t in texts]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = tmp_path / "compares.toml"
    file.write_text(RECIPE.format(base=BASE, texts=tmp_path / "t.jsonl"))
    return file


def test_a_model_ties_with_itself_and_the_file_has_every_pair(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = CliRunner().invoke(app, ["win-rate", BASE, str(recipe), "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["win_rate"]["value"] == 0.5
    assert (figures["wins"], figures["ties"], figures["losses"], figures["p"]) == (0, 6, 0, 1.0)
    assert "records" not in figures
    records = json.loads(out.read_text())["records"]
    assert len(records) == 6
    assert all(record["ours"] == record["theirs"] for record in records)


def test_the_table_names_both_models_and_the_judge(recipe: Path) -> None:
    done = CliRunner().invoke(app, ["win-rate", BASE, str(recipe)])
    assert done.exit_code == 0, done.output
    for word in ("win_rate", "right_gain", "ties 6", "judged by ending", "sign test"):
        assert word in done.stdout
