"""A run's rollouts under another reward: nothing is generated, and nobody is asked twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import MODEL, ChatServer, part, says, scored
from run_files import groups
from typer.testing import Result
from verb import sleuth

ROOT = Path(__file__).parents[2]
RUBRIC = "kind='rubric', own=false, static='refiner'"


def by_length(body: dict[str, Any]) -> tuple[int, object]:
    length = len(part(body, "answer")) + len(part(body, "criterion"))
    return (400, {"detail": "?"}) if length % 11 == 0 else says(scored(length % 3))


@pytest.fixture(scope="module")
def server() -> Iterator[ChatServer]:
    with ChatServer(answer=by_length).running() as server:
        yield server


@pytest.fixture
def folder(run, recipe_file, server, tmp_path) -> Path:
    """A run of two steps whose reward is a model's and a format's."""
    judge = f"{{kind='http', urls=['{server.url}'], model='{MODEL}'}}"
    reward = f"stage.1.reward=[{{{RUBRIC}, judge={judge}}}, {{kind='format', weight=0.5}}]"
    short = ("stage.1.probe_prompts=0", "stage.1.steps=2", "stage.0.data.limit=2", "stage.2.data.limit=2")
    run(recipe_file, tmp_path / "run", reward, *short)
    return tmp_path / "run"


def rescored(folder: Path, tables: str, *options: str) -> Result:
    file = folder.parent / "new.toml"
    file.write_text(tables)
    return sleuth("rescore", folder, "--reward", file, *options)


def told(folder: Path, tables: str) -> dict[str, Any]:
    result = rescored(folder, tables, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["stages"][0]


def test_a_scorer_that_does_not_fit_is_said_to_be_and_a_reward_of_other_episodes_is_refused(folder, tmp_path):
    result = rescored(folder, "[[reward]]\nkind = 'answer'\nscorer = 'slime'\n")
    assert result.exit_code == 0
    assert "note: grpo: the scorer slime would pay a well-formed right answer 0, not 1" in result.stderr
    assert "the scorer" not in rescored(folder, "[[reward]]\nkind = 'answer'\nscorer = 'verl'\n").stderr
    (tmp_path / "refiner").mkdir()
    shutil.copy(ROOT / "recipes" / "tiny" / "refiner.toml", tmp_path / "refiner" / "recipe.toml")
    for run, table, said in (
        (folder, "kind = 'suffix'\njudge = { kind = 'ending' }", '"suffix" does not fit env.kind = "search"'),
        (tmp_path / "refiner", "kind = 'answer'", '"answer" needs an env that searches; for env.kind = "refine" set'),
    ):
        refused = rescored(run, f"[[reward]]\n{table}\n")
        assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
        assert f"reward.0.kind = {said}" in refused.stderr


def test_another_reward_is_told_beside_the_old_one_and_new_weights_make_no_call(folder, server, monkeypatch):
    judge = f"judge = {{ kind = 'http', urls = ['{server.url}'], model = '{MODEL}' }}\n"
    rubric = f"[[reward]]\nkind = 'rubric'\nown = false\nstatic = 'refiner'\n{judge}"
    formatted = "[[reward]]\nkind = 'format'\nweight = 0.5\n"
    before = len(server.asked)

    def refuse(body: dict[str, Any]) -> tuple[int, object]:
        raise AssertionError("a judge was asked")

    monkeypatch.setattr(server, "answer", refuse)
    same = told(folder, rubric + formatted)
    flat = [score.value for group in groups(folder) for score in group.scores]
    assert (same["steps"], same["groups"], same["episodes"]) == (2, 8, 64)
    assert [same["before"][key] == same["after"][key] for key in ("mean", "missing", "signal")] == [True] * 3
    assert same["before"]["missing"] == flat.count(None) > 0
    assert same["within"]["value"] == same["overall"] == same["same_best"]["value"] == 1.0
    assert same["within"]["n"] > 0
    other = told(folder, rubric + formatted.replace("0.5", "3.0"))
    assert other["after"]["mean"] != other["before"]["mean"]
    assert other["after"]["missing"] == other["before"]["missing"]  # what was missing is not asked for either
    alone = told(folder, formatted)
    assert (alone["judge"], alone["after"]["missing"]) == ({}, 0)
    assert len(server.asked) == before

    monkeypatch.setattr(server, "answer", by_length)
    aggregated = told(folder, rubric + "aggregation = 'positive_weights'\n")
    assert aggregated["judge"]["judge_cached"] > 0
    assert aggregated["judge"]["judge_asked"] == aggregated["judge"]["judge_missing"] > 0
    assert -1 <= aggregated["within"]["value"] <= 1
    text = rescored(folder, rubric + formatted).stdout
    assert "64 episodes in 8 groups of 2 steps" in text
    assert "Kendall's tau-b of siblings  1.00" in text
    assert "the first without a score: the judge gave no verdict" in text
