"""Random models with byte-level BPE, as a GGUF file can hold them, and texts that are hard to split."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from tiny_models import FAMILIES
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.convert.gguf_file import PRE_TOKENIZERS
from sleuth.episodes.protocol import ProtocolCard
from sleuth.learn.models import load_outline
from sleuth.recipe.envs import Role
from sleuth.search.tables import SearchEnvRecipe

TEXT = """Who was born in Tarn, and when? She's the town's first mayor; they've said it'll rain, I'd say. In 1840 there
were 12,345 people (see [1], [2]). Zoë wrote "Über den Fluß" in São Paulo; Привет, мир! 東京は日本の首都です。 नमस्ते
दुनिया 3.14159 x_1 = y**2; return {'key': [1, 2]} https://example.org/a?b=c&d=e 👍🏽 ½ Ⅷ ١٢٣ e\u0301
naïve don't DON'T 's'tart"""
WORDS = TEXT.split()
GAPS = (" ", "  ", "\n", "\n\n", "\t", " \n ", "", "\r\n", "\u00a0", "   \n\n  ", "\u3000")
TAGS = ("<search>", "</search>", "<think>", "<|im_end|>", "<|endoftext|>")
ENDS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PRE_TOKENIZER = {"qwen3": "qwen2", "qwen2": "gpt-2", "llama": "llama-bpe"}
"""That of the tests' model of each family."""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
)


def texts(count: int, seed: int = 0) -> list[str]:
    """Texts of words, tags and numbers with all kinds of spaces between them, normalised as NFC."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        parts = [
            rng.choice((rng.choice(WORDS), rng.choice(WORDS), rng.choice(TAGS), str(rng.randrange(10**6))))
            for _ in "12345678"
        ]
        made.append("".join(part + rng.choice(GAPS) for part in parts))
    return [normalizers.NFC().normalize_str(text) for text in made]


def byte_bpe(kind: str, *, size: int = 400, bos: bool = False) -> PreTrainedTokenizerFast:
    """A tokenizer that splits texts as llama.cpp's pre-tokenizer `kind` does, with a few tags as added tokens."""
    steps = [_step(step) for step in PRE_TOKENIZERS[kind][0]]
    tokenizer = Tokenizer(BPE(ignore_merges=PRE_TOKENIZERS[kind][1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]  # pyright: ignore
    tokenizer.normalizer = normalizers.NFC() if kind == "qwen2" else None  # pyright: ignore
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts(300, seed=1), BpeTrainer(vocab_size=size, initial_alphabet=alphabet))
    tokenizer.add_special_tokens(list(ENDS))
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS[:3]])
    if bos:
        first = (ENDS[0], tokenizer.token_to_id(ENDS[0]))
        tokenizer.post_processor = processors.TemplateProcessing(f"{ENDS[0]} $A", special_tokens=[first])  # pyright: ignore
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        bos_token=ENDS[0] if bos else None,
    )
    fast.chat_template = TEMPLATE
    return fast


def save_model(folder: Path, family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    """A random model of a family with its tokenizer, with three rows of embeddings more than tokens."""
    tokenizer = byte_bpe(PRE_TOKENIZER[family], bos=family == "llama")
    torch.manual_seed(0)
    model = make_model(family, len(tokenizer) + 3, **changes).to(dtype)
    for weight in model.parameters():
        if weight.dim() == 1:  # norms of 1 and biases of 0 would hide a mistake
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id]  # pyright: ignore
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def make_model(family: str, vocabulary: int, **changes: Any) -> PreTrainedModel:
    config = FAMILIES[family]().config
    config.update({"vocab_size": vocabulary, "max_position_embeddings": 256, **changes})
    return type(FAMILIES[family]())._from_config(config)


def _step(step: dict[str, Any]) -> Any:
    if step["type"] == "Split":
        return pre_tokenizers.Split(Regex(step["pattern"]["Regex"]), "isolated")
    if step["type"] == "Digits":
        return pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=step["use_regex"])


def write_protocol(
    folder: Path, dialect: str, prompt: str, role: Role = "raw", context: int | None = None
) -> ProtocolCard:
    """Writes the protocol of a search dialect into the folder of a model."""
    model = load_outline(str(folder))
    env = SearchEnvRecipe(kind="search", dialect=dialect, prompt=prompt, prompt_role=role, retriever="empty")
    card = env.setting(model.tokenizer, []).protocol("strict", context or min(model.context, 4096))
    card.write(folder)
    return card
