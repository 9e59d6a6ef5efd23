"""A model that is asked as it stands, under the name that files give it."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.factories import context_of, load_model
from sleuth.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """`name` is the folder or hub id that it was read from."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast

    @property
    def holds(self) -> int:
        """Tokens of the longest sequence that it says it was made for."""
        return context_of(self.model)


def load_named(name: str, recipe: Recipe) -> NamedModel:
    """A folder or a hub id, in the recipe's precision, on its device. Raises SleuthError where no model is there."""
    model, tokenizer = load_model(name, dtype=recipe.dtype, device=recipe.device)
    return NamedModel(name=name, model=model, tokenizer=tokenizer)
