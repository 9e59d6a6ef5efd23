"""Small models with the shapes and files of real ones: a random policy, and a judge that always answers."""

from __future__ import annotations

from pathlib import Path

import torch
from chat_tokenizers import EMPTY_THOUGHT, chat_tokenizer
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

WINDOW = 41
"""Tokens that the judge sees: an entry of a sheet, and nothing of the question."""
ANSWER = "<answer>So it is.</answer>"
LIKES = {'"': 4.0, "0": 2.0, "1": 0.01}


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


def _config(tokenizer: PreTrainedTokenizerFast, positions: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
    )


def _saved(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
