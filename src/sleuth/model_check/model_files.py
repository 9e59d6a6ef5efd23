"""A model's tokenizer, config and generation config; its weights are not read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerFast

from sleuth.engines.stops import find_eos_ids
from sleuth.render import load_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """What a folder or hub id holds beside weights. `config_problem` is why there is no `config`."""

    name: str
    tokenizer: PreTrainedTokenizerFast
    config: PreTrainedConfig | None
    config_problem: str
    generation: GenerationConfig | None

    @property
    def context(self) -> int | None:
        """The longest sequence that the model was made for; None if its config does not say."""
        if self.config is None:
            return None
        tokens = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return int(tokens) if tokens else None

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a completion: the tokenizer's, and the generation config's, or else the config's."""
        generation = self.generation
        if generation is None and self.config is not None:
            generation = GenerationConfig.from_model_config(self.config)
        return find_eos_ids(generation, self.tokenizer)

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
    """The files of a folder or hub id. Raises SleuthError if there is no such model, or no fast tokenizer in it."""
    tokenizer = load_tokenizer(model)
    config, problem = None, ""
    try:
        config = cast(PreTrainedConfig, AutoConfig.from_pretrained(model, trust_remote_code=False))
    except (OSError, ValueError, KeyError) as error:
        problem = " ".join(str(error).split())[:200]
    try:
        generation = GenerationConfig.from_pretrained(model)
    except (OSError, ValueError):  # most base models have none
        generation = None
    return ModelFiles(name=model, tokenizer=tokenizer, config=config, config_problem=problem, generation=generation)
