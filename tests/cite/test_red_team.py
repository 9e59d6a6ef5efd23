"""A run tells which known tricks its reward pays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sleuth.answers.factory import reward_of
from sleuth.cite.citation_reward import CitationRecipe
from sleuth.cite.red_team import TASKS, TRICKS, Attack, attack, honest_answer
from sleuth.cite.tables import RefineEnvRecipe
from sleuth.data.questions import load_questions
from sleuth.judges.factory import JudgePool
from sleuth.types import Group, Score, Task

Run = Callable[..., Path]
ROOT = Path(__file__).parents[2]

RECIPE = """
name = "refiner"
model = "{model}"

[[stage]]
kind = "grpo"
steps = 2
prompts_per_step = 2
samples_per_prompt = 2
learning_rate = 1e-3
context = 1024
save_every = 2
probe_prompts = 0
red_team_every = 2
data = {{ questions = "{world}/refiner_train.jsonl" }}
env = {{ kind = "refine", prompt = "bare", turn_tokens = 8 }}
reward = [{{ kind = "citation", sum = "additive", formula = "dr_tulu" }}]
"""


@pytest.fixture(scope="module")
def tasks(world: Path) -> list[Task]:
    return load_questions(world / "refiner_train.jsonl")


def attacked(tasks: list[Task], mode: str = "answer_only", **terms: object) -> Attack:
    env = RefineEnvRecipe.model_validate({"kind": "refine", "prompt": "bare", "mode": mode})
    setting = env.setting(None, tasks)
    recipe = CitationRecipe.model_validate({"kind": "citation"} | terms)
    with JudgePool(Path("verdicts.sqlite")) as judge_pool:  # a lexical judge's are kept nowhere
        return asyncio.run(attack(tasks, setting, reward_of([recipe], setting.dialect, None, judge_pool)))


@pytest.mark.parametrize("mode", ["answer_only", "thinking"])
def test_our_reward_pays_no_trick_as_much_as_honest_answers(tasks: list[Task], mode: str) -> None:
    found = attacked(tasks, mode)
    assert found.questions == TASKS
    assert found.rewards.keys() == TRICKS.keys()
    assert found.figures()["tricks_won"] == []
    assert found.figures()["honest_paid"] > 0.8
    assert max(found.rewards[name][0] for name in ("ids_made_up", "own_evidence", "empty", "silence")) <= 0.0
    assert "and none is paid as much as an honest answer" in found.line()


ALWAYS_PAID = {"filler", "repetition"}
STUFFED = {"ids_stuffed", "right_id_last", "right_id_first"}


@pytest.mark.parametrize("table", [{"sum": "additive"}, {"sum": "convex", "citation_weight": 0.5}])
@pytest.mark.parametrize(("formula", "expected"), [("f1", ALWAYS_PAID), ("dr_tulu", ALWAYS_PAID | STUFFED)])
def test_the_published_sums_pay_some_tricks_as_much_as_honesty_and_the_line_names_them(
    tasks: list[Task], formula: str, table: dict[str, Any], expected: set[str]
) -> None:
    found = attacked(tasks, formula=formula, **table)
    assert set(found.figures()["tricks_won"]) == expected
    assert "repetition" in found.line()


def test_rows_without_an_honest_answer_cannot_be_attacked(tasks: list[Task]) -> None:
    assert honest_answer(replace(tasks[0], evidence=None)) is None
    found = attacked([replace(task, reference="") for task in tasks[:3]])
    assert (found.questions, found.figures()) == (0, {"honest_paid": None, "tricks_won": []})
    assert "no question has an honest answer" in found.line()


def test_a_missing_score_is_left_out_with_the_honest_one_beside_it(tasks: list[Task]) -> None:
    async def only_half(group: Group) -> list[Score]:
        return [Score(value=None if at % 2 else 1.0) for at in range(len(group.episodes))]

    setting = RefineEnvRecipe(kind="refine", prompt="bare").setting(None, tasks)
    found = asyncio.run(attack(tasks[:2], setting, only_half))
    assert 0 < len(found.rewards) < len(TRICKS)
    assert set(found.rewards.values()) == {(1.0, 1.0)}


def test_a_run_says_which_tricks_its_reward_pays_before_its_first_step_and_while_it_trains(
    run: Run, world: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "refiner.toml"
    file.write_text(RECIPE.format(world=world, model=ROOT / "models" / "tiny-base"))
    run(file, tmp_path / "run")
    said = "".join(capfd.readouterr())
    assert "red team: 13 tricks on 16 questions: paid no less than an honest answer: " in said
    first, second = (json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert "tricks_won" not in first
    assert {"filler", "ids_stuffed"} <= set(second["tricks_won"])
    assert "gamed_reward" in second["alarms"]
    assert "step 2: gamed_reward: " in said
