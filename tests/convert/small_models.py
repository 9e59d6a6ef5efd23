"""Two-layer models whose dimensions no number of ranks divides, so that the last ranks have less, or nothing."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SHAPE = {
    "vocab_size": 41,
    "hidden_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "intermediate_size": 50,
    "max_position_embeddings": 64,
}
FAMILIES = {  # tied in bfloat16, with biases in float32, untied in bfloat16
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=6, tie_word_embeddings=True)).bfloat16(),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=False)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False)).bfloat16(),
}


def make_model(family: str) -> PreTrainedModel:
    """A model with the same weights at each call; no parameter is all zeros or ones."""
    torch.manual_seed(0)
    model = FAMILIES[family]()
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    return model


def weights_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """A model's tensors, tied ones once."""
    return dict(model.named_parameters())


def write_companions(model: PreTrainedModel, folder: Path) -> None:
    """`huggingface/` as verl writes it: configuration and tokenizer, no weights."""
    model.config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    words = Tokenizer(WordLevel({"<end>": 0, "Ada": 1, "Tarn": 2}, unk_token="<end>"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>").save_pretrained(folder)


def write_row_shards(model: PreTrainedModel, folder: Path, ranks: int) -> None:
    """Plain row shards, as early versions of verl wrote them."""
    write_companions(model, folder / "huggingface")
    for rank in range(ranks):
        shards = {name: rows(tensor.detach(), ranks, rank).clone() for name, tensor in weights_of(model).items()}
        torch.save(shards, folder / f"model_world_size_{ranks}_rank_{rank}.pt")


def rows(tensor: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
    """A rank's chunk of the first dimension, as torch.chunk cuts it."""
    chunk = -(-tensor.shape[0] // ranks)
    return tensor[chunk * rank : chunk * (rank + 1)]


def written_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a Hugging Face folder, read by the safetensors library."""
    files = [load_file(path) for path in sorted(folder.glob("*.safetensors"))]
    assert len({name for file in files for name in file}) == sum(map(len, files))
    return {name: tensor for file in files for name, tensor in file.items()}


def assert_same_tensors(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Equal name by name, dtype by dtype and bit by bit."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name
