"""Merged shards of real FSDP runs equal the unsharded model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch.distributed as dist
from fsdp_runs import WAYS, move_to_gpu, run_fsdp, ways_of
from small_models import FAMILIES, assert_same_tensors, make_model, weights_of, written_tensors
from transformers import AutoModelForCausalLM, AutoTokenizer

from sleuth.convert.inert import DTensor, ShardedTensor
from sleuth.convert.merge import merge_shards
from sleuth.convert.shards import open_shards

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo to run ranks with"
    ),
]


RUNS = [(ranks, way, family) for ranks in (1, 2, 4) for way in ways_of(ranks) for family in FAMILIES]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two_ranks")
    run_fsdp(folder, 2, ["qwen3"])
    return folder


@pytest.fixture(scope="module")
def every_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("every_run")
    for ranks in (1, 2, 4):
        (folder / str(ranks)).mkdir()
        run_fsdp(folder / str(ranks), ranks, list(FAMILIES))
    return folder


def assert_merges_into_the_model(shards: Path, family: str, out: Path) -> None:
    merge_shards(shards, out)
    expected = weights_of(make_model(family))
    assert_same_tensors(written_tensors(out), expected)
    loaded, info = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(info.values()), info
    assert_same_tensors(weights_of(loaded), expected)
    assert not dist.is_initialized()


@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_merge_into_the_unsharded_model(two_ranks: Path, way: str, tmp_path: Path) -> None:
    assert_merges_into_the_model(two_ranks / way / "qwen3", "qwen3", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "way", "family"), RUNS)
def test_any_number_of_ranks_merges_into_the_unsharded_model(
    every_run: Path, ranks: int, way: str, family: str, tmp_path: Path
) -> None:
    assert_merges_into_the_model(every_run / str(ranks) / way / family, family, tmp_path / "out")


@pytest.mark.parametrize("way", WAYS)
def test_shards_saved_on_a_gpu_merge_without_one(two_ranks: Path, way: str, tmp_path: Path) -> None:
    shards = tmp_path / "actor"
    shutil.copytree(two_ranks / way / "qwen3", shards)
    for path in shards.glob("model_*.pt"):
        move_to_gpu(path)
    assert_merges_into_the_model(shards, "qwen3", tmp_path / "out")


def test_the_runs_save_both_kinds_of_sharded_tensor(two_ranks: Path) -> None:
    kinds = {way: {type(v) for v in open_shards(two_ranks / way / "qwen3").ranks[1].values()} for way in WAYS}
    assert kinds == {"fsdp1": {ShardedTensor}, "fsdp1_mesh": {DTensor}, "fsdp2": {DTensor}}


def test_the_tokenizer_is_copied_and_the_state_of_the_trainer_is_not(two_ranks: Path, tmp_path: Path) -> None:
    merge_shards(two_ranks / "fsdp2" / "qwen3", tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").convert_tokens_to_ids("Tarn") == 2
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "SHA256SUMS",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
