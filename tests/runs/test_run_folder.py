from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import line_of

from sleuth.recipe import Recipe, load_recipe
from sleuth.runs.manifest import identity, recipe_hash
from sleuth.runs.run_folder import LOCKS, MAX_WAITING, Backlog, RunFolder, is_held
from sleuth.types import SleuthError

Recipes = Callable[..., Recipe]


def message(path: Path, recipe: Recipe) -> str:
    return line_of(RunFolder.open, path, recipe)


def begin(path: Path, recipe: Recipe) -> None:
    """A run with its first result."""
    with RunFolder.open(path, recipe) as run:
        run.metrics.append("grpo", 1, {"reward_mean": 0.5})


def fail(path: Path, recipe: Recipe, work: Callable[[RunFolder], object]) -> None:
    """A run that ends with an error after this work."""

    def start() -> None:
        with RunFolder.open(path, recipe) as run:
            work(run)
            raise SleuthError("no such model")

    with pytest.raises(SleuthError, match="no such model"):
        start()


def test_a_new_run_holds_its_resolved_recipe_and_its_manifest(tmp_path: Path, recipes: Recipes) -> None:
    recipe = recipes("stage.0.steps=50")
    with RunFolder.open(tmp_path / "runs/demo", recipe) as run:
        manifest = run.manifest.read()
        assert load_recipe(run.path / "recipe.toml") == recipe
        assert all(folder.is_dir() for folder in (run.rollouts, run.eval, run.checkpoints))
    assert manifest["seed"] == 5
    assert {"python", "torch", "transformers", "sleuth"} <= manifest["versions"].keys()
    assert manifest["hashes"] == {"recipe": recipe_hash(recipe)}
    assert manifest["recipe"]["set"] == ["stage.0.steps=50"]
    assert manifest["continued"] == []


def test_the_same_recipe_continues_the_run_and_the_manifest_says_so(tmp_path: Path, recipes: Recipes) -> None:
    with RunFolder.open(tmp_path / "run", recipes()) as run:
        run.metrics.append("grpo", 1, {"reward_mean": 0.5})
        run.manifest.add_hashes(corpus="ab")
        started = run.manifest.read()["started"]
    with RunFolder.open(tmp_path / "run", recipes()) as run:
        assert run.metrics.rows() == [{"stage": "grpo", "step": 1, "reward_mean": 0.5}]
        manifest = run.manifest.read()
    assert manifest["started"] == started
    assert manifest["hashes"]["corpus"] == "ab"
    assert len(manifest["continued"]) == 1


def test_a_run_of_before_goes_on_though_its_recipe_has_older_keys(tmp_path: Path, recipes: Recipes) -> None:
    recipe = recipes("stage.0.loss.old_logprobs=learner", 'stage.0.credit={kind="search_gain", penalty=0.5}')
    RunFolder.open(tmp_path / "run", recipe).close()
    file = tmp_path / "run/recipe.toml"
    before = file.read_text().replace("old_logprobs =", "old =").replace("penalty =", "charges =")
    assert "old = " in before
    assert "charges = " in before
    file.write_text(before)
    with RunFolder.open(tmp_path / "run", recipe) as run:
        assert load_recipe(run.path / "recipe.toml") == recipe


def test_stop_after_may_change_and_the_resolved_recipe_follows(tmp_path: Path, recipes: Recipes) -> None:
    RunFolder.open(tmp_path / "run", recipes("stage.0.stop_after=3")).close()
    RunFolder.open(tmp_path / "run", recipes("stage.0.stop_after=9")).close()
    assert load_recipe(tmp_path / "run/recipe.toml").stage[0].stop_after == 9  # type: ignore[union-attr]
    RunFolder.open(tmp_path / "run", recipes()).close()


def test_another_recipe_is_refused_with_the_first_key_that_differs(tmp_path: Path, recipes: Recipes) -> None:
    begin(tmp_path / "run", recipes())
    text = message(tmp_path / "run", recipes("stage.0.steps=50", "stage.0.context=64"))
    assert text.startswith(f"{tmp_path / 'run'}: holds another run: stage.0.steps is 100 there, 50 here")


def test_a_refused_recipe_leaves_the_run_as_it_was_and_free(tmp_path: Path, recipes: Recipes) -> None:
    begin(tmp_path / "run", recipes())
    before = (tmp_path / "run/recipe.toml").read_bytes()
    message(tmp_path / "run", recipes("seed=6"))
    assert (tmp_path / "run/recipe.toml").read_bytes() == before
    RunFolder.open(tmp_path / "run", recipes()).close()


def test_a_start_that_fails_leaves_nothing(tmp_path: Path, recipes: Recipes) -> None:
    fail(tmp_path / "runs/a", recipes(), lambda run: run.say("a line of the log"))
    assert not (tmp_path / "runs").exists()


def test_a_start_that_fails_in_an_empty_folder_of_the_user_leaves_that(tmp_path: Path, recipes: Recipes) -> None:
    (tmp_path / "mine").mkdir()
    fail(tmp_path / "mine", recipes(), lambda run: None)
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_run_that_fails_after_its_first_result_keeps_everything(tmp_path: Path, recipes: Recipes) -> None:
    fail(tmp_path / "run", recipes(), lambda run: (run.eval / "base.json").write_text("{}"))
    assert (tmp_path / "run/eval/base.json").exists()
    assert load_recipe(tmp_path / "run/recipe.toml") == recipes()
    assert "holds another run" in message(tmp_path / "run", recipes("seed=6"))


def test_a_start_that_fails_keeps_verdicts_that_were_paid_for(tmp_path: Path, recipes: Recipes) -> None:
    fail(tmp_path / "run", recipes(), lambda run: run.verdicts.write_bytes(b"paid for"))
    assert (tmp_path / "run/verdicts.sqlite").read_bytes() == b"paid for"
    RunFolder.open(tmp_path / "run", recipes("seed=6")).close()


def test_a_start_that_was_killed_does_not_refuse_another_recipe(tmp_path: Path, recipes: Recipes) -> None:
    with RunFolder.open(tmp_path / "run", recipes()) as run:  # `close` leaves what a kill leaves
        run.shortages.note("grpo", 4096)
        run.manifest.record("threads", 3)
    with RunFolder.open(tmp_path / "run", recipes()) as run:
        assert run.shortages.fitting("grpo", 8192) == 2048, "the same recipe keeps what it learned"
        assert run.manifest.read()["threads"] == 3
    with RunFolder.open(tmp_path / "run", recipes("seed=6")) as run:
        manifest = run.manifest.read()
        assert run.shortages.fitting("grpo", 8192) == 8192
    assert load_recipe(tmp_path / "run/recipe.toml").seed == manifest["seed"] == 6
    assert manifest["hashes"] == {"recipe": recipe_hash(recipes("seed=6"))}
    assert "threads" not in manifest


def test_a_folder_with_other_things_is_no_place_for_a_run(tmp_path: Path, recipes: Recipes) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.tex").write_text("dear", encoding="utf-8")
    assert "holds no run but 'chapter.tex'" in message(tmp_path / "thesis", recipes())
    assert [place.name for place in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]


def test_a_run_that_died_before_its_recipe_was_written_begins_anew(tmp_path: Path, recipes: Recipes) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/lock").write_text("pid 1\n", encoding="utf-8")
    (tmp_path / "run/recipe.toml.partial").write_text('name = "de', encoding="utf-8")
    RunFolder.open(tmp_path / "run", recipes()).close()
    assert load_recipe(tmp_path / "run/recipe.toml") == recipes()


def test_the_lock_of_a_killed_process_is_taken_over_and_a_living_one_is_named(tmp_path: Path, recipes: Recipes) -> None:
    (tmp_path / "run").mkdir()
    program = (
        "import pathlib, time\nfrom sleuth.runs.run_folder import RunLock\n"
        f"lock = RunLock(pathlib.Path({str(tmp_path / 'run')!r}))\nprint('held', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert f"pid {other.pid}" in message(tmp_path / "run", recipes())
        other.kill()
    RunFolder.open(tmp_path / "run", recipes()).close()


@pytest.mark.skipif(not LOCKS.exists(), reason="this system does not list its locks")
def test_whether_a_process_writes_a_run_is_known_without_taking_its_lock(tmp_path: Path, recipes: Recipes) -> None:
    folder = tmp_path / "run"
    assert is_held(folder) is None
    with RunFolder.open(folder, recipes()):
        assert is_held(folder) is True
    assert is_held(folder) is False
    (folder / "lock").write_text(f"pid {os.getpid()} on another-machine\n", encoding="utf-8")
    assert is_held(folder) is None


def test_log_lines_are_kept_with_their_time(tmp_path: Path, recipes: Recipes) -> None:
    for line in ("began", "went on"):
        with RunFolder.open(tmp_path / "run", recipes()) as run:
            run.say(line)
    lines = (tmp_path / "run/log.txt").read_text(encoding="utf-8").splitlines()
    assert [line[21:] for line in lines] == ["began", "went on"]


def test_a_run_may_go_on_with_other_trackers(tmp_path: Path, recipes: Recipes) -> None:
    assert identity(recipes()) == identity(recipes('trackers=["tensorboard"]'))


def test_a_run_may_go_on_with_its_shards_elsewhere(tmp_path: Path, recipes: Recipes) -> None:
    assert identity(recipes()) == identity(recipes("stage.0.cpu_offload=true"))


def test_a_run_may_go_on_with_its_judge_elsewhere_and_not_with_another_judge(tmp_path: Path, recipes: Recipes) -> None:
    def judged(url: str, model: str = "m", seconds: int = 60) -> Recipe:
        judge = f"{{kind='http', urls=['{url}'], model='{model}', seconds={seconds}.0}}"
        return recipes(f"stage.0.reward=[{{kind='citation', judge={judge}}}]")

    begin(tmp_path / "run", judged("http://127.0.0.1:8000"))
    RunFolder.open(tmp_path / "run", judged("http://10.0.0.2:9000", seconds=5)).close()
    assert "reward.0.judge.model is 'm' there, 'n' here" in message(
        tmp_path / "run", judged("http://127.0.0.1:8000", model="n")
    )


class Disk:
    """A disk that is full or not, and what was written to it."""

    def __init__(self) -> None:
        self.full = False
        self.written: list[int] = []

    def write(self, number: int) -> Callable[[], None]:
        def action() -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.written.append(number)

        return action


def test_what_finds_no_room_waits_and_is_written_in_order_when_there_is_room() -> None:
    disk, said = Disk(), []
    backlog = Backlog(said.append)
    for number in range(6):
        disk.full = 2 <= number < 5
        backlog.write(f"row {number}", disk.write(number))
    assert disk.written == [0, 1, 2, 3, 4, 5]
    assert said == [
        "no room on the disk for row 2: it waits, and the run goes on",
        "there is room on the disk again: all waiting files are written",
    ]


def test_a_disk_that_stays_full_ends_the_run_in_one_line() -> None:
    disk = Disk()
    disk.full = True
    backlog = Backlog(lambda line: None)
    for number in range(MAX_WAITING):
        backlog.write(f"row {number}", disk.write(number))
    with pytest.raises(SleuthError, match="the first of them row 0; make room"):
        backlog.write("row", disk.write(MAX_WAITING))
