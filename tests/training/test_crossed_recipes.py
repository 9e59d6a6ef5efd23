"""Recipes that cross features: what can be checked can be trained, stopped, replayed, measured and compared, or is
refused in one line."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from crossed import AXES, COUNTS, Crossed, draw, write_inputs
from run_files import figures
from typer.testing import Result
from verb import sleuth

from sleuth.runs.run_folder import RunFolder

pytest.importorskip("peft")
NOT_ASKED = ("own", "tools", "tools_search", "thought", "thought_text", "thought_suffix")
"""Environments whose models `sleuth eval` refuses: it has no code of the user, and does not ask those that think."""
FAILED, INTERRUPTED = 1, 130


@pytest.fixture(scope="session")
def models(world, once) -> Path:
    """Teachers by the names of the models, and the run whose checkpoint is a model too."""

    def make(folder: Path) -> None:
        write_inputs(folder, world)
        axes = AXES["online_dpo"](world, folder)
        choices = {axis: next(iter(choices)) for axis, choices in axes.items()}
        file = Crossed(kind="online_dpo", choices=choices, axes=axes).write(folder)
        assert sleuth("train", file, "--run", folder / "run").exit_code == 0

    return once("crossed", make)


@cache
def drawn(world: Path, models: Path) -> tuple[list[Crossed], list[Crossed]]:
    """Those that load and those that do not, of all kinds."""
    kinds = [draw(kind, AXES[kind](world, models), COUNTS[kind]) for kind in AXES]
    return [one for loaded, _ in kinds for one in loaded], [one for _, refused in kinds for one in refused]


def line_of(result: Result) -> str | None:
    """The line with which a verb refuses; None if it does its work. Fails on a traceback."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code == 0:
        return None
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert lines, result.output
    return "\n".join(lines)


def outcome(folder: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """The weights, and the figures but for seconds and those that are measured where a stage ends."""
    weights = {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.glob("checkpoints/*/**/*.safetensors"))
    }
    return weights, [
        {key: value for key, value in row.items() if not key.startswith("held_out")} for row in figures(folder)
    ]


def killed(file: Path, folder: Path, moment: int) -> None:
    """Train until it would write its figures the `moment`-th time, and go on with the same command."""
    write, written = RunFolder.write_metrics, 0

    def interrupted(self: RunFolder, stage: str, step: int, found: Mapping[str, Any]) -> None:
        nonlocal written
        written += 1
        if written == moment:
            raise KeyboardInterrupt
        write(self, stage, step, found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "write_metrics", interrupted)
        assert sleuth("train", file, "--run", folder).exit_code == INTERRUPTED
    assert line_of(sleuth("train", file, "--run", folder)) is None


def ask(recipe: Crossed, place: Path, world: Path, seed: int) -> str | None:
    """Asserts what every recipe keeps; the line if the run is refused."""
    rng = random.Random(seed)
    file, whole = recipe.write(place), place / "whole"
    refused = line_of(sleuth("check", "recipe", file))
    trained = sleuth("train", file, "--run", whole)
    line = line_of(trained)
    if refused is None and trained.exit_code == FAILED:
        return line
    assert line == refused, f"check: {refused}; train: {line}"
    if refused is not None:
        return refused
    result = outcome(whole)
    if rng.random() < 0.5:
        killed(file, place / "killed", moment=rng.choice((1, 2)))
    else:
        assert line_of(sleuth("train", file, "--run", place / "killed", "--set", "trained.stop_after=1")) is None
        assert line_of(sleuth("train", file, "--run", place / "killed")) is None
    assert outcome(place / "killed") == result, "a run that was stopped ends otherwise"
    replays(recipe, whole, rng.choice((1, 2)))
    assert line_of(sleuth("report", whole)) is None
    evaluates(recipe, whole, world)
    options = recipe.options()
    if options and any(row["loss"] for row in result[1]):
        axis = rng.choice(options)
        plain = recipe.without(axis).write(place / "plain")
        if line_of(sleuth("train", plain, "--run", place / "plain" / "run")) is None:
            assert outcome(place / "plain" / "run") != result, f"{axis} = {recipe.choices[axis]} changes nothing"
            line_of(sleuth("compare", whole, place / "plain" / "run"))
    return None


def replays(recipe: Crossed, folder: Path, step: int) -> None:
    """Replay gives the recorded loss, of a stage that has rollouts."""
    rows = [row for row in outcome(folder)[1] if row["stage"] == "trained"]
    first = sum("before" in recipe.axes[axis][choice] for axis, choice in recipe.choices.items())
    found = sleuth("replay", folder, first + step, "--json", "--allow-code")
    line = line_of(found)
    if recipe.kind != "grpo":
        assert line is not None
        return
    if recipe.choices["updates"] == "minibatches" and line is not None:
        assert "prompts_per_update = 1" in line
        return
    assert line is None, line
    assert json.loads(found.stdout)["loss"] == rows[step - 1]["loss"], "replay"


def evaluates(recipe: Crossed, folder: Path, world: Path) -> None:
    """The last checkpoint answers questions, if it is one of those that do."""
    last = max((folder / "checkpoints").glob("step-*"))
    scene = recipe.choices.get("env", "")
    refines = scene.startswith("refine") or recipe.choices.get("data", "").startswith("rows")
    questions = world / ("refiner_test.jsonl" if refines else "qa_test.jsonl")
    index = () if refines or scene == "own" else ("--index", world / "index")
    line = line_of(sleuth("eval", last, "--questions", questions, *index, "--limit", 1, "--json"))
    assert line is None or recipe.kind != "grpo" or scene in NOT_ASKED, line


def briefly(number: int) -> Any:
    """A tenth of them is asked without the slow tests."""
    return pytest.param(number, marks=pytest.mark.slow if number % 10 else pytest.mark.sentinel)


@pytest.mark.parametrize("number", [briefly(number) for number in range(sum(COUNTS.values()))])
def test_crossed_features_work_together_or_are_refused(number, world, models, tmp_path):
    loaded, _ = drawn(world, models)
    if number >= len(loaded):
        pytest.skip("all pairs are in those before")
    recipe = loaded[number]
    try:
        line = ask(recipe, tmp_path, world, number)
    except BaseException:
        print((tmp_path / "crossed.toml").read_text())
        raise
    print(f"outcome of {recipe.kind} {number}: {line or 'worked'}")


def test_check_refuses_what_train_refuses(world, models, tmp_path):
    for recipe in drawn(world, models)[1]:
        file = recipe.write(tmp_path)
        refused = line_of(sleuth("check", "recipe", file))
        assert refused is not None
        assert line_of(sleuth("train", file, "--run", tmp_path / "run")) == refused
        assert not (tmp_path / "run").exists()
        print(f"outcome of a pair for {recipe.kind}: {refused}")
