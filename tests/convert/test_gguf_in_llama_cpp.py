"""What is exported, in llama.cpp itself. Skipped without llama-cpp-python, which `make llama` builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_models import PRE_TOKENIZER, byte_bpe, save_model, texts
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

pytest.importorskip("gguf")
llama_cpp = pytest.importorskip("llama_cpp")

from sleuth.convert.gguf_file import DTYPES, export_gguf  # noqa: E402

CONTEXT, GREEDY, PROMPTS = 256, 48, 4
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
BOUNDS = {"f32": 1e-4, "f16": 0.03, "bf16": 0.2}
"""Largest difference of logits, whose standard deviation is 1.1. llama.cpp rounds activations as well as weights."""


def open_llama(file: Path, **settings: Any) -> Any:
    """The file in llama.cpp, on one thread, with a KV cache in float32."""
    return llama_cpp.Llama(str(file), n_ctx=CONTEXT, n_threads=1, verbose=False, type_k=0, type_v=0, **settings)


def tokenize(llm: Any, text: str) -> list[int]:
    return llm.tokenize(text.encode(), add_bos=True, special=True)


def greedy(model: PreTrainedModel, ids: list[int]) -> list[int]:
    """The best tokens after a prompt, an end of text or not."""
    written, cache, tokens = list[int](), None, ids
    with torch.no_grad():
        for _ in range(GREEDY):
            output = model(torch.tensor([tokens]), past_key_values=cache, use_cache=True)
            cache, tokens = output.past_key_values, [int(output.logits[0, -1].argmax())]
            written += tokens
    return written


def greedy_in_llama_cpp(llm: Any, ids: list[int]) -> list[int]:
    llm.reset()
    llm.eval(ids)
    written: list[int] = []
    for _ in range(GREEDY):
        written.append(int(np.argmax(llm.scores[llm.n_tokens - 1])))
        llm.eval(written[-1:])
    return written


def _rounded(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return weight.to(dtype).float() if weight.dim() > 1 else weight


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3", {}),
        ("qwen3", {"tie_word_embeddings": False}),
        ("qwen2", {}),
        ("llama", {}),
        ("llama", {"rope_parameters": LLAMA_3}),
    ],
)
def test_greedy_tokens_are_those_of_transformers(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    save_model(tmp_path / "model", family, **changes)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path / "model"), byte_bpe(PRE_TOKENIZER[family])
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    prompts = [tokenizer.encode(text)[:80] for text in texts(PROMPTS)]
    for dtype, bound in BOUNDS.items():
        llm = open_llama(export_gguf(tmp_path / "model", tmp_path / f"{dtype}.gguf", dtype=dtype).file, logits_all=True)
        model.load_state_dict({name: _rounded(weight, DTYPES[dtype]) for name, weight in weights.items()})
        for ids in prompts:
            llm.reset()
            llm.eval(ids)
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0].numpy()
            assert np.abs(llm.scores[: len(ids)] - logits).max() < bound, dtype
            if dtype == "f32":
                assert greedy_in_llama_cpp(llm, ids) == greedy(model, ids)


@pytest.mark.parametrize("kind", ["qwen2", "llama-bpe", "gpt-2", "smollm"])
def test_texts_are_split_into_the_same_tokens(kind: str, tmp_path: Path) -> None:
    save_model(tmp_path / "model", "qwen3")
    byte_bpe(kind, bos=kind == "llama-bpe").save_pretrained(tmp_path / "model")
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(tmp_path / "model")
    llm = open_llama(export_gguf(tmp_path / "model", tmp_path / "out.gguf").file, vocab_only=True)
    for text in texts(300, seed=2):
        ids = tokenizer.encode(text)
        assert tokenize(llm, text) == ids, text
        assert llm.detokenize(ids[kind == "llama-bpe" :], special=True).decode() == text


def test_llama_cpp_stops_where_the_model_does_and_knows_its_template(tmp_path: Path) -> None:
    save_model(tmp_path / "model", "qwen3")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    llm = open_llama(export_gguf(tmp_path / "model", tmp_path / "out.gguf").file, vocab_only=True)
    ends = [token for token in range(llm.n_vocab()) if llama_cpp.llama_vocab_is_eog(llm._model.vocab, token)]
    assert ends == sorted(tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"]))
    assert llm.token_eos() == tokenizer.eos_token_id
    assert llm.metadata["tokenizer.chat_template"] == tokenizer.chat_template
