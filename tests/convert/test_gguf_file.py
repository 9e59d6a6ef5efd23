from __future__ import annotations

import gzip
import json
import math
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_models import ENDS, TEMPLATE, byte_bpe, make_model, save_model, write_protocol
from refusals import line_of
from safetensors.torch import load_file, save_file
from small_models import write_companions
from tokenizers import AddedToken, Tokenizer, pre_tokenizers
from transformers import AutoTokenizer

gguf = pytest.importorskip("gguf")

from sleuth.convert.gguf_file import (  # noqa: E402
    CONTROL,
    DIGITS_APART,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    export_gguf,
)
from sleuth.host.checksums import write_checksums  # noqa: E402
from sleuth.runs.model_card import LOOP  # noqa: E402

MODELS = Path(__file__).parents[2] / "models"
TINY_BASE, TINY_REAL = MODELS / "tiny-base", MODELS / "tiny-real"
NAMES = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}


def tensors_of(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a GGUF file in float32, by name."""
    found = {}
    for tensor in gguf.GGUFReader(file).tensors:
        values = torch.from_numpy(tensor.data.copy())
        if tensor.tensor_type.name == "BF16":
            values = values.view(torch.bfloat16)
        found[tensor.name] = values.reshape(tuple(int(size) for size in tensor.shape[::-1])).float()
    return found


def kinds_of(file: Path) -> dict[str, str]:
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors}


def fields_of(file: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(file).fields.items()}


def halves(rows: torch.Tensor, head: int) -> torch.Tensor:
    """Rows of which llama.cpp rotates neighbours, as transformers has them: the first half of each head, the second."""
    return torch.cat([block[at::2] for block in rows.split(head) for at in (0, 1)])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 with tied embeddings in bfloat16."""
    folder = tmp_path_factory.mktemp("gguf") / "qwen3"
    save_model(folder, "qwen3", torch.bfloat16)
    return folder


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in saved.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def refusal(source: Path, tmp_path: Path, **settings: Any) -> str:
    line = line_of(export_gguf, source, tmp_path / "out.gguf", **settings)
    assert not [*tmp_path.glob("out*")], "a refused export writes nothing"
    return line


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_each_weight_is_written_under_the_name_that_llama_cpp_gives_it(family: str, tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", family, torch.bfloat16)
    written = export_gguf(tmp_path / "model", tmp_path / "out.gguf")
    weights = {name: weight.float() for name, weight in load_file(tmp_path / "model" / "model.safetensors").items()}
    found = tensors_of(tmp_path / "out.gguf")
    assert (written.architecture, written.tensors, written.dtype) == (family, len(weights), "bf16")
    assert len(found) == len(weights)
    pairs = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if not model.config.tie_word_embeddings:
        pairs["output.weight"] = "lm_head.weight"
    for layer in ("0", "1"):
        inner = {
            **{f"attn_{part}.bias": f"self_attn.{part}_proj.bias" for part in "qkv" if family == "qwen2"},
            **{f"attn_{part}_norm.weight": f"self_attn.{part}_norm.weight" for part in "qk" if family == "qwen3"},
            **{f"{ours}.weight": f"self_attn.{theirs}.weight" for theirs, ours in NAMES.items()},
            **{f"ffn_{part}.weight": f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
            "attn_norm.weight": "input_layernorm.weight",
            "ffn_norm.weight": "post_attention_layernorm.weight",
        }
        pairs |= {f"blk.{layer}.{ours}": f"model.layers.{layer}.{theirs}" for ours, theirs in inner.items()}
    assert pairs.keys() == found.keys()
    for ours, theirs in pairs.items():
        rotated = family == "llama" and ours.endswith(("attn_q.weight", "attn_k.weight"))
        assert torch.equal(halves(found[ours], 8) if rotated else found[ours], weights[theirs]), ours


def test_vectors_are_float32_and_matrices_have_the_dtype_that_is_asked_for(saved: Path, tmp_path: Path) -> None:
    for dtype, kind in {"f16": "F16", "f32": "F32", None: "BF16"}.items():
        file = tmp_path / f"{dtype}.gguf"
        assert export_gguf(saved, file, dtype=dtype).bytes == file.stat().st_size
        for name, found in kinds_of(file).items():
            assert found == ("F32" if "norm" in name else kind), name


def test_the_header_has_the_shape_of_the_model(saved: Path, tmp_path: Path) -> None:
    export_gguf(saved, tmp_path / "out.gguf")
    fields, config = fields_of(tmp_path / "out.gguf"), json.loads((saved / "config.json").read_text())
    assert (fields["general.architecture"], fields["general.name"]) == ("qwen3", "qwen3")
    assert fields["general.description"] == LOOP
    for ours, theirs in {
        "vocab_size": "vocab_size",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.value_length": "head_dim",
        "rope.dimension_count": "head_dim",
    }.items():
        assert fields[f"qwen3.{ours}"] == config[theirs], ours
    assert math.isclose(fields["qwen3.attention.layer_norm_rms_epsilon"], config["rms_norm_eps"], rel_tol=1e-6)
    assert fields["qwen3.rope.freq_base"] == config["rope_parameters"]["rope_theta"]


def test_the_tokenizer_is_written_with_its_ids_kinds_and_template(saved: Path, tmp_path: Path) -> None:
    export_gguf(saved, tmp_path / "out.gguf")
    fields, tokenizer = fields_of(tmp_path / "out.gguf"), AutoTokenizer.from_pretrained(saved)
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    assert tokens == [
        *tokenizer.convert_ids_to_tokens(range(len(tokenizer))),
        *(f"[PAD{len(tokenizer) + n}]" for n in range(3)),
    ]
    kind_of = dict(zip(tokens, kinds, strict=True))
    assert [kind_of[token] for token in (*ENDS, "<search>", "!", tokens[-1])] == [
        *(CONTROL, CONTROL, CONTROL, USER_DEFINED, NORMAL, UNUSED)
    ]
    merges = json.loads((saved / "tokenizer.json").read_text())["model"]["merges"]
    assert fields["tokenizer.ggml.merges"] == [" ".join(pair) for pair in merges]
    assert (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]) == ("gpt2", "qwen2")
    assert fields["tokenizer.ggml.eos_token_id"] == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert fields["tokenizer.ggml.eot_token_id"] == tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert "tokenizer.ggml.bos_token_id" not in fields
    assert fields["tokenizer.ggml.add_bos_token"] is False
    assert fields["tokenizer.chat_template"] == TEMPLATE


def test_the_shipped_reader_is_split_as_gpt_2_splits_which_makes_the_same_tokens(tmp_path: Path) -> None:
    """But for other numbers than 0 to 9 after a space, which llama.cpp may encode with the space: one of 1,000."""
    assert fields_of(export_gguf(TINY_REAL, tmp_path / "out.gguf").file)["tokenizer.ggml.pre"] == "gpt-2"
    ours, split = (Tokenizer.from_file(str(TINY_REAL / "tokenizer.json")) for _ in "12")
    split.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    with gzip.open(TINY_REAL / "corpus.jsonl.gz", "rt") as corpus:
        texts = [json.loads(line)["contents"] for line in islice(corpus, 1000)]
    texts.append("a  1840\n\n12,345  b1\t2\r\n3 's 4's")
    assert [one.ids for one in ours.encode_batch(texts)] == [one.ids for one in split.encode_batch(texts)]


def test_scaled_frequencies_of_llama_3_are_written_as_factors(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    save_model(tmp_path / "model", "llama", rope_parameters=rope)
    export_gguf(tmp_path / "model", tmp_path / "out.gguf")
    lengths = [2 * math.pi * 10000.0 ** (number / 8) for number in (0, 2, 4, 6)]  # in tokens: 6, 63, 628, 6283
    smooth = (32 / lengths[0] - 1) / 3
    expected = [1 / ((1 - smooth) / 8 + smooth) if smooth < 1 else 1.0, 8.0, 8.0, 8.0]
    assert torch.allclose(tensors_of(tmp_path / "out.gguf")["rope_freqs.weight"], torch.tensor(expected))


def test_the_protocol_is_written_into_the_file_and_beside_it(model: Path, tmp_path: Path) -> None:
    protocol = write_protocol(model, "search_r1", "search_rules", "user", context=200)
    (model / "README.md").write_text("# x\n\n## Licence and citations\n\nThe licence of the base is apache-2.0.\n")
    written = export_gguf(model, tmp_path / "out.gguf")
    assert written.protocol_file == tmp_path / "out.protocol.json"
    assert written.protocol_file.read_bytes() == (model / "protocol.json").read_bytes()
    assert json.loads(fields_of(written.file)["sleuth.protocol"]) == json.loads(written.protocol_file.read_text())
    card = (tmp_path / "out.md").read_text()
    for line in (
        LOOP,
        "llama-server -m out.gguf -c 200",
        "FROM ./out.gguf",
        'PARAMETER stop "</search>"',
        protocol.hash,
    ):
        assert line in card
    assert card.endswith("## Licence and citations\n\nThe licence of the base is apache-2.0.\n")
    assert "TEMPLATE" not in card, "the prompt is a message of the chat template"


def test_a_checkpoint_of_a_run_is_named_after_the_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine" / "checkpoints").mkdir(parents=True)
    model.rename(tmp_path / "mine" / "checkpoints" / "step-000010")
    monkeypatch.chdir(tmp_path)
    written = export_gguf(Path("mine/checkpoints/step-000010"), dtype="f16")
    assert written.file == Path("mine-step-000010-f16.gguf")
    assert {path.name for path in tmp_path.iterdir()} == {
        "mine",
        "mine-step-000010-f16.gguf",
        "mine-step-000010-f16.md",
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0, "layer_types": None},
            "a sliding window",
        ),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
            "its rotary embeddings are scaled by 'linear'",
        ),
    ],
)
def test_a_model_that_llama_cpp_would_compute_differently_is_refused(
    changes: dict[str, Any], reason: str, model: Path, tmp_path: Path
) -> None:
    change_config(model, **changes)
    assert reason in refusal(model, tmp_path)


def test_another_family_is_refused_with_those_that_are_written(model: Path, tmp_path: Path) -> None:
    change_config(model, model_type="gemma", architectures=["GemmaForCausalLM"])
    assert refusal(model, tmp_path).endswith("a model of type gemma; GGUF files are written of llama, qwen2, qwen3")


def test_weights_that_do_not_fit_the_dtype_are_refused(model: Path, tmp_path: Path) -> None:
    weights = load_file(model / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][0, 0] = 1e5
    save_file(weights, model / "model.safetensors")
    assert "blk.0.ffn_up.weight has values that float16 cannot hold" in refusal(model, tmp_path, dtype="f16")
    weights["model.layers.0.mlp.up_proj.weight"] = weights["model.layers.0.mlp.up_proj.weight"].to(torch.float8_e4m3fn)
    save_file(weights, model / "model.safetensors")
    assert "is float8_e4m3fn; only unquantised weights are written" in refusal(model, tmp_path)


def test_damaged_missing_and_foreign_weights_are_refused(model: Path, tmp_path: Path) -> None:
    write_checksums(model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert "damaged: model.safetensors is not what was written" in refusal(model, tmp_path)
    (model / "SHA256SUMS").unlink()
    weights.unlink()
    torch.save(make_model("qwen3", 400).state_dict(), model / "pytorch_model.bin")
    assert refusal(model, tmp_path).endswith("holds no tensors in .safetensors files")


def _own_words(model: Path) -> None:
    write_companions(make_model("qwen3", 409), model)


def _split_of_the_tiny_models(model: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes((TINY_BASE / name).read_bytes())
    change_config(model, vocab_size=877)


def _ignored_merges(model: Path) -> None:
    path = model / "tokenizer.json"
    described = json.loads(path.read_text())
    described["model"]["ignore_merges"] = True
    path.write_text(json.dumps(described))


def _spaces_that_are_joined(model: Path) -> None:
    byte_bpe("gpt-2").save_pretrained(model)
    path = model / "tokenizer.json"
    described = json.loads(path.read_text())
    assert ["Ġ", "Ġ"] in described["model"]["merges"]
    described["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [DIGITS_APART[0], described["pre_tokenizer"]]}
    path.write_text(json.dumps(described))


def _greedy_token(model: Path) -> None:
    tokenizer = byte_bpe("qwen2")
    tokenizer.add_tokens([AddedToken("<cite>", lstrip=True)])
    tokenizer.save_pretrained(model)


def _two_first_tokens(model: Path) -> None:
    tokenizer = byte_bpe("qwen2", bos=True)
    tokenizer.bos_token = None
    tokenizer.save_pretrained(model)


def _more_tokens_than_rows(model: Path) -> None:
    tokenizer = byte_bpe("qwen2")
    tokenizer.add_tokens([f"<more{number}>" for number in range(9)])
    tokenizer.save_pretrained(model)


def _many_ends(model: Path) -> None:
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2, 3, 4]}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_own_words, "its tokenizer is WordLevel, which cannot be written to GGUF: only byte-level BPE is"),
        (_split_of_the_tiny_models, "llama.cpp would split texts into other tokens"),
        (_ignored_merges, "llama.cpp would split texts into other tokens"),
        (_spaces_that_are_joined, "llama.cpp would split texts into other tokens"),
        (_greedy_token, "its added token '<cite>' takes in spaces"),
        (_two_first_tokens, "puts other tokens around a text than its first and last"),
        (_more_tokens_than_rows, "has a token 414, and the embeddings have only 409 rows"),
        (_many_ends, "ends texts with 5 tokens, and a GGUF file names 3 at most"),
    ],
)
def test_a_tokenizer_that_llama_cpp_would_not_follow_is_refused(
    change: Any, reason: str, model: Path, tmp_path: Path
) -> None:
    change(model)
    if change is _split_of_the_tiny_models:  # with as many rows as that tokenizer has tokens
        weights = load_file(model / "model.safetensors")
        weights["model.embed_tokens.weight"] = torch.zeros(877, 32, dtype=torch.bfloat16)
        save_file(weights, model / "model.safetensors")
    assert reason in refusal(model, tmp_path)


def test_a_write_that_is_interrupted_leaves_nothing(model: Path, tmp_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_gguf(model, tmp_path / "out.gguf", progress=fail)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
