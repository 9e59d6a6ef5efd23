"""A run that is killed and started again is the run that was never killed, whenever the kill comes."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from emulator.served import EmulatedServer
from forked import ForkedSleuth
from run_files import bytes_of, figures, groups, written
from small_stages import engine

from sleuth.training.rollout_worker import lag_counts

RHYTHM = ("stage.1.save_every=1", "stage.1.keep=1", "stage.1.milestone_every=2", "stage.1.steps=4")
BRIEF = ("stage.0.data.limit=1", "stage.2.data.limit=1", "stage.1.probe_prompts=0")


@contextmanager
def training(recipe: Path, folder: Path, *overrides: str) -> Iterator[ForkedSleuth]:
    """`sleuth train` in a process of its own, which writes its errors beside the folder."""
    options = [option for override in (*RHYTHM, *BRIEF, *overrides) for option in ("--set", override)]
    with open(os.devnull, "r+") as nothing, errors_of(folder).open("w") as errors:
        streams = [stream.fileno() for stream in (nothing, nothing, errors)]
        with ForkedSleuth("train", str(recipe), "--run", str(folder), *options, streams=streams) as process:
            yield process


def errors_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.errors")


def finish(recipe: Path, folder: Path, *overrides: str) -> float:
    """The seconds that a run took after it had opened its folder."""
    with training(recipe, folder, *overrides) as process:
        wait_for_folder(process, folder)
        began = time.monotonic()
        assert process.wait(timeout=300) == 0, errors_of(folder).read_text()
        return time.monotonic() - began


def wait_for_folder(process: ForkedSleuth, folder: Path) -> None:
    while process.poll() is None and not (folder / "manifest.json").exists():
        time.sleep(0.01)


def kill_after(seconds: float, recipe: Path, folder: Path) -> bool:
    """Kill the run so long after it has opened its folder; whether it was still running."""
    with training(recipe, folder) as process:
        wait_for_folder(process, folder)
        time.sleep(seconds)
        running = process.poll() is None
        process.send_signal(signal.SIGKILL)
        return running


def outcome(folder: Path) -> tuple[dict[str, bytes], list[dict[str, object]], list[str], dict[str, bytes]]:
    """All that must be the same: every weight and state, the figures but for seconds, the names, the rollouts."""
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted((folder / "checkpoints").rglob("*"))
        if path.name == "protocol.json"
    }
    return files, figures(folder), written(folder), bytes_of(folder)


def survives(kills: int, recipe: Path, place: Path, seed: int) -> None:
    lasted = finish(recipe, place / "whole")
    expected = outcome(place / "whole")
    draw = random.Random(seed)
    interrupted = 0
    for number in range(kills):
        folder = place / f"killed-{number}"
        moment = draw.uniform(0, lasted)
        while not kill_after(moment, recipe, folder):  # it was through before; the machine is quicker than it was
            moment, folder = draw.uniform(0, moment), folder.with_name(folder.name + "-again")
        interrupted += 1
        finish(recipe, folder)
        assert outcome(folder) == expected, f"killed after {moment:.2f} seconds"
    assert interrupted == kills


@pytest.mark.sentinel
def test_a_run_killed_once_is_the_run_that_was_never_killed(recipe_file, tmp_path):
    survives(1, recipe_file, tmp_path, seed=0)


@pytest.mark.slow
def test_a_run_killed_at_any_of_fifty_moments_is_the_run_that_was_never_killed(recipe_file, tmp_path):
    survives(50, recipe_file, tmp_path, seed=1)


LAG = 2


def require_every_episode_once(folder: Path, expected: list[list[str]]) -> None:
    """Each step has the questions that it would have without a lag and a kill, all siblings, and no older weights."""
    steps = [groups(folder, step) for step in range(1, 5)]
    assert [[group.task.id for group in step] for step in steps] == expected
    assert [row["step"] for row in figures(folder) if row["stage"] == "grpo"] == [1, 2, 3, 4]
    for step, played in enumerate(steps, start=1):
        assert all([episode.sample for episode in group.episodes] == list(range(8)) for group in played)
        lag_counts(played, step - 1, max_policy_lag=LAG)


def survives_with_its_servers(kills: int, recipe: Path, place: Path, servers: list[EmulatedServer], seed: int) -> None:
    """The trainer is killed so many times. Before each kill a server restarts without its weights, and the file that
    names the servers changes: each time some of them leave and others join."""
    finish(recipe, place / "waits")
    expected = [[group.task.id for group in groups(place / "waits", step)] for step in range(1, 5)]
    file, draw, number = place / "servers.txt", random.Random(seed), 0

    def change() -> None:
        for server in draw.sample(servers, draw.randint(1, len(servers))):
            server.fault(forget=0.2)
        named = draw.sample(servers, draw.randint(1, len(servers)))
        file.write_text("".join(f"{server.url}\n" for server in named))

    for server in servers:
        server.fault(token_seconds=0.01, tail=1.0)
    file.write_text("\n".join(server.url for server in servers))
    ahead = engine(urls=[f"file:{file}"], max_policy_lag=LAG)
    lasted = finish(recipe, place / "whole", ahead)
    require_every_episode_once(place / "whole", expected)
    while kills:
        folder = place / f"killed-{number}"
        with training(recipe, folder, ahead) as process:
            wait_for_folder(process, folder)
            for _ in range(2):
                time.sleep(draw.uniform(0, lasted / 2))
                if process.poll() is None:
                    change()
            if process.poll() in (1, 2) and "engine.urls" in errors_of(folder).read_text():
                continue  # the servers restarted while the run asked what they can do
            if process.poll() is not None:
                assert process.poll() == 0, errors_of(folder).read_text()
                require_every_episode_once(folder, expected)
                number += 1
                continue
            process.send_signal(signal.SIGKILL)
            kills -= 1
    finish(recipe, folder, ahead)
    require_every_episode_once(folder, expected)


@pytest.mark.long
def test_episodes_that_lag_are_neither_lost_nor_trained_twice_when_trainer_and_servers_are_killed(
    recipe_file, tmp_path, servers
):
    survives_with_its_servers(1, recipe_file, tmp_path, servers("vllm"), seed=0)


@pytest.mark.slow
def test_episodes_that_lag_are_neither_lost_nor_trained_twice_over_forty_kills(recipe_file, tmp_path, servers):
    survives_with_its_servers(40, recipe_file, tmp_path, servers("sglang", "vllm"), seed=1)
