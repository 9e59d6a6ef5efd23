"""Hooks of the user beside a GRPO stage: their figures, scores, state and rows, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from refusals import refused
from run_files import figures, log, rows, weights
from small_stages import BRIEF

from sleuth.recipe import load_recipe
from sleuth.report.page import write_report
from sleuth.types import RunFailed, SleuthError

HOOKS = """
import dataclasses, json, time
from pathlib import Path

class Watch:
    def __init__(self, stage):
        self.stage, self.seen, self.file = stage, 0, Path(__file__).with_name("seen.jsonl")

    def opening(self):
        return [f"watching {self.stage.name} of {self.stage.steps} steps"]

    def score(self, step, groups):
        return [dataclasses.replace(one, scores=tuple(
            dataclasses.replace(score, value=float(at)) for at, score in enumerate(one.scores))) for one in groups]

    def measure(self, step, groups):
        self.seen += len(groups)
        norm = sum(weight.detach().square().sum().item() for weight in self.stage.model.parameters())
        return {"seen": self.seen, "norm": norm, "absent": None}

    def state(self):
        return {"seen": self.seen}

    def load_state(self, state):
        self.seen = state["seen"]

    def log(self, stage, step, figures):
        with self.file.open("a") as file:
            file.write(json.dumps([stage, step, figures["reward_mean"], figures["hook_Watch/seen"]]) + "\\n")

def best(step, groups):
    return {"best": max(score.value for group in groups for score in group.scores)}
"""
ROOT = Path(__file__).parents[2]
BOTH = "stage.1.hooks=['own_hooks:Watch', 'own_hooks:best']"


@pytest.fixture
def recipe(recipe_file, tmp_path) -> Path:
    (tmp_path / "own_hooks.py").write_text(HOOKS)
    return recipe_file


def hooked(tmp_path: Path, code: str) -> str:
    (tmp_path / "own_hooks.py").write_text(code)
    return "stage.1.hooks=['own_hooks:mine']"


def test_a_hook_measures_scores_and_tracks(run, recipe, tmp_path):
    run(recipe, tmp_path / "run", *BRIEF, BOTH, "stage.1.stop_after=2")
    done = rows(tmp_path / "run")
    assert [row["hook_Watch/seen"] for row in done] == [2, 4]
    assert [row["hook_best/best"] for row in done] == [3.0, 3.0]  # four samples, scored 0 to 3
    assert all(row["reward_mean"] == 1.5 and row["hook_Watch/norm"] > 0 for row in done)
    assert "hook_Watch/absent" not in done[0]
    assert "watching grpo of 2 steps" in log(tmp_path / "run")
    tracked = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    assert tracked == [["grpo", step, 1.5, 2 * step] for step in (1, 2)]
    assert "norm of Watch" in write_report(tmp_path / "run").read_text()
    with (tmp_path / "own_hooks.py").open("a") as source:
        source.write("\n# another byte\n")
    with pytest.raises(SleuthError, match=r"own_hooks.py changed after it was saved; start a new run"):
        run(recipe, tmp_path / "run", *BRIEF, BOTH)


@pytest.mark.slow
def test_the_state_of_a_hook_is_kept_over_a_stop(run, recipe, tmp_path):
    whole = run(recipe, tmp_path / "whole", *BRIEF, BOTH)
    run(recipe, tmp_path / "parts", *BRIEF, BOTH, "stage.1.stop_after=2")
    assert weights(run(recipe, tmp_path / "parts", *BRIEF, BOTH)) == weights(whole)
    assert figures(tmp_path / "parts") == figures(tmp_path / "whole")
    assert rows(tmp_path / "parts")[-1]["hook_Watch/seen"] == 8


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def mine(step, groups):\n    return 1 / 0", "own_hooks.py:2: mine: ZeroDivisionError: division by zero"),
        ("def mine(step, groups):\n    return {'a': float('nan')}",
         "own_hooks.py:1: mine: returned the figure a = nan; expected a finite number"),
        ("def mine(step, groups):\n    return 3", "own_hooks.py:1: mine: returned figures = 3; expected numbers by"),
        ("import time\ndef mine(step, groups):\n    time.sleep(9)", "own_hooks.py:2: mine: did not return within 0.2"),
        ("class mine:\n    def score(self, step, groups):\n        return groups[1:]",
         "own_hooks.py:1: mine: score returned "),
        ("class mine:\n    def state(self):\n        return {'a': object()}\n    def load_state(self, state): ...\n"
         "    def opening(self): ...", "own_hooks.py:1: mine: state()['a'] is a object: a checkpoint's state is"),
    ],
)  # fmt: skip
def test_a_hook_that_fails_ends_the_run_with_the_users_line(run, recipe, tmp_path, monkeypatch, code, error):
    monkeypatch.setattr("sleuth.training.own_hooks.SECONDS", 0.2)
    with pytest.raises(RunFailed) as caught:
        run(recipe, tmp_path / "run", *BRIEF, hooked(tmp_path, code), "stage.1.save_every=1")
    assert error in str(caught.value)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def other(): ...", "own_hooks.py has no mine"),
        ("def mine(step): ...", "own_hooks.py:1: mine: takes 1 arguments; expected def mine(step, groups)"),
        ("class mine:\n    def mesure(self): ...", "own_hooks.py:1: mine: has no method of a hook; expected one or"),
        ("class mine:\n    def measure(self, step): ...",
         "own_hooks.py:1: mine: measure should be def measure(self, step, groups)"),
        ("class mine:\n    def opening(self): ...\n    def state(self): ...",
         "own_hooks.py:1: mine: state and load_state belong together"),
        ("class mine:\n    def __init__(self, stage, more): ...\n    def opening(self): ...",
         "own_hooks.py:1: mine: needs a value of more"),
    ],
)  # fmt: skip
def test_what_is_no_hook_is_refused_before_the_run(recipe, tmp_path, code, error):
    assert error in refused(recipe, hooked(tmp_path, code))


def test_two_hooks_of_one_name_are_refused(recipe):
    with pytest.raises(SleuthError, match="hooks has mine twice"):
        load_recipe(recipe, ["stage.1.hooks=['own_hooks:mine', 'others:mine']"])


def test_the_hooks_of_the_page_run(run, recipe_file, tmp_path):
    file = "examples/own_code/my_hooks.py"
    code = (ROOT / file).read_text().partition("\n\n\n")[2]
    assert code in (ROOT / "docs/how-to/own_code.md").read_text()
    both = f"stage.1.hooks=['{ROOT / file}:Drift', '{ROOT / file}:longest']"
    run(recipe_file, tmp_path / "run", *BRIEF, both, "stage.1.stop_after=1", "stage.1.reward=[{ kind = 'format' }]")
    [row] = rows(tmp_path / "run")
    assert row["hook_Drift/largest"] > 0
    assert row["hook_longest/segment"] > 12  # the prompt
