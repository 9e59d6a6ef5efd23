"""GRPO with a pool of servers: the same run, whoever writes its episodes."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from emulator.served import EmulatedServer, repeat_within_rounding
from run_files import figures as untimed
from run_files import groups, log, manifest, rows
from small_stages import engine, through

from sleuth.engines.remote import pool as pool_module
from sleuth.training import engines
from sleuth.training.engines import retried
from sleuth.types import SleuthError


@pytest.fixture
def pair(servers) -> list[EmulatedServer]:
    return servers("vllm", "sglang")


SHORT = ("stage.0.data.limit=1", "stage.1.env.turn_tokens=10", "stage.2.data.limit=1")


@pytest.mark.sentinel
def test_a_pool_of_both_servers_trains_as_the_engine_in_this_process_would(run, recipe_file, tmp_path, pair):
    run(recipe_file, tmp_path / "run", through(pair), SHORT[0], "stage.1.prompts_per_step=2", SHORT[2])
    figures = rows(tmp_path / "run")
    assert [row["step"] for row in figures] == [1, 2, 3, 4]
    assert [row["turns_redrawn"] + row["servers_reloaded"] for row in figures] == [0, 0, 0, 0]
    assert all(row["seconds_client"] > 0 for row in figures)
    assert max(abs(row["sampler_learner_kl"]) for row in figures if row["loss"] is not None) < 1e-8
    played = groups(tmp_path / "run", 3)
    written = [s for g in played for e in g.episodes for s in e.trajectory.segments if s.author == "policy"]
    assert {segment.policy_version for segment in written} == {2}
    assert all(server.fault() > 30 for server in pair)
    kept = [(server["kind"], server["logprobs"]) for server in manifest(tmp_path / "run")["pools"]["grpo"]]
    assert kept == [("vLLM", "before temperature"), ("SGLang", "after temperature")]
    assert len(list((tmp_path / "run" / "weights").iterdir())) == 2


def test_no_episode_is_lost_or_counted_twice_while_servers_fail_and_forget(run, recipe_file, tmp_path, pair):
    stop = threading.Event()

    def trouble() -> None:
        """After the first step each server is started anew after every 50 turns, however fast the machine is."""
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not stop.wait(0.1) and not (metrics.exists() and metrics.read_text()):
            pass
        seen = [server.fault(error_every=11) for server in pair]
        while not stop.wait(0.1):
            for at, server in enumerate(pair):
                if server.fault() >= seen[at] + 50:
                    seen[at] = server.fault(forget=0.3)

    troubling = threading.Thread(target=trouble)
    troubling.start()
    try:
        run(recipe_file, tmp_path / "run", through(pair), *SHORT)
    finally:
        stop.set()
        troubling.join()
    figures = rows(tmp_path / "run")
    assert sum(row["turns_redrawn"] + row["servers_reloaded"] for row in figures) > 0
    for step, row in enumerate(figures, start=1):
        played = [[episode.sample for episode in group.episodes] for group in groups(tmp_path / "run", step)]
        assert played == [list(range(8))] * 4
        assert row["loss"] is None or abs(row["sampler_learner_kl"]) < 1e-8


def test_a_server_that_is_being_restarted_does_not_end_the_evaluation_after_training(monkeypatch):
    said: list[str] = []
    answers = iter([SleuthError("does not answer"), SleuthError("does not answer"), "the pool"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, SleuthError):
            raise answer
        return answer

    monkeypatch.setattr(engines, "RETRY_PAUSE", 0.01)
    assert retried(ask, 5.0, said.append) == "the pool"
    assert said == ["does not answer; asking again for 5 seconds"]
    answers = iter([SleuthError("does not answer"), SleuthError("still not"), "the pool"])
    monkeypatch.setattr(engines, "SAID_SECONDS", 0.0)  # in place of a minute
    assert retried(ask, 5.0, said.append) == "the pool"
    assert said[2:] == ["still not; asking again for 5 seconds"]
    answers = iter([SleuthError("does not answer")])
    with pytest.raises(SleuthError, match="does not answer"):  # of a server that no stage has used yet
        retried(ask, 0.0, said.append)


def test_servers_that_share_the_card_sleep_while_the_learner_computes(run, recipe_file, tmp_path, pair):
    slept: list[frozenset[str]] = []
    for server in pair:
        lose = server.engine.sleep

        async def watched(*parts: str, lose=lose, **how: bool) -> None:
            slept.append(frozenset(parts))
            await lose(*parts, **how)

        server.engine.sleep = watched
    run(recipe_file, tmp_path / "run", through(pair, sleeps=True), "stage.1.stop_after=2", SHORT[0], SHORT[2])
    assert slept == [frozenset({"weights", "kv_cache"})] * 4
    assert all(row["loss"] is None or abs(row["sampler_learner_kl"]) < 1e-8 for row in rows(tmp_path / "run"))


@pytest.mark.slow
def test_a_run_goes_on_with_its_pool_or_without(run, recipe_file, tmp_path, pair):
    run(recipe_file, tmp_path / "run", through(pair), "stage.1.stop_after=2")
    pair[0].fault(forget=0)
    run(recipe_file, tmp_path / "run", through(pair[:1]), "stage.1.stop_after=3")
    run(recipe_file, tmp_path / "run")
    assert [row["step"] for row in rows(tmp_path / "run")] == [1, 2, 3, 4]


def test_a_pool_that_cannot_be_used_is_one_line_before_the_first_step(run, recipe_file, tmp_path, pair):
    started = time.monotonic()
    with pytest.raises(SleuthError, match=r"engine.urls: http://127.0.0.1:9: does not answer"):
        run(recipe_file, tmp_path / "nobody", engine(urls=["http://127.0.0.1:9"]))
    with pytest.raises(SleuthError, match=r"takes 512 tokens, and context = 600; start it with a longer context"):
        run(recipe_file, tmp_path / "short", through(pair), "stage.1.context=600")
    with pytest.raises(SleuthError, match=r"before temperature, and sampling.temperature = 0.7; start vLLM with"):
        run(recipe_file, tmp_path / "raw", through(pair), "stage.1.sampling.temperature=0.7")
    assert time.monotonic() - started < 120
    assert not (tmp_path / "nobody" / "metrics.jsonl").exists()


@pytest.mark.long
def test_servers_of_a_file_join_and_leave_during_a_run_which_plays_the_episodes_that_one_server_would(
    run, recipe_file, tmp_path, servers, monkeypatch
):
    monkeypatch.setattr(pool_module, "WATCH_SECONDS", 0.05)
    first, second, third = servers("vllm", "vllm", "sglang", token_seconds=0.02)
    repeat_within_rounding([first, second, third])
    file, brief = tmp_path / "servers.txt", (SHORT[0], "stage.1.steps=6", "stage.1.prompts_per_step=2", SHORT[2])
    run(recipe_file, tmp_path / "fixed", through([first]), *brief)
    file.write_text(f"{first.url}\nhttp://127.0.0.1:9  # not there yet\n")
    over = threading.Event()

    def change() -> None:
        """After the first step there is another server, after the second a third one in place of the first."""
        for step, listed in enumerate(([first, second], [second, third]), 1):
            while len(lines(tmp_path / "run" / "metrics.jsonl")) < step and not over.wait(0.05):
                pass
            file.write_text("\n".join(server.url for server in listed))

    changing = threading.Thread(target=change)
    changing.start()
    try:
        run(recipe_file, tmp_path / "run", engine(urls=[f"file:{file}"]), *brief)
    finally:
        over.set()
        changing.join()
    assert untimed(tmp_path / "run") == untimed(tmp_path / "fixed")
    assert [groups(tmp_path / "run", step) for step in range(1, 7)] == [
        groups(tmp_path / "fixed", step) for step in range(1, 7)
    ]
    assert any(row["loss"] is not None for row in rows(tmp_path / "run"))
    said = log(tmp_path / "run").partition("grpo 6/6")[0]
    assert "pool: http://127.0.0.1:9: does not answer" in said
    assert f"pool: {first.url} has left; servers: " in said
    for server in (second, third):
        assert f"pool: {server.url} has joined" in said
        assert server.fault() > 0


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_a_file_without_a_server_that_can_be_used_is_one_line_before_the_first_step(run, recipe_file, tmp_path):
    file = tmp_path / "servers.txt"
    with pytest.raises(SleuthError, match=r"servers.txt: No such file or directory"):
        run(recipe_file, tmp_path / "missing", engine(urls=[f"file:{file}"]))
    file.write_text("http://127.0.0.1:9\n")
    with pytest.raises(SleuthError, match=r"http://127.0.0.1:9: does not answer"):
        run(recipe_file, tmp_path / "away", engine(urls=[f"file:{file}"]))
