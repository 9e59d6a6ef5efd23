"""The tokenizer of a GGUF file: byte-level BPE, which llama.cpp splits into the same tokens, or none at all."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

from transformers import PreTrainedTokenizerFast

from sleuth.types import SleuthError

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
WORDS = BYTES | {"use_regex": True}
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
MARKS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _words_with_digits(digits: str) -> list[dict[str, Any]]:
    expression = rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{MARKS_AND_SPACES}"
    return [{"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}, BYTES]


PRE_TOKENIZERS: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "qwen2": (_words_with_digits(r"\p{N}"), False),
    "llama-bpe": (_words_with_digits(r"\p{N}{1,3}"), True),
    "gpt-2": ([WORDS], False),
    "smollm": ([{"type": "Digits", "individual_digits": True}, WORDS], False),
}
"""How a text is split before BPE, by llama.cpp's names: the steps in tokenizer.json, and whether `ignore_merges` is
set. llama.cpp has these expressions in its code, so a file names one and cannot bring its own."""
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Types of tokens. The texts of control and user-defined tokens are found before a text is split."""
END_KEYS = ("eos", "eot", "eom")
"""Tokens at which llama.cpp ends a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTokenizer:
    """What a GGUF file says of a tokenizer: `tokens` and `types` by id, `merges` as `"Ġ t"`, `special` ids by
    llama.cpp's names: {"eos": 151645, "padding": 151643}."""

    pre_tokenizer: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    special: dict[str, int]
    add_bos: bool
    add_eos: bool
    chat_template: str | None


def gguf_tokenizer(tokenizer: PreTrainedTokenizerFast, *, vocabulary: int, eos_ids: Collection[int]) -> GgufTokenizer:
    """The tokenizer of a model with `vocabulary` rows of embeddings that ends texts with `eos_ids`. Raises SleuthError
    where llama.cpp would split texts differently."""
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    pre_tokenizer = _pre_tokenizer_of(described)
    tokens, types = _tokens_of(described, vocabulary)
    add_bos, add_eos = _added_around(tokenizer)
    template = tokenizer.chat_template
    return GgufTokenizer(
        pre_tokenizer=pre_tokenizer,
        tokens=tokens,
        types=types,
        merges=tuple(" ".join(pair) for pair in described["model"]["merges"]),
        special=_special_ids(tokenizer, vocabulary, eos_ids),
        add_bos=add_bos,
        add_eos=add_eos,
        chat_template=template.get("default") if isinstance(template, dict) else template,
    )


def _pre_tokenizer_of(described: dict[str, Any]) -> str:
    """llama.cpp's name for how texts are split. Raises SleuthError if it has none."""
    model, normalizer = described["model"], described["normalizer"] or {"type": "NFC"}
    if model["type"] != "BPE":
        raise SleuthError(f"its tokenizer is {model['type']}, which cannot be written to GGUF: only byte-level BPE is")
    unusual = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    settings = [key for key in unusual if model[key]] + [normalizer["type"]] * (normalizer["type"] != "NFC")
    if settings:
        raise SleuthError(f"its tokenizer has {settings[0]}, which byte-level BPE in llama.cpp has not")
    given = described["pre_tokenizer"] or {}
    steps = given["pretokenizers"] if given.get("type") == "Sequence" else [given]
    steps = [{key: value for key, value in step.items() if key != "trim_offsets"} for step in steps]
    for name, (known, ignores_merges) in PRE_TOKENIZERS.items():
        if steps == known and model["ignore_merges"] == ignores_merges:
            return name
    raise SleuthError(
        "llama.cpp would split texts into other tokens: of the pre-tokenizers that it has, those are written that it "
        f"calls {', '.join(PRE_TOKENIZERS)}; this tokenizer.json has another, as Sleuth's tiny models do"
    )


def _tokens_of(described: dict[str, Any], vocabulary: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Text and type of every id; rows of embeddings without a token get unused ones."""
    known = {number: (token, NORMAL) for token, number in described["model"]["vocab"].items()}
    for added in described["added_tokens"]:
        if added["single_word"] or added["lstrip"] or added["rstrip"]:
            token = f"its added token {added['content']!r}"
            raise SleuthError(f"{token} takes in spaces or stands for whole words only, which llama.cpp does not do")
        known[added["id"]] = (added["content"], CONTROL if added["special"] else USER_DEFINED)
    if max(known) >= vocabulary:
        raise SleuthError(f"its tokenizer has a token {max(known)}, and the embeddings have only {vocabulary} rows")
    rows = [known.get(number, (f"[PAD{number}]", UNUSED)) for number in range(vocabulary)]
    return tuple(token for token, _ in rows), tuple(kind for _, kind in rows)


def _special_ids(tokenizer: PreTrainedTokenizerFast, vocabulary: int, eos_ids: Collection[int]) -> dict[str, int]:
    own = cast("int | None", tokenizer.eos_token_id)
    ends = sorted((number for number in eos_ids if number < vocabulary), key=lambda number: (number != own, number))
    if len(ends) > len(END_KEYS):
        raise SleuthError(f"it ends texts with {len(ends)} tokens, and a GGUF file names {len(END_KEYS)} at most")
    others = {"bos": tokenizer.bos_token_id, "unknown": tokenizer.unk_token_id, "padding": tokenizer.pad_token_id}
    named = {name: number for name, number in others.items() if isinstance(number, int)}
    return dict(zip(END_KEYS, ends, strict=False)) | named


def _added_around(tokenizer: PreTrainedTokenizerFast) -> tuple[bool, bool]:
    """Whether the tokenizer puts its first token before a text, and its last one behind it."""
    bare, whole = (tokenizer.encode("a", add_special_tokens=added) for added in (False, True))
    for add_bos, add_eos in product((False, True), repeat=2):
        if whole == [*[tokenizer.bos_token_id] * add_bos, *bare, *[tokenizer.eos_token_id] * add_eos]:
            return add_bos, add_eos
    raise SleuthError("its tokenizer puts other tokens around a text than its first and last, which GGUF cannot say")
