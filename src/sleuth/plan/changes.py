"""Changes of a recipe that make it fit a card; each was tried by computing its phases again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
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

    stages = [index for index, stage in enumerate(recipe.stage) if stage.name in failing]
    edits = [edit for edit in EDITS if edit(recipe, stages, machine) is not None]
    for count in (1, 2):
        for chosen in combinations(edits, count):
            changed, keys = recipe, {}
            for edit in chosen:
                made = edit(changed, stages, machine)
                if made is not None:
                    changed, keys = made[0], keys | made[1]
            if fits(changed, machine.ranks):
                return Change(keys=keys)
    for ranks in MORE_RANKS if machine.device.name == "cuda" else ():
        if ranks > machine.ranks and fits(recipe, ranks):
            return Change(keys={}, ranks=ranks)
    return None


Edited = tuple[Recipe, dict[str, str]]
"""A recipe with one key changed, and the changed keys as `--set` takes them."""
Edit = Callable[[Recipe, Sequence[int], Machine], Edited | None]
"""(recipe, its stages without room, machine) -> the recipe with the key changed in these stages; None if that has no
effect."""


def _with_checkpointing(recipe: Recipe, stages: Sequence[int], machine: Machine) -> Edited | None:
    training = _training(recipe, stages)
    return _changed(
        recipe, "gradient_checkpointing", {at: True for at, one in training.items() if not one.gradient_checkpointing}
    )


def _with_fewer_tokens(share: int) -> Edit:
    def edit(recipe: Recipe, stages: Sequence[int], machine: Machine) -> Edited | None:
        changes = {}
        for at, stage in _training(recipe, stages).items():
            tokens = max(stage.tokens_per_micro_batch // share, LEAST_TOKENS, lengths_of(recipe, at).limit)
            if tokens < stage.tokens_per_micro_batch:
                changes[at] = tokens
        return _changed(recipe, "tokens_per_micro_batch", changes)

    return edit


def _with_bfloat16(recipe: Recipe, stages: Sequence[int], machine: Machine) -> Edited | None:
    if recipe.dtype == "bfloat16":
        return None
    return recipe.model_copy(update={"dtype": "bfloat16"}), {"dtype": "bfloat16"}


def _with_offload(recipe: Recipe, stages: Sequence[int], machine: Machine) -> Edited | None:
    if machine.device.name == "cpu":
        return None
    training = _training(recipe, stages)
    return _changed(recipe, "cpu_offload", {at: True for at, one in training.items() if not one.cpu_offload})


def _with_adapters(recipe: Recipe, stages: Sequence[int], machine: Machine) -> Edited | None:
    training = _training(recipe, stages)
    made = _changed(recipe, "lora", {at: LoraRecipe() for at, one in training.items() if one.lora is None})
    return None if made is None else (made[0], {f"{key}.rank": str(LoraRecipe().rank) for key in made[1]})


EDITS: tuple[Edit, ...] = (
    _with_checkpointing,
    _with_fewer_tokens(2),
    _with_fewer_tokens(4),
    _with_bfloat16,
    _with_offload,
    _with_adapters,
)
"""Those that change the result least first."""


def _is_valid(recipe: Recipe) -> bool:
    """Whether the keys of a changed recipe go together."""
    try:
        Recipe.model_validate(recipe.model_dump())
    except ValidationError:
        return False
    return True


def _training(recipe: Recipe, stages: Sequence[int]) -> dict[int, TrainingRecipe]:
    return {at: stage for at, stage in recipe.stages_of(TrainingRecipe).items() if at in stages}


def _changed(recipe: Recipe, key: str, values: dict[int, Any]) -> Edited | None:
    if not values:
        return None
    stages = tuple(
        stage.model_copy(update={key: values[at]}) if at in values else stage for at, stage in enumerate(recipe.stage)
    )
    keys = {f"stage.{at}.{key}": str(value).lower() for at, value in values.items()}
    return recipe.model_copy(update={"stage": stages}), keys
