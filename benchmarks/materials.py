"""The materials of a run of the benchmarks: two models with random weights, a tokenizer, an index of a generated
world."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from benchmarks.shapes import LARGE, SMALL
from sleuth.retrieval.bm25 import build_index
from sleuth.world.write_world import write_world

LONGEST = 4_096
ENDS = ("<|end|>", "<|im_start|>", "<|im_end|>")
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As small as a chat template with tools can be, so that both sides of the search step read the same prompt."""


def make_materials(folder: Path) -> None:
    """Write `small/` and `large/` (models with the same tokenizer), `world/` and `index/`."""
    write_world(folder / "world", seed=0, people=400)
    build_index(folder / "world" / "corpus.jsonl", folder / "index")
    tokenizer = _tokenizer(passages(folder))
    for name, vocabulary in (("small", SMALL), ("large", LARGE)):
        torch.manual_seed(0)
        Qwen3ForCausalLM(_config(vocabulary)).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def model_folder(folder: Path, vocabulary: int) -> Path:
    """The folder of the model with that vocabulary."""
    return folder / {SMALL: "small", LARGE: "large"}[vocabulary]


def passages(folder: Path) -> list[str]:
    """The texts of the world's corpus."""
    with (folder / "world" / "corpus.jsonl").open() as lines:
        return [json.loads(line)["contents"] for line in lines]


def _config(vocabulary: int) -> Qwen3Config:
    """Qwen3 of 4 layers and width 256. No token ends a text, so that the benchmark sets all lengths."""
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        intermediate_size=768,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )


def _tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of exactly 4,096 tokens, trained on the world and on made-up words, since the world alone has too
    few."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=SMALL, special_tokens=list(ENDS), initial_alphabet=alphabet)
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghiklmnoprstuvw", k=6)) for _ in range(SMALL)]
    tokenizer.train_from_iterator([*texts, *(f" {word}" for word in words * 2)], trainer)
    assert tokenizer.get_vocab_size() == SMALL
    ends = {"pad_token": ENDS[0], "eos_token": ENDS[2]}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=CHAT, **ends)
