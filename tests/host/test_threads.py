"""The number of threads of a process, and how long they spin: beside other processes, and in a resumed run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from verb import sleuth

from sleuth.cli.pipeline import run_recipe
from sleuth.host import threads
from sleuth.host.threads import (
    ProcessThreads,
    Watch,
    choose_threads,
    free_cores,
    machine_time,
    usable_cores,
)
from sleuth.recipe import load_recipe
from sleuth.runs.chain import CHAIN
from sleuth.runs.run_folder import RunFolder
from sleuth.types import SleuthError

LARGE = 10**9
needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts the threads of a Linux process")


@pytest.fixture
def no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


def free_of(monkeypatch: pytest.MonkeyPatch, cores: int, *obtained: float) -> int:
    """`free_cores` on a machine of `cores`, of which the probes get `obtained`."""
    found = iter(obtained)
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    monkeypatch.setattr(threads, "_cores_obtained", lambda _: next(found))
    return free_cores.__wrapped__()


def machine_of(folder: Path, files: dict[str, str]) -> Path:
    """A folder in which Linux would describe a machine."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return folder


QUOTAS = [
    ({"fs/cgroup/cpu.max": "max 100000"}, 4),
    ({"fs/cgroup/cpu.max": "250000 100000"}, 2),
    ({"fs/cgroup/cpu.max": "50000 100000"}, 1),
    ({"fs/cgroup/cpu/cpu.cfs_quota_us": "300000", "fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 3),
    ({"fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 4),
    ({}, 4),
]


@pytest.mark.parametrize(("files", "cores"), QUOTAS)
def test_a_container_has_the_cores_of_its_quota(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert usable_cores(machine_of(tmp_path, files)) == cores


def test_two_hardware_threads_are_one_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    siblings = {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5", 2: "2,6"}  # the other one of core 2 is not this process's
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(siblings), raising=False)
    place = "devices/system/cpu/cpu{}/topology/thread_siblings_list"
    machine = machine_of(tmp_path, {place.format(name): pair for name, pair in siblings.items()})
    assert usable_cores(machine) == 3


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 8, 16, 64])
def test_every_busy_process_costs_one_core(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    for busy in range(cores):
        fair = cores * cores / (cores + busy)
        assert free_of(monkeypatch, cores, *[fair] * 3) == cores - busy


@pytest.mark.parametrize(("obtained", "free"), [((1.3, 1.95), 2), ((1.3, 1.2, 1.4), 1), ((0.02, 0.1, 0.0), 1)])
def test_the_best_of_several_probes_counts_and_one_thread_is_left(
    monkeypatch: pytest.MonkeyPatch, obtained: tuple[float, ...], free: int
) -> None:
    assert free_of(monkeypatch, 2, *obtained) == free


def test_the_environment_wins_then_the_run_then_the_size_then_what_is_free(
    monkeypatch: pytest.MonkeyPatch, no_number: None
) -> None:
    monkeypatch.setattr(threads, "free_cores", lambda: 3)
    assert choose_threads(LARGE).number == 3
    assert choose_threads(200_000).number == 2
    assert choose_threads(1_000).number == 1
    assert choose_threads(LARGE, recorded=7).number == 7
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")
    assert choose_threads(LARGE, recorded=7).number == 5
    assert choose_threads(LARGE, recorded=7).reason == "OMP_NUM_THREADS is set, and the run began with 7"
    assert choose_threads(LARGE, recorded=5).reason == choose_threads(LARGE).reason == "OMP_NUM_THREADS is set"


def test_ranks_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch, no_number: None) -> None:
    monkeypatch.setattr(threads, "free_cores", lambda: 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert choose_threads(LARGE).number == 2


@pytest.mark.parametrize("value", ["two", "0", "-1", "1.5", "²"])
def test_an_invalid_number_of_threads_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    done = sleuth("report", "nowhere")
    assert done.exit_code == 2
    assert done.output == f"error: OMP_NUM_THREADS={value}: not a number of threads; set 1 or more, or leave it unset\n"


def test_spinning_is_limited_unless_the_user_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in threads.SPIN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert threads.waiting_variables() == threads.SPIN
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert threads.waiting_variables() == {}


def test_a_process_decides_once_and_logs_one_line(monkeypatch: pytest.MonkeyPatch, no_number: None) -> None:
    monkeypatch.setattr(threads, "free_cores", lambda: 1)
    monkeypatch.setattr(Watch, "start", lambda self: None)
    process, said = ProcessThreads(), []
    process.begin(None, said.append)
    before = torch.get_num_threads()
    try:
        assert process.fit(LARGE) is process.fit(1)
        assert torch.get_num_threads() == 1
        process.begin(2, said.append)
        assert process.fit(LARGE).number == torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert said[0].startswith("computing with 1 thread: 1 of ")
    assert said[1] == "computing with 2 threads: as when the run began"


@needs_proc
def test_a_busy_process_is_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        try:
            before = machine_time()
            time.sleep(1.0)
            now = machine_time()
        finally:
            neighbour.kill()
    assert before is not None
    assert now is not None
    assert now.used_by_others(before) > 0.2


@needs_proc
def test_spinning_stops_while_others_use_the_cores_and_resumes_after() -> None:
    cores = os.cpu_count() or 1
    watch = Watch(max(2, cores))
    missing = max(2, cores) - cores
    counts = [_tasks()]
    for others in (0.0, 1.0, 0.2, 0.0):  # 0.2: too little to stop, and enough not to resume
        watch.follow(others - missing)
        counts.append(_tasks())
    none, quiet, crowded, still, over = counts
    assert none == quiet
    assert crowded > none
    assert still == crowded
    assert over < still


def _tasks() -> int:
    time.sleep(0.1)
    return len(os.listdir("/proc/self/task"))


@pytest.mark.parametrize(
    ("cores", "number", "others", "lent"),
    [(2, 2, 0.0, 0), (2, 2, 1.0, 1), (2, 2, 5.0, 1), (8, 8, 1.4, 2), (8, 4, 2.0, 0)],
)
def test_threads_without_a_core_are_lent(
    monkeypatch: pytest.MonkeyPatch, cores: int, number: int, others: float, lent: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(threads, "IdleTeam", lambda _: None)
    watch = Watch(number)
    watch.follow(others)
    assert watch.lent == lent


@needs_proc
def test_waiting_threads_sleep_beside_another_team() -> None:
    """Two threads that wait 2 ms for each next loop: how much processor time their spinning takes."""
    script = """
import time
from sleuth.host.threads import IdleTeam, prepare_waiting
prepare_waiting()
import torch
torch.set_num_threads(2)
numbers = torch.zeros(2**18)
def spent():
    before = time.process_time()
    for _ in range(150):
        numbers.add_(1)
        time.sleep(0.002)
    return time.process_time() - before
spent()
alone = spent()
team = IdleTeam(2)
time.sleep(0.2)
print(alone, spent())
"""
    environment = {name: value for name, value in os.environ.items() if name not in threads.SPIN_VARIABLES}
    environment.pop("OMP_NUM_THREADS", None)
    if (os.cpu_count() or 1) > 2:
        environment["OMP_THREAD_LIMIT"] = "64"
        script = f"import os; os.sched_setaffinity(0, {set(sorted(os.sched_getaffinity(0))[:2])})\n" + script
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    alone, beside = map(float, done.stdout.split())
    assert beside < alone / 2


RUN = """
name = "short"
model = "{model}"

[[stage]]
kind = "evaluate"
name = "base"
data = {{ questions = "{world}/qa_test.jsonl", limit = 2 }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", index = "{world}/index" }}
context = 400
"""


def test_a_resumed_run_keeps_its_number_of_threads(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "short.toml"
    file.write_text(RUN.format(model=Path(__file__).parents[2] / "models" / "tiny-base", world=world))
    recipe, place, before = load_recipe(file), tmp_path / "run", torch.get_num_threads()

    def run(*, exact: bool = False) -> str:
        with RunFolder.open(place, recipe) as folder:
            run_recipe(recipe, folder, exact=exact)
        return capsys.readouterr().err

    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        run()
        assert json.loads((place / "manifest.json").read_text())["threads"] == 2
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert "computing with 2 threads: as when the run began" in run()
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert "began with 2 threads and continues with 1" in run()
        with pytest.raises(SleuthError, match="--exact: the run began with 2 threads and continues with 1; set OMP_NU"):
            run(exact=True)
        manifest = json.loads((place / "manifest.json").read_text())
        manifest["versions"]["torch"] = "1.0"
        (place / "manifest.json").write_text(json.dumps(manifest))
        (place / CHAIN).unlink()
        with pytest.raises(SleuthError, match=r"--exact: the run began with torch 1\.0 and is .* now"):
            run(exact=True)
    finally:
        torch.set_num_threads(before)
