"""Arms under a launcher: every arm is trained by all ranks, and the first prints the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import finish, torchrun

pytestmark = pytest.mark.ranks

ASKED = """
name = "asked"
model = "{model}"

[[stage]]
kind = "evaluate"
name = "trained"
context = 400
data = {{ questions = "{world}/qa_test.jsonl", limit = 4 }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", index = "{world}/index" }}
"""
ARMS = """
name = "arms"
model = "{model}"
seeds = [2]

[table]
evaluation = "trained"
figures = ["em"]

[[arm]]
name = "read"
stages = ["{read}:supervised", "asked.toml:trained"]

[[arm]]
name = "played"
stages = ["{read}:supervised", "{played}:online_dpo", "asked.toml:trained"]
"""
MODEL = Path(__file__).parents[3] / "models" / "tiny-base"


@pytest.mark.slow
def test_ranks_train_every_arm_and_the_first_prints_the_table(recipes, world, tmp_path):
    (tmp_path / "asked.toml").write_text(ASKED.format(model=MODEL, world=world))
    file = tmp_path / "two_arms.toml"
    file.write_text(ARMS.format(model=MODEL, read=recipes["supervised"], played=recipes["online_dpo"]))
    said = finish(torchrun("sweep", str(file), "--run", str(tmp_path / "runs"), "--json"))
    [table] = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert table["arms"]["played"]["figures"]["em"]["n"] == 4
    played = tmp_path / "runs" / "seed-2" / "played"
    assert "copied from there" in (played / "log.txt").read_text()
    costs = json.loads((played / "manifest.json").read_text())["costs"]
    assert len(costs["online_dpo"]["ranks_memory_bytes"]) == 2
