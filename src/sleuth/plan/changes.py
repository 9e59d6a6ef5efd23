"""Changes of a recipe that make it fit a card; each was tried by computing its phases again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

from pydantic import ValidationError

from sleuth.plan.episodes import lengths_of
from sleuth.plan.phases import Machine, phases_of, problems_of
from sleuth.plan.shapes import ModelShape
from sleuth.recipe import Recipe, TrainingRecipe
from sleuth.recipe.training import LoraRecipe

MORE_RANKS = (2, 4, 8, 16)
"""Numbers of ranks that are tried where no keys make a recipe fit."""
LEAST_TOKENS = 1_024
"""Smaller micro-batches are not proposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a recipe's keys, `{"stage.1.cpu_offload": "true"}`, or another number of ranks."""

    keys: dict[str, str]
    ranks: int | None = None

    def __str__(self) -> str:
        keys = [f"--set {key}={value}" for key, value in self.keys.items()]
        return " ".join([*keys, *([f"--ranks {self.ranks}"] if self.ranks else [])])


def change_that_fits(recipe: Recipe, shape: ModelShape, machine: Machine, failing: Collection[str]) -> Change | None:
    """The first change of one key, then of two, then of ranks, with which every phase has room; each was tried, and the
    recipe stays valid. A key is changed in every training stage of the `failing` ones."""

    def fits(changed: Recipe, ranks: int) -> bool:
        on = replace(machine, ranks=ranks)
        return _is_valid(changed) and not problems_of(phases_of(changed, shape, on), machine.memory)

    stages = [at for at, stage in recipe.stages_of(TrainingRecipe).items() if stage.name in failing]
    edits = [edit for edit in EDITS if edit(recipe, stages, machine)[1]]
    for count in (1, 2):
        for chosen in combinations(edits, count):
            changed, keys = recipe, {}
            for edit in chosen:
                changed, more = edit(changed, stages, machine)
                keys |= more
            if fits(changed, machine.ranks):
                return Change(keys=keys)
    for ranks in MORE_RANKS if machine.device.name == "cuda" else ():
        if ranks > machine.ranks and fits(recipe, ranks):
            return Change(keys={}, ranks=ranks)
    return None


Edit = Callable[[Recipe, Sequence[int], Machine], tuple[Recipe, dict[str, str]]]
"""(recipe, its stages without room, machine) -> the recipe with one key changed in these stages, and the changed keys
as `--set` takes them; none if that has no effect."""


def _with_bfloat16(recipe: Recipe, stages: Sequence[int], machine: Machine) -> tuple[Recipe, dict[str, str]]:
    keys = {} if recipe.dtype == "bfloat16" else {"dtype": "bfloat16"}
    return recipe.model_copy(update=keys), keys


def _with(key: str, value_of: Callable[[Recipe, int, TrainingRecipe], Any], *, shown: str = "") -> Edit:
    """Sets a stage's `key` to `value_of` (recipe, index, stage), unless that is what it is; the change is shown as that
    of the key below it, if one is given."""

    def edit(recipe: Recipe, stages: Sequence[int], machine: Machine) -> tuple[Recipe, dict[str, str]]:
        changed, keys = list(recipe.stage), dict[str, str]()
        for at, stage in recipe.stages_of(TrainingRecipe).items():
            value = value_of(recipe, at, stage) if at in stages else getattr(stage, key)
            if value == getattr(stage, key) or (key == "cpu_offload" and machine.device.name == "cpu"):
                continue
            changed[at] = stage.model_copy(update={key: value})
            keys[f"stage.{at}.{key}{shown and f'.{shown}'}"] = str(getattr(value, shown) if shown else value).lower()
        return recipe.model_copy(update={"stage": tuple(changed)}), keys

    return edit


def _fewer_tokens(recipe: Recipe, at: int, stage: TrainingRecipe, share: int) -> int:
    tokens = max(stage.tokens_per_micro_batch // share, LEAST_TOKENS, lengths_of(recipe, at).limit)
    return min(tokens, stage.tokens_per_micro_batch)


EDITS: tuple[Edit, ...] = (
    _with("gradient_checkpointing", lambda recipe, at, stage: True),
    _with("tokens_per_micro_batch", partial(_fewer_tokens, share=2)),
    _with("tokens_per_micro_batch", partial(_fewer_tokens, share=4)),
    _with_bfloat16,
    _with("cpu_offload", lambda recipe, at, stage: True),
    _with("lora", lambda recipe, at, stage: stage.lora or LoraRecipe(), shown="rank"),
)
"""Those that change the result least first."""


def _is_valid(recipe: Recipe) -> bool:
    """Whether the keys of a changed recipe go together."""
    try:
        Recipe.model_validate(recipe.model_dump())
    except ValidationError:
        return False
    return True
