"""`sleuth plan --card` and the line about it in `sleuth check recipe`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from verb import printed_json, refusal, sleuth

from sleuth.plan.shapes import PUBLISHED

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
RECIPE = """
name = "r"
model = "{folder}/model"
card = "1 x 24 GB"
[[stage]]
kind = "evaluate"
name = "base"
data = {{ questions = "{folder}/q.jsonl", limit = 10 }}
[[stage]]
kind = "grpo"
steps = 20
prompts_per_step = 8
samples_per_prompt = 4
learning_rate = 1e-3
context = 1024
data = {{ questions = "{folder}/q.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "{folder}/prompt.txt", retriever = "empty" }}
reward = [{{ kind = "answer" }}]
[[stage]]
kind = "evaluate"
name = "trained"
data = {{ questions = "{folder}/q.jsonl", limit = 10 }}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe for a folder with nothing but the config of a model of 4B, and without its data."""
    (tmp_path / "recipe.toml").write_text(RECIPE.format(folder=tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(PUBLISHED["Qwen3-4B"]))
    return tmp_path / "recipe.toml"


def test_a_plan_for_a_card_is_a_table_of_eighty_columns_and_a_verdict(recipe: Path) -> None:
    result = sleuth("plan", recipe, "--card", "8 x h100-80", "--set", "dtype=bfloat16")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    table = lines[: lines.index("", 1)]
    assert max(map(len, table)) <= 80
    assert sum("total" in line for line in table) == 1
    assert "base, trained" in result.stdout, "stages with the same figures are listed once"
    assert lines[-1].startswith("fits 8 x h100-80 by the plan: ")
    assert "an estimate from the data sheet" in result.stdout


def test_what_does_not_fit_names_keys_that_were_tried(recipe: Path) -> None:
    last = sleuth("plan", recipe, "--card", "h100-80").stdout.splitlines()[-1]
    assert last.startswith("does not fit 1 x h100-80 by the plan: grpo: ")
    changes = last.rpartition("; fits with ")[2].split()
    assert 1 <= changes.count("--set") <= 2
    again = sleuth("plan", recipe, "--card", "h100-80", *changes)
    assert again.stdout.splitlines()[-1].startswith("fits 1 x h100-80")


def test_the_plan_as_json_is_for_the_card_and_ranks_or_for_this_machine(recipe: Path) -> None:
    printed = printed_json("plan", recipe, "--card", "8 x h100-80", "--ranks", 2)
    assert printed["ranks"] == 2
    assert {"fits", "peak_memory_bytes", "tokens", "peak_disk_bytes", "judge_calls"} <= printed.keys()
    assert all({"name", "bytes"} <= phase.keys() for phase in printed["phases"])
    here = printed_json("plan", recipe)
    assert (here["card"], here["ranks"], here["seconds"]) == ("cpu", 1, None)
    assert here["memory_bytes"] > 10**9
    assert (here["steps"], here["episodes"]) == (20, 20 * 8 * 4 + 2 * 10)


def test_bad_input_is_one_line(recipe: Path) -> None:
    assert refusal("plan", recipe, "--ranks", 2) == "--card cpu is for one process: leave --ranks 2 out, or name a card"
    assert refusal("plan", recipe, "--card", "h10").startswith("--card h10: no card is called 'h10'; the nearest is ")
    (recipe.parent / "model" / "config.json").unlink()
    assert refusal("plan", recipe, "--card", "l4").endswith(
        "config.json: cannot be read: No such file or directory; the plan needs the model's config"
    )


def test_check_says_whether_a_recipe_fits_the_card_it_names(recipe: Path) -> None:
    folder = recipe.parent
    shutil.rmtree(folder / "model")
    shutil.copytree(BASE, folder / "model")
    (folder / "q.jsonl").write_text('{"id": "1", "question": "Where?", "golden_answers": ["here"]}\n')
    (folder / "prompt.txt").write_text("Question: {question}\n")
    result = sleuth("check", "recipe", recipe)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[1].startswith("ok: fits 1 x 24 GB by the plan: ")
    printed = printed_json("check", "recipe", recipe)
    assert (printed["ok"], printed["card"], printed["fits"]) == (True, "1 x 24 GB", True)
    recipe.write_text(recipe.read_text().replace("1 x 24 GB", "1 x 900 MB"))
    warned = sleuth("check", "recipe", recipe)
    assert warned.exit_code == 0
    assert warned.stdout.splitlines()[1].startswith("warning: does not fit 1 x 0.9 GB by the plan: ")


def test_the_page_of_one_card_shows_the_plan_that_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    root = Path(__file__).parents[2]
    page = (root / "docs/how-to/one_card.md").read_text()
    shown = page.partition("```text\n")[2].partition("```")[0].splitlines()
    result = sleuth("plan", root / "recipes/search_0.6b_single_gpu.toml", "--card", "a100-40")
    printed = [line.rstrip() for line in result.stdout.splitlines()]
    assert [line for line in shown if line != "..." and line.rstrip() not in printed] == []
