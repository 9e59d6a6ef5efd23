"""Ranks that train with a pool of servers: the run of one process, whoever asks which server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from emulator.served import EmulatedServer, repeat_within_rounding
from pools import Pools, asked, require_same_turns
from processes import on_ranks
from run_files import figures, groups
from runs_on_ranks import run_on
from small_stages import through
from test_stages_on_ranks import assert_same_run

from benchmarks.pooled_ranks import gradients
from sleuth.engines.remote.pool import PoolEngine
from sleuth.engines.remote.roster import Roster
from sleuth.engines.remote.server import discover_server
from sleuth.engines.remote.weight_sync import EngineReplica, WeightSync
from sleuth.learn.models import load_model
from sleuth.ranks import Ranks
from sleuth.recipe import load_recipe
from sleuth.recipe.grpo import PoolRecipe
from sleuth.render import find_eos_ids
from sleuth.training.engines import _open_pool
from sleuth.types import Completion

pytestmark = pytest.mark.ranks

BASE = Path(__file__).parents[3] / "models" / "tiny-base"


@pytest.mark.parametrize("lag", [0, 1])
def test_ranks_with_a_pool_are_the_run_of_one_process_with_it(recipes, servers, tmp_path, lag):
    """With `max_policy_lag = 1` too, where ranks gather episodes in one thread and gradients in another."""
    pair = servers("vllm", "sglang")
    repeat_within_rounding(pair)
    pool = through(pair, stage=0, max_policy_lag=lag)
    for ranks in (1, 2):
        run_on(ranks, recipes["grpo"], tmp_path / str(ranks), pool, f"stage.0.stop_after={2 + lag}")
    alone, shared = (figures(tmp_path / str(ranks)) for ranks in (1, 2))
    assert any(row["loss"] for row in alone), "something was learned"
    assert_same_run(shared, alone)
    for mine, other in zip(groups(tmp_path / "2"), groups(tmp_path / "1"), strict=True):
        assert [one.trajectory.tokens for one in mine.episodes] == [one.trajectory.tokens for one in other.episodes]
        versions = {s.policy_version for one in mine.episodes for s in one.trajectory.segments if s.author == "policy"}
        assert len(versions) == 1
    if not lag:
        assert max(abs(row["sampler_learner_kl"]) for row in shared if row["loss"] is not None) < 1e-8
        assert_same_gradients(tmp_path / "2", steps=2)


def assert_same_gradients(run: Path, steps: int) -> None:
    """Of recorded episodes, by one process and by two ranks."""
    one, two = (on_ranks(world, gradients, run, steps)[0] for world in (1, 2))
    assert len(one) == len(two) > 0
    for (loss, gradient), (ours, of_ranks) in zip(one, two, strict=True):
        assert ours == pytest.approx(loss, rel=1e-5, abs=1e-8)
        assert float((of_ranks - gradient).norm()) <= 1e-5 * float(gradient.norm())


@dataclass(frozen=True, kw_only=True)
class InTurn(Ranks):
    """Two ranks in one thread, of which the first one is always called first."""

    said: list[Any] = field(default_factory=list)

    def broadcast(self, work: Callable[[], Any]) -> Any:
        if self.first:
            self.said.append(work())
            return self.said[-1]
        return self.said.pop(0)


@pytest.fixture
def pools(tmp_path) -> Pools:
    model, tokenizer = load_model(str(BASE), dtype="float32", device="cpu")
    return Pools(model, tokenizer, tmp_path, lambda length, seed: [5, 6, 7, 300 + seed], context=512)


@pytest.fixture
def engines(pools) -> Callable[..., list[PoolEngine]]:
    """The pool as two ranks have it, which have published version 1."""

    def engines(servers: list[EmulatedServer], at_once: int = 16) -> list[PoolEngine]:
        ranks = [InTurn(rank=rank, world=2, said=said) for said in [list[Any]()] for rank in range(2)]
        return [pools.open(servers, requests_at_once=at_once, ranks=rank) for rank in ranks]

    return engines


def test_ranks_begin_with_different_servers_and_share_the_turns_in_flight(servers, engines, pools):
    pair = servers("vllm", "sglang")
    ranks = engines(pair, at_once=5)
    before = [server.fault() for server in pair]
    for engine, server in zip(ranks, (0, 1), strict=True):
        asked(engine, pools.sampled(groups=1, siblings=1))
        assert [server.fault() for server in pair][server] == before[server] + 1
    assert [engine._preferred[0].semaphore._value for engine in ranks] == [2, 3]


def test_a_server_that_left_and_is_refused_when_it_comes_back_is_a_member_on_no_rank(
    servers, engines, pools, monkeypatch
):
    pair = servers("vllm", "vllm")
    ranks = engines(pair)
    first, update = ranks[0], WeightSync.update
    comes_back, stays = first._replicas
    first._set_members([stays])
    first._joining = [comes_back.server]
    first._roster = Roster(lambda: [server.url for server in pair], lambda url: comes_back.server, pools.lines.append)

    async def refused(sync: WeightSync, replica: EngineReplica) -> str | None:
        return "cannot load them" if replica.url == comes_back.url else await update(sync, replica)

    monkeypatch.setattr(WeightSync, "update", refused)
    for engine in ranks:
        engine.publish(2)
        assert [replica.url for replica in engine._replicas] == [stays.url]


def test_the_first_rank_alone_reads_the_file_of_servers(servers, pools, tmp_path):
    [server] = servers("vllm")
    recipe = load_recipe(Path("recipes/refiner_4b_rubric.toml"))
    pool = PoolRecipe(urls=(f"file:{tmp_path / 'on the first machine only'}",), requests_at_once=4)
    eos_ids = find_eos_ids(pools.learner.generation_config, pools.tokenizer)
    found = [discover_server(server.url, tokenizer=pools.tokenizer, eos_ids=eos_ids)]
    second = InTurn(rank=1, world=2, said=[(server.url,), found])
    limits = {"context": 256, "temperature": 1.0, "weights": tmp_path, "say": print}
    engine, _ = _open_pool(recipe, pool, pools.learner, pools.tokenizer, **limits, ranks=second)
    assert [replica.url for replica in engine._replicas] == [server.url]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_server_that_two_ranks_find_without_weights_is_given_them_once(servers, engines, pools, kind):
    [server] = servers(kind)
    ranks = engines([server])
    server.fault(forget=0.3)
    requests = pools.sampled(groups=8, siblings=1, temperature=0.0)
    with ThreadPoolExecutor(2) as threads:  # each rank asks in an event loop of its own, both at once
        mine, theirs = threads.map(asked, ranks, (requests[:4], requests[4:]))
    require_same_turns([*mine, *theirs], pools.written_here(requests))
    assert sum(engine._weight_sync.reloaded for engine in ranks) == 1


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_turn_during_which_another_rank_loaded_weights_is_sampled_again(servers, engines, pools, kind):
    """The label afterwards is right, and says nothing of what wrote."""
    [server] = servers(kind)
    ranks = engines([server])
    label, write = server.engine.label, server.engine.write

    async def during_a_load(*arguments: Any) -> tuple[Completion, str]:
        completion, _ = await write(*arguments)
        server.engine.label = f"{label}.0.1"
        return completion, server.engine.label

    server.engine.write = during_a_load
    asked(ranks[1], pools.sampled(groups=1, siblings=1))
    assert (ranks[1]._retried, ranks[1]._weight_sync.reloaded) == (1, 0)
