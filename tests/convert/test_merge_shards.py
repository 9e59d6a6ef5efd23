from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from refusals import line_of
from safetensors.torch import save_file
from small_models import (
    assert_same_tensors,
    make_model,
    weights_of,
    write_companions,
    write_row_shards,
    written_tensors,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

from sleuth.convert.merge import merge_shards


@pytest.fixture
def actor(tmp_path: Path) -> Path:
    """Row shards of a tied model by three ranks, without lm_head."""
    folder = tmp_path / "actor"
    write_row_shards(make_model("qwen3"), folder, 3)
    return folder


def bare(tmp_path: Path, state: dict, family: str = "qwen2") -> Path:
    write_companions(make_model(family), tmp_path)
    torch.save(state, tmp_path / "model.pt")
    return tmp_path / "model.pt"


def refusal(source: Path, out: Path, **settings) -> str:
    before = sorted(out.parent.rglob("*"))
    line = line_of(merge_shards, source, out, **settings)
    assert sorted(out.parent.rglob("*")) == before, "a refused merge leaves the disk as it was"
    return line


def test_plain_row_shards_merge_into_the_model(actor: Path, tmp_path: Path) -> None:
    merged = merge_shards(actor, tmp_path / "out")
    expected = weights_of(make_model("qwen3"))
    assert_same_tensors(written_tensors(tmp_path / "out"), expected)
    count = sum(weight.numel() for weight in expected.values())
    assert (merged.ranks, merged.tensors, merged.parameters) == (3, len(expected), count)
    assert (merged.dtype, merged.bytes, merged.files) == ("bfloat16", 2 * count, 1)


@pytest.mark.parametrize("nest", [(), ("model",), ("state_dict",), ("module",)])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "module._orig_mod."])
def test_a_nested_bare_state_dict_merges(nest: tuple, prefix: str, tmp_path: Path) -> None:
    state: dict = {prefix + name: weight.data for name, weight in make_model("qwen2").state_dict().items()}
    for name in nest:
        state = {name: state, "step": 7}
    merge_shards(bare(tmp_path, state), tmp_path / "out")
    assert_same_tensors(written_tensors(tmp_path / "out"), weights_of(make_model("qwen2")))


def test_a_tied_name_that_was_saved_is_written_once(tmp_path: Path) -> None:
    merge_shards(bare(tmp_path, make_model("qwen3").state_dict(), "qwen3"), tmp_path / "out")
    assert "lm_head.weight" not in written_tensors(tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_tied_names_that_differ_are_refused(tmp_path: Path) -> None:
    state = {name: weight.clone() for name, weight in make_model("qwen3").state_dict().items()}
    state["lm_head.weight"][-1, -1] += 1
    assert "lm_head.weight differs from model.embed_tokens.weight" in refusal(
        bare(tmp_path, state, "qwen3"), tmp_path / "out"
    )


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A tied model as transformers saves it, in two files."""
    make_model("qwen3").save_pretrained(tmp_path / "published", max_shard_size="8KB")
    write_companions(make_model("qwen3"), tmp_path / "published")
    return tmp_path / "published"


def test_an_untied_copy_computes_the_same_and_has_output_weights_of_its_own(published: Path, tmp_path: Path) -> None:
    merged = merge_shards(published, tmp_path / "out", untie=True)
    tensors = written_tensors(tmp_path / "out")
    assert torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
    assert (merged.ranks, merged.parameters) == (1, sum(weight.numel() for weight in tensors.values()))
    tied, untied = (
        AutoModelForCausalLM.from_pretrained(published),
        AutoModelForCausalLM.from_pretrained(tmp_path / "out"),
    )
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight
    tokens = torch.tensor([[1, 2, 3, 4]])
    assert torch.equal(untied(tokens).logits, tied(tokens).logits)


def test_shards_beside_safetensors_files_are_what_is_merged(actor: Path, tmp_path: Path) -> None:
    save_file({"other": torch.zeros(1)}, actor / "extra.safetensors")
    merge_shards(actor, tmp_path / "out")
    assert_same_tensors(written_tensors(tmp_path / "out"), weights_of(make_model("qwen3")))


def test_a_broken_weight_file_is_refused(published: Path, tmp_path: Path) -> None:
    broken = next(published.glob("*.safetensors"))
    broken.write_bytes(broken.read_bytes()[:20])
    assert refusal(published, tmp_path / "out").startswith(f"{broken}: cannot be read")


def test_a_cast_is_written_and_recorded_in_the_config(actor: Path, tmp_path: Path) -> None:
    assert merge_shards(actor, tmp_path / "out", dtype=torch.float32).dtype == "float32"
    expected = {name: weight.float() for name, weight in weights_of(make_model("qwen3")).items()}
    assert_same_tensors(weights_of(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), expected)


def test_config_and_tokenizer_come_from_the_given_folder(actor: Path, tmp_path: Path) -> None:
    (actor / "huggingface").rename(tmp_path / "base")
    assert refusal(actor, tmp_path / "out") == (
        f"no config.json in {actor / 'huggingface'} or {actor}; name a Hugging Face folder of the same model with "
        "--config DIR"
    )
    assert f"{actor}: has no config.json" in refusal(actor, tmp_path / "out", config=actor)
    (tmp_path / "base" / "model.safetensors").write_bytes(b"the weights before training")
    merge_shards(actor, tmp_path / "out", config=tmp_path / "base")
    assert_same_tensors(written_tensors(tmp_path / "out"), weights_of(make_model("qwen3")))
    assert AutoTokenizer.from_pretrained(tmp_path / "out").convert_tokens_to_ids("Tarn") == 2


def test_a_folder_with_files_is_left_alone_and_an_empty_one_is_filled(actor: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("x")
    assert refusal(actor, out) == f"{out}: already exists; name a new folder or an empty one"
    (out / "thesis.tex").unlink()
    merge_shards(actor, out)
    assert_same_tensors(written_tensors(out), weights_of(make_model("qwen3")))


def _lose_ranks(actor: Path) -> None:
    for rank in (0, 2):
        (actor / f"model_world_size_3_rank_{rank}.pt").unlink()


def _add_another_run(actor: Path) -> None:
    shutil.copy(actor / "model_world_size_3_rank_0.pt", actor / "model_world_size_1_rank_0.pt")


def _add_a_name(actor: Path) -> None:
    path = actor / "model_world_size_3_rank_1.pt"
    torch.save({**torch.load(path), "extra": torch.ones(1)}, path)


def _widen_the_config(actor: Path) -> None:
    path = actor / "huggingface" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": 43}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_lose_ranks, "ACTOR: 2 of 3 ranks are missing: 0, 2"),
        (_add_another_run, "holds shards of 1 and of 3 ranks"),
        (_add_a_name, "rank_1.pt: extra is only here or only in model_world_size_3_rank_0.pt; save all ranks again"),
        (_widen_the_config, "ACTOR: model.embed_tokens.weight is 41 x 30, but 43 x 30 in the model of config.json"),
    ],
)
def test_shards_that_do_not_fit_each_other_or_the_config_are_refused(
    change: Callable[[Path], None], reason: str, actor: Path, tmp_path: Path
) -> None:
    change(actor)
    assert reason.replace("ACTOR", str(actor)) in refusal(actor, tmp_path / "out")
    assert refusal(tmp_path, tmp_path / "out").endswith(f"did you mean {actor}?")


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({}, "holds no tensors"),
        ({"step": 7}, "'step' is a int; a state dict has names and tensors only"),
        ({3: torch.ones(1)}, "3 is a Tensor; a state dict has names and tensors only"),
        ({"model": {}}, "holds no tensors"),
    ],
)
def test_a_file_without_a_model_is_refused(state: dict, reason: str, tmp_path: Path) -> None:
    assert refusal(bare(tmp_path, state), tmp_path / "out") == f"{tmp_path / 'model.pt'}: {reason}"


def test_complex_weights_are_refused(tmp_path: Path) -> None:
    state = {name: weight.to(torch.complex64) for name, weight in make_model("qwen2").state_dict().items()}
    assert "is complex64, and weights are real numbers" in refusal(bare(tmp_path, state), tmp_path / "out")


def test_a_write_that_fails_leaves_nothing(actor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge_shards(actor, tmp_path / "out", progress=fail)
    assert [path.name for path in tmp_path.iterdir()] == ["actor"]
