"""Ranks give their weights to servers bucket by bucket, and none of them holds the model."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from emulator.served import repeat_within_rounding
from processes import on_ranks
from run_files import figures, groups, log
from runs_on_ranks import run_on
from sending import BUCKET, across_updates, gathered, published
from small_stages import through
from starlette.responses import JSONResponse
from test_stages_on_ranks import assert_same_run
from verb import sleuth

from sleuth.ranks import Ranks
from sleuth.recipe import load_recipe
from sleuth.training.loop import require_ranks
from sleuth.training.rollout_worker import lag_counts
from sleuth.types import Completion, Sampling, Segment, SleuthError

pytestmark = pytest.mark.ranks
REQUESTS = [([5, 6, 7, 300 + at], Sampling(max_tokens=12, temperature=0.0, key=(0, 0, 1, at, 0, 0))) for at in range(4)]


@pytest.mark.parametrize(("dtype", "lora"), [("float32", False), ("bfloat16", True)])
def test_rank_0_reads_the_weights_of_all_and_holds_a_bucket_beside_its_shard(dtype, lora):
    if lora:
        pytest.importorskip("peft")
    first, other = on_ranks(2, gathered, dtype, lora)
    alone = first["alone"]
    assert first["weights"].keys() == alone["weights"].keys() == {name for name, *_ in first["outline"]}
    for name, dtype_of, shape in first["outline"]:
        weight = first["weights"][name]
        assert torch.equal(weight, alone["weights"][name]), name
        assert (weight.dtype, tuple(weight.shape)) == (dtype_of, shape)
        assert torch.equal(first["restored"][name], weight)
    assert first["label"] == alone["label"]
    assert first["logprobs"] == pytest.approx(alone["logprobs"], abs=1e-5 if dtype == "float32" else 0.02)
    largest = max(weight.nbytes for weight in alone["weights"].values())
    whole = sum(weight.nbytes for weight in alone["weights"].values())
    assert len(first["sizes"]) > 3
    assert max(first["sizes"]) <= max(BUCKET, largest)
    merging = 3 * 4 * largest if lora else 0  # B A and the sum, in fp32
    assert first["peak"] <= BUCKET + 2 * largest + merging < whole / 2 + merging
    assert first["lingering"] == 0
    assert 0 < other["peak"] <= 3 * largest + merging
    assert {rank[name] for rank in (first, other) for name in ("model", "after")} == {0}
    assert "weights" not in other, "rank 0 alone reads them"


@pytest.mark.parametrize("kinds", [("vllm", "sglang"), ("vllm",)])
def test_servers_of_two_ranks_have_the_learners_weights(servers, tmp_path, kinds):
    members = servers(*kinds)
    (turns, ours, lines), _ = on_ranks(2, published, [server.url for server in members], tmp_path, REQUESTS, {})
    require_learners(turns, ours)
    assert lines == []
    assert len(list(max(tmp_path.glob("000002-*")).glob("*.safetensors"))) > 3  # one for each bucket


def require_learners(turns: list[Any], ours: list[list[float]]) -> None:
    assert {turn.policy_version for turn in turns} == {2}
    for turn, expected in zip(turns, ours, strict=True):
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)


def test_cards_of_other_servers_are_sent_the_buckets_and_no_file_is_written(servers, tmp_path):
    members = servers("vllm", "vllm", broadcast=True)
    urls = [server.url for server in members]
    (turns, ours, lines), _ = on_ranks(2, published, urls, tmp_path / "weights", REQUESTS, {"card": True})
    require_learners(turns, ours)
    assert lines == []
    assert not (tmp_path / "weights").exists()


def test_a_server_that_fails_between_two_buckets_is_given_the_folder_and_a_line_says_so(servers, tmp_path):
    refuses = {"/finish_weight_update": JSONResponse({"error": "out of memory"}, 500)}
    [broken] = servers("vllm", broadcast=True, instead=refuses)
    [sound] = servers("vllm", broadcast=True)
    urls = [broken.url, sound.url]
    (turns, ours, lines), _ = on_ranks(2, published, urls, tmp_path / "weights", REQUESTS, {"card": True})
    require_learners(turns, ours)
    [line] = lines
    assert line.startswith(f"{broken.url} takes no weights by broadcast (refused with 500: out of memory")
    assert line.endswith(f"weights go through the folder {tmp_path / 'weights'}")
    assert broken.engine.label == sound.engine.label


def test_adapters_alone_are_sent_from_ranks(servers, tmp_path):
    pytest.importorskip("peft")
    members = servers("vllm", "sglang", max_rank=8)
    urls = [server.url for server in members]
    (turns, ours, lines), _ = on_ranks(2, published, urls, tmp_path, REQUESTS, {"lora": True})
    require_learners(turns, ours)
    assert lines == []
    assert all(len(server.engine.adapters) == 1 for server in members)
    newest = max(tmp_path.glob("000002-*"))
    assert [file.name for file in newest.rglob("*.safetensors")] == ["adapter_model.safetensors"]


@pytest.mark.parametrize("kind", ["minibatches", "lora"])
def test_two_ranks_and_two_servers_make_the_run_of_one_and_one(recipes, servers, tmp_path, kind):
    """No hook of these recipes computes with the model, so that the ranks hold it in shards between updates too."""
    if kind == "lora":
        pytest.importorskip("peft")
    pair = servers("vllm", "vllm", max_rank=8)
    repeat_within_rounding(pair)
    for ranks, members in ((1, pair[:1]), (2, pair)):
        folder = tmp_path / str(ranks)
        run_on(ranks, recipes[kind], folder, through(members, stage=0), "stage.0.stop_after=2")
        run_on(ranks, recipes[kind], folder, through(members, stage=0), "stage.0.stop_after=3")
    alone, shared = (figures(tmp_path / str(ranks)) for ranks in (1, 2))
    assert sum(row["loss"] is not None for row in alone) > 1, "something was learned"
    assert_same_run(shared, alone)
    for step in range(1, 4):
        for mine, other in zip(groups(tmp_path / "2", step), groups(tmp_path / "1", step), strict=True):
            assert [one.trajectory.tokens for one in mine.episodes] == [one.trajectory.tokens for one in other.episodes]
    assert "weights go through" not in log(tmp_path / "2")


def test_turns_of_all_ranks_go_on_across_updates_and_each_token_is_that_of_its_version(servers, tmp_path):
    members = servers("vllm", "sglang", token_seconds=0.1)
    ranks = on_ranks(2, across_updates, [server.url for server in members], tmp_path)
    for completions, logprobs, counts in ranks:
        assert all(turn.updates for turn in completions)
        for turn, by_version in zip(completions, logprobs, strict=True):
            begin = 0
            for version, count in version_counts(turn):
                end = begin + count
                assert turn.logprobs[begin:end] == pytest.approx(by_version[version][begin:end], abs=1e-4)
                begin = end
            assert begin == len(turn.tokens) == 32
        assert counts["turns_resumed"] >= len(ranks) * len(completions)
        assert counts["turns_redrawn"] == 0


def version_counts(turn: Completion) -> list[tuple[int, int]]:
    names = ("tokens", "text", "logprobs", "policy_version", "updates")
    return Segment(author="policy", **{name: getattr(turn, name) for name in names}).version_counts


def test_ranks_whose_episodes_go_on_across_updates_know_the_same_versions(recipes, servers, tmp_path):
    pair = servers("vllm", "sglang")
    for server in pair:
        server.fault(token_seconds=0.03, tail=1.0)
    ahead = through(pair, stage=0, max_policy_lag=2, requests_at_once=8)
    overrides = (ahead, "stage.0.updates_per_batch=1", "stage.0.prompts_per_update=4")
    run_on(2, recipes["minibatches"], tmp_path / "run", *overrides, "stage.0.stop_after=3")
    run_on(2, recipes["minibatches"], tmp_path / "run", *overrides)
    rows = figures(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert sum(row["turns_redrawn"] for row in rows) == 0
    played = [groups(tmp_path / "run", step) for step in range(1, 5)]
    assert len({group.task.id for of_step in played for group in of_step}) == 16  # none skipped or asked twice
    for step, (row, of_step) in enumerate(zip(rows, played, strict=True), start=1):
        assert [[episode.sample for episode in group.episodes] for group in of_step] == [[*range(8)]] * 4
        lags = lag_counts(of_step, step - 1, max_policy_lag=2)
        assert row["off_policy_fraction"] == pytest.approx(1 - lags[0] / lags.total())
        assert row["policy_lag_mean"] == pytest.approx((lags[1] + 2 * lags[2]) / lags.total())
    assert max(row["policy_lag_mean"] for row in rows) > 0
    for row in rows:
        found = json.loads(sleuth("replay", tmp_path / "run", row["step"], "--json").stdout)
        assert (found["loss"] is None) == (row["loss"] is None)
        assert row["loss"] is None or found["loss"] == pytest.approx(row["loss"], rel=1e-5, abs=1e-6)


def test_replicas_of_a_number_that_does_not_divide_the_ranks_are_refused_before_the_run(recipes):
    stage = load_recipe(recipes["grpo"], ["stage.0.ranks_per_replica=3"]).stage[0]
    with pytest.raises(SleuthError, match=r"ranks_per_replica = 3: 4 ranks cannot be divided into groups of so many"):
        require_ranks(stage, Ranks(world=4))
    require_ranks(stage, Ranks(world=6))
    require_ranks(stage, Ranks())


def test_a_run_with_replicas_goes_on_on_other_ranks(recipes, tmp_path):
    overrides = ("stage.0.stop_after=2", "stage.0.ranks_per_replica=2")
    run_on(4, recipes["minibatches"], tmp_path / "4", *overrides)
    run_on(2, recipes["minibatches"], tmp_path / "4", "stage.0.stop_after=4")
    run_on(1, recipes["minibatches"], tmp_path / "1")
    assert_same_run(figures(tmp_path / "4"), figures(tmp_path / "1"))
