"""`sleuth win-rate`: the continuations of two models, compared as a recipe says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sleuth.cli.app import app
from sleuth.think.world_texts import CarelessTexts

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
