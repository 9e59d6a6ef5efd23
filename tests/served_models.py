"""Small models with the shapes and files of real ones: a random policy, a judge that always answers, and two that
copy: a teacher that writes questions, and a policy that quotes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from chat_tokenizers import EMPTY_THOUGHT, chat_tokenizer
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from sleuth.episodes.library import read_prompt
from sleuth.judges.judge_prompts import prompt_text
from sleuth.world.names import words_for

WINDOW = 41
"""Tokens that the judge sees: an entry of a sheet, and nothing of the question."""
ANSWER = "<answer>So it is.</answer>"
LIKES = {'"': 4.0, "0": 2.0, "1": 0.01}
BEGIN, KEYS = "<|im_start|>", ("questions", "question", "answer")
HEAD = 256
"""Numbers of a head. Kinds of tokens are the last of its first half, which hardly turn with the position."""
FIRST, FAMILY, TOWN, MARK, BRACKET, REST = range(HEAD // 2 - 6, HEAD // 2)
COPIES_NOTHING, SEES_NOTHING = HEAD // 2, HEAD // 2 + 1
ALWAYS, COPIED, FOUND = 0, HEAD, 380
"""Where a hidden state has a 1, the name that is copied, and the kind that is found."""


def random_policy(folder: Path, *, positions: int = 16_384) -> Path:
    """A random Qwen3 that is likely to write `ANSWER` when its turn begins, saved with a tokenizer and its template."""
    torch.manual_seed(0)
    tokenizer = chat_tokenizer(EMPTY_THOUGHT)
    model = Qwen3ForCausalLM(_config(tokenizer, positions))
    opened = tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}], add_generation_prompt=True, tokenize=False
    )
    written = tokenizer.encode(opened, add_special_tokens=False)[-1:] + tokenizer.encode(
        ANSWER, add_special_tokens=False
    )
    with torch.no_grad():
        for at, (token, following) in enumerate(zip(written, [*written[1:], tokenizer.eos_token_id], strict=True)):
            model.model.embed_tokens.weight[token, at] += 1.0
            model.lm_head.weight[following, at] += 1.0
    return _saved(model, tokenizer, folder)


def counting_judge(folder: Path, *, positions: int = 16_384) -> Path:
    """A Qwen3 whose weights are set by hand. Held to the schema of a question it gives a valid verdict of 0, whatever
    it has read: it prefers to end a text, then the score 0, dislikes white space, and its one head, which sees the
    tokens since the last entry of a sheet evenly, makes the number after the one that it saw there likelier."""
    tokenizer = chat_tokenizer(EMPTY_THOUGHT)
    config = _config(tokenizer, positions)
    config.use_sliding_window, config.sliding_window, config.max_window_layers = True, WINDOW, 0
    config.layer_types = ["sliding_attention"] * config.num_hidden_layers
    model = Qwen3ForCausalLM(config)
    layer = model.model.layers[0].self_attn
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.endswith("norm.weight"):
                weight.zero_()
        model.model.embed_tokens.weight[:, 0] = 1.0
        for token in range(len(tokenizer)):
            text = tokenizer.decode([token])
            model.lm_head.weight[token, 0] = LIKES.get(text.strip(), 0.0) if text.strip() else -1.0
            if len(text) == 1 and text in "123456789":
                number = int(text)
                model.model.embed_tokens.weight[token, number] = 1.0
                model.lm_head.weight[token, 10 + number - 1] = 1.0
        for number in range(1, 10):
            layer.v_proj.weight[number, number] = 1.0
            layer.o_proj.weight[10 + number, number] = 1.0
    return _saved(model, tokenizer, folder)


def birthplace_teacher(folder: Path, *, positions: int = 2048) -> Path:
    """A Qwen3 whose weights are set by hand. Held to the schemas of `sleuth.read.writers`, it writes one question about
    a passage of the world, `Where was Ada Voss born?`, with the town that the passage names, and answers any question
    with the town of its passages, or with nothing where they have none."""
    prompts = [prompt_text(name) for name in ("questions", "two_hop", "answer", "answer_unaided")]
    tokenizer = chat_tokenizer(EMPTY_THOUGHT, extra=[*prompts, " Where", *(f'"{key}' for key in KEYS)])
    model = _copying_model(
        tokenizer,
        positions,
        marks={"?": MARK},
        copies={" was": FIRST, FIRST: FAMILY, '"': TOWN},
        looks={'"': MARK},
        follows=[(" Where", " was"), (FAMILY, " born"), (" born", "?"), ("?", '"'), (TOWN, '"'), ("}", "]")],
        found={MARK: '"', SEES_NOTHING: " Where"},  # behind a question mark an answer is due
    )
    with torch.no_grad():  # keys in one piece, an entry rather than none, and no white space
        for token in range(len(tokenizer)):
            text = tokenizer.decode([token])
            model.lm_head.weight[token, ALWAYS] = 1.0 if text in (*KEYS, "{") else -5.0 * text[:1].isspace()
    return _saved(model, tokenizer, folder)


def quoting_policy(folder: Path, *, positions: int = 4096) -> Path:
    """A Qwen3 whose weights are set by hand to play the dialect `quoting`: it searches for the person that it is asked
    about, answers with the town of what was found, which it quotes in about half of its answers, and else says that it
    is not in the documents."""
    tokenizer = chat_tokenizer(EMPTY_THOUGHT, extra=[read_prompt("quote_rules")])
    refusal = [" not", " in", " the", " documents", "</answer>"]
    model = _copying_model(
        tokenizer,
        positions,
        marks={"[1]": MARK, " [": BRACKET},
        copies={"<search>": FIRST, FIRST: FAMILY, "<answer>": TOWN, " [": TOWN},
        looks={"</think>": MARK, TOWN: BRACKET},
        follows=[
            ("\n", "<think>"),
            ("<think>", " is"),
            (" is", "</think>"),
            ("</think>", "<search>"),
            (FAMILY, "</search>"),
            (TOWN, " ["),
            (TOWN, "</answer>"),
            ("]", "</answer>"),
            *pairwise(refusal),
        ],
        found={MARK: "<answer>", BRACKET: "]", COPIES_NOTHING: " not"},
    )
    return _saved(model, tokenizer, folder)


def _copying_model(
    tokenizer: PreTrainedTokenizerFast,
    positions: int,
    *,
    marks: Mapping[str, int],
    copies: Mapping[str | int, int],
    looks: Mapping[str | int, int],
    follows: Iterable[tuple[str | int, str]],
    found: Mapping[int, str],
) -> Qwen3ForCausalLM:
    """One layer of two heads; names of the world are of the kinds `FIRST`, `FAMILY` and `TOWN`, other tokens of those
    of `marks`. The first head copies after a token a name of a kind. The second looks for a kind of mark and makes what
    is `found` by it likelier. A token is followed by those of `follows`. A kind in a token's place is all its names.
    A head without what it seeks rests on the begin of a message, which `found` knows too."""
    words = words_for(200)
    names = {f" {name}": FIRST for name in words.first} | {f" {name}": FAMILY for name in words.family}
    names |= {f" {name}": TOWN for name in words.places}
    seen = names | marks | {BEGIN: REST}

    def texts(of: str | int) -> list[str]:
        return [of] if isinstance(of, str) else [name for name, kind in names.items() if kind == of]

    token = {tokenizer.decode([at]): at for at in range(len(tokenizer))}
    told = [text for of in (*copies, *looks, *(one for one, _ in follows)) for text in texts(of)]
    own = {text: at for at, text in enumerate(dict.fromkeys((*seen, *told)), ALWAYS + 1)}
    model = Qwen3ForCausalLM(_config(tokenizer, positions, hidden_size=512, head_dim=HEAD))
    attention, embedded, head = model.model.layers[0].self_attn, model.model.embed_tokens.weight, model.lm_head.weight
    query, key, value, out = (getattr(attention, f"{name}_proj").weight for name in "qkvo")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.endswith("norm.weight"):
                weight.zero_()
        attention.q_norm.weight.fill_(2.0)  # sharper
        embedded[:, ALWAYS] = 1.0
        for text, at in own.items():
            embedded[token[text], at] = 1.0
        for text, kind in seen.items():
            key[kind, own[text]] = value[own[text], own[text]] = 1.0
        for first, sought in ((0, copies), (HEAD, looks)):
            for of, kind in sought.items():
                for text in texts(of):
                    query[first + kind, own[text]], query[first + REST, own[text]] = 1.0, 0.5
        for text, at in ((name, own[name]) for name in names):
            out[COPIED + at, at], head[token[text], COPIED + at] = 1.0, 2.0
        for text, kind in marks.items():
            out[FOUND + kind, HEAD + own[text]] = 1.0
        out[FOUND + COPIES_NOTHING, own[BEGIN]] = out[FOUND + SEES_NOTHING, HEAD + own[BEGIN]] = 1.0
        for kind, text in found.items():
            head[token[text], FOUND + kind] = 4.0 if kind in (COPIES_NOTHING, SEES_NOTHING) else 1.0
        for of, following in follows:
            for text in texts(of):
                head[token[following], own[text]] = 10.0
    return model


def _config(tokenizer: PreTrainedTokenizerFast, positions: int, **others: int) -> Qwen3Config:
    shape: dict[str, Any] = {
        "hidden_size": 64,
        "head_dim": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    } | others
    return Qwen3Config(
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        intermediate_size=128,
        num_hidden_layers=1,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        **shape,
    )


def _saved(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
