"""A model's tokenizer, config and generation config, whose weights are not read, and what a check finds of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.utils import GENERATION_CONFIG_NAME

from sleuth.host.checksums import beside_weights, require_intact
from sleuth.render import find_eos_ids, load_tokenizer

Level = Literal["ok", "warning", "problem"]
"""A `problem` goes wrong in every use of the model, a `warning` in some."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`Finding("stop tokens", "problem", "a turn ends with <|im_end|>, which is no stop token", "add its id to
    eos_token_id in generation_config.json")`. `fix` is what would be right; empty if nothing is."""

    check: str
    level: Level
    line: str
    fix: str = ""

    def __str__(self) -> str:
        """`warning: history: ...; FIX`."""
        return f"{self.level}: {self.check}: {self.line}{f'; {self.fix}' if self.fix else ''}"


def shown(text: str, limit: int = 60) -> str:
    """A text in quotes on one line, its middle left out where it is longer than `limit` characters."""
    if len(text) > limit:
        text = f"{text[: limit // 2]} ... {text[-limit // 2 :]}"
    return repr(text)


def listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """What a folder or hub id holds beside weights. `config_problem` is why there is no `config`, and
    `generation_problem` why the file of the generation config, if there is one, cannot be used."""

    name: str
    tokenizer: PreTrainedTokenizerFast
    config: PreTrainedConfig | None
    config_problem: str
    generation: GenerationConfig | None
    generation_problem: str = ""

    @property
    def context(self) -> int | None:
        """The longest sequence that the model was made for; None if its config does not say."""
        if self.config is None:
            return None
        tokens = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return int(tokens) if tokens else None

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a completion: the tokenizer's, and the generation config's, or else the config's. Numbers
        that the tokenizer lacks are left out: nothing samples them."""
        generation = self.generation
        if generation is None and self.config is not None:
            generation = GenerationConfig.from_model_config(self.config)
        eos_ids = find_eos_ids(generation, self.tokenizer)
        return frozenset(number for number in eos_ids if 0 <= number < len(self.tokenizer))

    @property
    def controls(self) -> list[str]:
        """The names of control tokens, the longest first."""
        added = self.tokenizer.added_tokens_decoder.values()
        names = {str(token) for token in added if token.special} | set(map(self.token, self.eos_ids))
        return sorted(filter(None, names), key=lambda name: (-len(name), name))

    def token(self, number: int) -> str:
        """The name of a token."""
        return str(self.tokenizer.convert_ids_to_tokens(number))


def load_files(model: str) -> ModelFiles:
    """The files of a folder or hub id. Raises SleuthError if there is no such model, if one of the files is not that of
    the folder's checksums, or if there is no fast tokenizer."""
    require_intact(Path(model), beside_weights)
    tokenizer = load_tokenizer(model)
    config, config_problem, generation, generation_problem = None, "", None, ""
    try:
        config = cast(PreTrainedConfig, AutoConfig.from_pretrained(model, trust_remote_code=False))
    except Exception as error:  # what transformers raises depends on the file, and is found, not fatal
        config_problem = _reason(error)
    try:
        generation = GenerationConfig.from_pretrained(model)
        find_eos_ids(generation, tokenizer)
    except Exception as error:  # likewise; most base models have no such file
        generation = None
        generation_problem = _reason(error) if _has_generation_config(model) else ""
    return ModelFiles(
        name=model,
        tokenizer=tokenizer,
        config=config,
        config_problem=config_problem,
        generation=generation,
        generation_problem=generation_problem,
    )


def _has_generation_config(model: str) -> bool:
    if Path(model).is_dir():
        return (Path(model) / GENERATION_CONFIG_NAME).exists()
    return isinstance(try_to_load_from_cache(model, GENERATION_CONFIG_NAME), str)  # whoever tried to read it has it


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
