"""The sizes of a check: those of Qwen3-0.6B, and tiny ones that run on a CPU in seconds; models and tokenizers with
random weights and made-up words for them."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from typing import Literal, cast

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from benchmarks.shapes import Shape

SPECIAL = ("<|end|>", "<|im_start|>", "<|im_end|>")
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking | default(true) %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""A chat template with the flag of Qwen3's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A model's shape, and the sizes of the checks in tokens and requests."""

    name: str
    family: Literal["qwen3", "qwen2"] = "qwen3"
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    context: int
    product: int  # rows of the square matrices whose product is timed
    trees: int
    tree_tokens: tuple[int, int]  # of a random tree, about
    budget: int  # tokens of a pass of the learner
    small_budget: int
    update: Shape
    gradient: Shape  # of the comparison of budgets
    requests: int
    prompt: int  # tokens of a prompt, shared by siblings
    longest: int  # of a ragged request before it is continued
    decode: int  # tokens that each request writes
    turns: tuple[int, int, int]  # mean tokens of a query, tokens of the results, mean tokens of an answer
    greedy: tuple[int, int]  # requests, tokens
    people: int  # of the generated world
    searches: int  # tokens that are a whole search: with random weights, a turn ends at the first of them
    answers: int  # tokens that are a whole answer
    vectors: int  # rows of a flat index
    size: Shape  # of the update of a model of another size, a pass
    refiner: Shape  # an update of long prompts and short answers, a pass; its prompts are also sampled from
    text: int  # tokens of a long text
    peers: Shape  # of the update that peers make too
    changes: tuple[str, ...] = ()  # to the recipe of the whole step

    def config(self) -> PretrainedConfig:
        """The model's config. No token ends a text, so that all lengths are set here."""
        kind = {"qwen3": Qwen3Config, "qwen2": Qwen2Config}[self.family]
        return kind(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            intermediate_size=self.mlp,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            **({"head_dim": self.head_dim} if self.family == "qwen3" else {}),
            max_position_embeddings=40_960,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )

    def model(self, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
        """The model with random weights."""
        torch.manual_seed(0)
        with torch.device(device):
            return AutoModelForCausalLM.from_config(self.config(), dtype=dtype).eval()

    def tokenizer(self, queries: Sequence[str] = (), answers: Sequence[str] = ()) -> PreTrainedTokenizerFast:
        """Byte-level BPE of exactly `vocabulary` tokens: words of up to four letters, and a token for each of `queries`
        and `answers` in the tags of the search dialect. A model that samples any token is then one that searches and
        answers now and then."""
        added = [*(f"<search>{query}</search>" for query in queries), *(f"<answer>{one}</answer>" for one in answers)]
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        letters = string.ascii_lowercase
        pairs = [(a, b) for a, b in product(letters, letters)]
        longer = chain(
            ((a + b, c) for a, b, c in product(letters, repeat=3)),
            ((a + b, c + d) for a, b, c, d in product(letters, repeat=4)),
        )
        room = self.vocabulary - len(SPECIAL) - len(added) - len(alphabet)
        merges = list(islice(chain(pairs, longer), room))
        words = [*SPECIAL, *alphabet, *(left + right for left, right in merges)]
        bpe = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        bpe.add_special_tokens(list(SPECIAL))
        bpe.add_tokens([AddedToken(text, normalized=False, special=False) for text in added])
        made = PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=CHAT, pad_token=SPECIAL[0])
        assert len(made) == self.vocabulary, len(made)
        if added:  # in episodes the end of a message ends a text
            made.eos_token = SPECIAL[2]
        return cast(PreTrainedTokenizerFast, made)


def _update(name: str, prompts: int, vocabulary: int, *, part: int = 1) -> Shape:
    """Groups of 8 search episodes; with `part`, that part of their tokens."""
    lengths = {"prompt": 400 // part, "query": 64 // part, "block": 480 // part, "answer": 400 // part}
    return Shape(name=name, prompts=prompts, siblings=8, **lengths, sharers=2, vocabulary=vocabulary)


REAL = Scale(
    name="real",
    vocabulary=151_936,
    width=1_024,
    layers=28,
    heads=16,
    kv_heads=8,
    head_dim=128,
    mlp=3_072,
    context=4_096,
    product=8_192,
    trees=20,
    tree_tokens=(200, 2_500),
    budget=32_768,
    small_budget=4_096,
    update=_update("gpu", 16, 151_936),
    gradient=_update("gpu/gradient", 3, 151_936),
    requests=256,
    prompt=400,
    longest=3_900,
    decode=64,
    turns=(24, 400, 40),
    greedy=(16, 32),
    people=400,
    searches=1_050,
    answers=150,
    vectors=500_000,
    size=_update("gpu/size", 2, 151_936),
    refiner=Shape(name="gpu/refiner", prompts=4, siblings=8, prompt=3_000, answer=128, vocabulary=151_936),
    text=32_000,
    peers=_update("gpu/peers", 8, 151_936),
)
"""Qwen3-0.6B, and the largest shapes of `recipes/search_0.6b_single_gpu.toml`."""

TINY = Scale(
    name="tiny",
    vocabulary=1_200,
    width=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    mlp=96,
    context=256,
    product=256,
    trees=3,
    tree_tokens=(40, 160),
    budget=512,
    small_budget=128,
    update=_update("gpu/tiny", 2, 1_200, part=16),
    gradient=_update("gpu/gradient/tiny", 2, 1_200, part=16),
    requests=16,
    prompt=24,
    longest=120,
    decode=6,
    turns=(4, 20, 5),
    greedy=(3, 6),
    people=200,
    searches=100,
    answers=10,
    vectors=2_000,
    size=_update("gpu/size/tiny", 2, 1_200, part=16),
    refiner=Shape(name="gpu/refiner/tiny", prompts=2, siblings=4, prompt=80, answer=8, vocabulary=1_200),
    text=400,
    peers=_update("gpu/peers/tiny", 2, 1_200, part=16),
    changes=(
        "grpo.prompts_per_step=2",
        "grpo.samples_per_prompt=2",
        "grpo.context=2048",
        "grpo.tokens_per_micro_batch=1024",
        "grpo.env.turn_tokens=24",
    ),
)
"""Runs on a CPU."""

SHAPES = {
    "qwen3_1.7b": replace(REAL, width=2_048, mlp=6_144),
    "qwen2.5_3b": replace(REAL, family="qwen2", width=2_048, layers=36, kv_heads=2, mlp=11_008),
    "qwen3_4b": replace(REAL, width=2_560, layers=36, heads=32, mlp=9_728),
}
"""Models of other sizes by name; all have one embedding for input and output."""


def shaped(scale: Scale, name: str) -> Scale:
    """The sizes of a check with another model; with tiny sizes, of its family alone."""
    other = SHAPES[name]
    return other if scale.name == REAL.name else replace(scale, family=other.family)
