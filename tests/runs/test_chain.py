"""The chain of hashes of a run folder: what it notices, what it never does, and that no kill breaks it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import sleuth.runs.chain as chain
from sleuth.host.atomic import replacing_folder, write_text
from sleuth.host.checksums import write_checksums
from sleuth.recipe import Recipe
from sleuth.runs.chain import CHAIN, check, recorded, warning
from sleuth.runs.checkpoints import remove_checkpoint, remove_state
from sleuth.runs.eval_file import write_eval
from sleuth.runs.rollouts import write_rollouts
from sleuth.runs.run_folder import RunFolder
from sleuth.types import SleuthError

Recipes = Callable[..., Recipe]


def save(folder: RunFolder, step: int) -> None:
    place = folder.checkpoints / f"step-{step:06d}"
    with recorded(place), replacing_folder(place) as partial:
        (partial / "state").mkdir()
        for name in ("model.safetensors", "state/state.pt"):
            (partial / name).write_text(f"{name} {step} {folder.recipe.seed}")
        write_checksums(partial)


def session(path: Path, recipes: Recipes, *, first: int = 1, last: int = 3) -> None:
    """A session that writes, rewrites and removes every kind of file."""
    recipe = recipes("seed=7")
    with RunFolder.open(path, recipe) as folder:
        folder.metrics.rewind("grpo", first - 1)
        write_eval(folder.eval / "base.json", {"name": "base", "em": 0.5, "session": first})
        for step in range(first, last + 1):
            write_rollouts(folder.rollouts / f"step-{step:06d}.parquet", [], [])
            folder.write_metrics("grpo", step, {"reward_mean": step / 10})
            save(folder, step)
            if step > first + 1:
                remove_checkpoint(folder.checkpoints / f"step-{step - 2:06d}")
        remove_state(folder.checkpoints / f"step-{last - 1:06d}")
        with folder.costing("grpo", "total"):
            pass


@pytest.fixture
def folder(tmp_path: Path, recipes: Recipes) -> Path:
    session(tmp_path / "run", recipes)
    return tmp_path / "run"


def killed_at(moment: int, work: Callable[[], None]) -> bool:
    """Does the work in a fork that is killed at this event of its file system; whether it was."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    seen = 0

    def event(name: str = "os.rename", _: object = None) -> None:
        nonlocal seen
        seen += name in ("os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree", "fcntl.flock")
        if seen > moment:
            os._exit(9)

    append = chain._append

    def before_and_after(*arguments: object, **options: object) -> None:
        append(*arguments, **options)  # type: ignore[arg-type]
        event()

    chain._append = before_and_after
    sys.addaudithook(event)
    try:
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)


@pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_a_folder_is_whole_after_a_kill_at_any_moment_and_goes_on(
    tmp_path: Path, recipes: Recipes, folder: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # for crashes of the machine; a kill loses nothing
    begun = str(tmp_path / "begun")
    shutil.copytree(folder, begun)
    for start, first in ((None, 1), (begun, 3)):
        moments = 0
        while True:
            run = tmp_path / "killed"
            shutil.rmtree(run, ignore_errors=True)
            if start:
                shutil.copytree(start, run)
            if not killed_at(moments, partial(session, run, recipes, first=first, last=first + 2)):
                break
            if (run / CHAIN).exists():
                assert check(run).line(run) is None, moments
            session(run, recipes, first=first, last=first + 2)
            assert warning(run) is None, moments
            moments += every
        assert moments > 60
        assert warning(run) is None


def test_a_folder_without_a_chain_is_accepted_with_one_line_and_gets_one(
    folder: Path, recipes: Recipes, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / CHAIN).unlink()
    assert "has no chain.jsonl, as runs of earlier versions" in (warning(folder) or "")
    RunFolder.open(folder, recipes("seed=7")).close()
    assert capsys.readouterr().err.count("has no chain.jsonl: its files are accepted as they are") == 1
    assert warning(folder) is None
    run = json.loads((folder / CHAIN).read_text().splitlines()[0])["run"]
    assert run == json.loads((folder / "manifest.json").read_text())["run"]


def test_what_sleuth_eval_writes_into_a_run_is_of_the_run(folder: Path) -> None:
    write_eval(folder / "eval" / "later.json", {"name": "later"})
    assert warning(folder) is None
    write_text(folder / "eval" / "foreign.json", "{}")
    assert "eval/foreign.json is not of this run: chain.jsonl does not name it" in (warning(folder) or "")


def test_rows_that_a_crash_of_the_machine_lost_or_left_are_said_and_computed_again(
    folder: Path, recipes: Recipes, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunFolder.open(folder, recipes("seed=7")) as run:
        for step in (4, 5, 6):
            run.write_metrics("grpo", step, {"loss": 1.0})
    capsys.readouterr()
    metrics = folder / "metrics.jsonl"
    rows = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(rows[:-2]))
    RunFolder.open(folder, recipes("seed=7")).close()
    assert "metrics.jsonl lacks 2 rows after the last save" in capsys.readouterr().err
    metrics.write_text("".join(rows))
    RunFolder.open(folder, recipes("seed=7")).close()
    assert "metrics.jsonl has 2 rows at its end that the run did not write" in capsys.readouterr().err
    assert metrics.read_text() == "".join(rows[:-2])
    assert warning(folder) is None
    metrics.write_text("".join(rows[:2]))  # before the last save, so not by a crash
    with pytest.raises(SleuthError, match=r"metrics\.jsonl is not what the run wrote"):
        RunFolder.open(folder, recipes("seed=7"))


def test_a_changed_row_is_named_by_its_line(folder: Path) -> None:
    metrics = folder / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("0.2", "0.9"))
    assert "metrics.jsonl is not what the run wrote: line 2 or one before it was changed" in (warning(folder) or "")


def test_a_refused_run_is_accepted_once_its_chain_is_removed(folder: Path, recipes: Recipes) -> None:
    write_text(folder / "eval" / "base.json", '{"em": 1.0}')
    with pytest.raises(SleuthError, match=r"base\.json is not what the run wrote.* remove chain\.jsonl") as refused:
        RunFolder.open(folder, recipes("seed=7"))
    assert "\n" not in str(refused.value)
    (folder / CHAIN).unlink()
    RunFolder.open(folder, recipes("seed=7")).close()
    assert warning(folder) is None
