"""Evaluations while a stage trains: their files and figures, the best checkpoint, and the end of a stage by a rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from run_files import bytes_of, evaluation, figures, log, rows, weights
from small_stages import BRIEF, SECOND_STAGE, through

from sleuth.cli.pipeline import trained_stages
from sleuth.recipe import load_recipe
from sleuth.report.page import write_report
from sleuth.runs.chain import check
from sleuth.runs.checkpoints import checkpoints_in
from sleuth.runs.run_folder import RunFolder
from sleuth.training import evaluate_stage
from sleuth.types import RunFailed, SleuthError

TRACKER = """
import json

class Tracker:
    def __init__(self, stage):
        self.file = stage.folder / "seen.jsonl"

    def log(self, stage, step, figures):
        with self.file.open("a") as file:
            file.write(json.dumps([step, figures]) + "\\n")
"""
EVERY = (*BRIEF, "stage.1.evaluate_every={ trained = 2 }")


def steps_in(folder: Path) -> list[str]:
    return sorted(file.stem for file in (folder / "eval/steps").glob("*.json"))


def without_eval(folder: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if not name.startswith("eval_")} for row in figures(folder)]


@pytest.fixture
def worth(monkeypatch) -> Any:
    """`worth({1: 0.2, 2: 0.5})`: the exact match that evaluations have at steps of the run."""
    original = evaluate_stage.evaluation

    def at(values: dict[int, float]) -> None:
        def evaluated(*arguments: Any, name: str, **more: Any) -> dict[str, Any]:
            contents = original(*arguments, name=name, **more)
            if ".step-" in name:
                contents["em"]["value"] = values[int(name[-6:])]
            return contents

        monkeypatch.setattr(evaluate_stage, "evaluation", evaluated)

    return at


@pytest.mark.slow
def test_a_stage_is_evaluated_at_its_steps_as_by_the_stage_behind_it(run, recipe_file, tmp_path):
    folder = tmp_path / "run"
    (tmp_path / "tracking.py").write_text(TRACKER)
    run(recipe_file, folder, *EVERY, "stage.1.stop_after=3", "stage.1.keep=9", "stage.1.hooks=['tracking:Tracker']")
    assert steps_in(folder) == ["trained.step-000002", "trained.step-000003"]  # every second one, and the last
    last, whole = evaluation(folder, "steps/trained.step-000003"), evaluation(folder, "trained")
    assert last["after"] == whole["after"] == ["grpo"]
    assert (last["model"], last["model_sha256"]) == (whole["model"], whole["model_sha256"])
    assert last["records"] == whole["records"]
    first, *later = rows(folder)
    assert not any(name.startswith("eval_") for name in first)
    assert [row["eval_trained/em"] for row in later] == [
        evaluation(folder, f"steps/trained.step-{step:06d}")["em"]["value"] for step in (2, 3)
    ]
    seen = [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]
    assert [[step, sorted({name.partition("_")[0] for name in row} & {"eval", "reward"})] for step, row in seen] == [
        [1, ["reward"]], [2, ["reward"]], [2, ["eval"]], [3, ["reward"]], [3, ["eval"]],
    ]  # fmt: skip
    assert seen[-1][1]["eval_trained/em"] == later[-1]["eval_trained/em"]
    assert check(folder).line(folder) is None
    assert "Exact match: trained" in write_report(folder).read_text()
    other = run(recipe_file, tmp_path / "without", *BRIEF, "stage.1.stop_after=3", "stage.1.keep=9")
    assert weights(other) == weights(folder / "checkpoints" / other.name)
    assert without_eval(folder) == figures(tmp_path / "without")


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True])
def test_a_run_killed_in_an_evaluation_goes_on_as_if_nothing_had_been(run, recipe_file, tmp_path, monkeypatch, last):
    overrides = (*EVERY, "stage.1.stop_after=2") if last else EVERY
    run(recipe_file, tmp_path / "whole", *overrides)
    original = evaluate_stage.EvalSession.ask

    def killed(session: Any, tasks: Any, name: str) -> Any:
        if "step-000002" in name:
            raise KeyboardInterrupt
        return original(session, tasks, name)

    with monkeypatch.context() as patched:
        patched.setattr(evaluate_stage.EvalSession, "ask", killed)
        with pytest.raises(KeyboardInterrupt):
            run(recipe_file, tmp_path / "parts", *overrides)
    assert steps_in(tmp_path / "parts") == []
    run(recipe_file, tmp_path / "parts", *overrides)
    assert figures(tmp_path / "parts") == figures(tmp_path / "whole")
    assert bytes_of(tmp_path / "parts") == bytes_of(tmp_path / "whole")
    assert steps_in(tmp_path / "parts") == steps_in(tmp_path / "whole")


@pytest.mark.slow
def test_the_best_checkpoint_is_kept_and_handed_on(run, recipe_file, tmp_path, worth):
    worth({1: 0.2, 2: 0.5, 3: 0.5, 4: 0.1})
    recipe_file.write_text(
        recipe_file.read_text().replace(
            '\n[[stage]]\nkind = "evaluate"\nname = "trained"',
            SECOND_STAGE.replace("steps = 2", "steps = 1") + '\n[[stage]]\nkind = "evaluate"\nname = "trained"',
        )
    )
    overrides = ["stage.0.data.limit=2", *BRIEF[1:4], "stage.3.data.limit=2", "stage.1.evaluate_every={ trained = 1 }"]
    overrides += ["stage.1.best=em", "stage.1.keep=1"]
    folder = tmp_path / "run"
    last = run(recipe_file, folder, *overrides)
    assert [place.name for place in checkpoints_in(folder / "checkpoints")] == [
        "step-000002", "step-000004", "step-000005",
    ]  # fmt: skip
    assert "grpo: step-000002 is the best by eval_trained/em, and handed on" in log(folder)
    assert run(recipe_file, folder, *overrides) == last  # a finished stage hands on the same
    recipe = load_recipe(folder / "recipe.toml")
    after = [*trained_stages(recipe, RunFolder.look(folder))][1]
    assert Path(after.model).name == "step-000002"


def test_a_stage_ends_when_its_evaluations_are_no_better(run, recipe_file, tmp_path, worth):
    worth({1: 0.2, 2: 0.5, 3: 0.5})
    rule = ("stage.1.evaluate_every={ trained = 1 }", "stage.1.best=trained/em", "stage.1.stop_after_worse=1")
    best = run(recipe_file, tmp_path / "run", *BRIEF, *rule)
    assert best.name == "step-000002"
    assert len(rows(tmp_path / "run")) == 3
    assert "grpo: ends after step 3: trained/em was not better in 1 evaluations" in log(tmp_path / "run")
    assert evaluation(tmp_path / "run", "trained")["model"].endswith("step-000002")
    assert run(recipe_file, tmp_path / "run", *BRIEF, *rule) == best
    assert len(rows(tmp_path / "run")) == 3


def test_an_evaluation_without_the_figure_ends_the_run_with_those_that_it_has(run, recipe_file, tmp_path):
    with pytest.raises(
        RunFailed, match=r"best = 'citation_f1': the evaluation trained has no such figure; it has em, "
    ):
        run(recipe_file, tmp_path / "run", *EVERY, "stage.1.best=citation_f1")


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["evaluate_every={ held = 2 }"],
         "evaluate_every.held: there is no evaluate stage of this name; there are base, trained"),
        (["best=em"], 'best = "em" is a figure of evaluations: set evaluate_every'),
        (["evaluate_every={ trained = 2, base = 2 }", "best=em"], 'best = "em": of which evaluation? write "trained/'),
        (["evaluate_every={ trained = 2 }", "stop_after_worse=2"], "stop_after_worse = 2 needs the figure"),
        (["evaluate_every={ trained = 0 }"], "evaluate_every.trained = 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(recipe_file, overrides, error):
    with pytest.raises(SleuthError) as caught:
        load_recipe(recipe_file, [f"stage.1.{one}" for one in overrides])
    assert error in str(caught.value)


def test_a_figure_that_there_is_not_is_refused_with_the_nearest(recipe_file):
    assert "no evaluation has a figure emm; the nearest is em" in refused(recipe_file, *EVERY, "stage.1.best=emm")


@pytest.mark.slow
def test_the_servers_of_a_stage_answer_its_evaluations(run, recipe_file, tmp_path, servers):
    overrides = (*EVERY, "stage.1.stop_after=3", through(servers("vllm")))
    run(recipe_file, tmp_path / "run", *overrides)
    assert steps_in(tmp_path / "run") == ["trained.step-000002", "trained.step-000003"]
    last, whole = evaluation(tmp_path / "run", "steps/trained.step-000003"), evaluation(tmp_path / "run", "trained")
    assert last["records"] == whole["records"]
