"""Whole runs on several ranks, and what they leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from processes import on_ranks

from sleuth.cli.pipeline import run_recipe
from sleuth.learn.policy import Policy
from sleuth.ranks import Ranks
from sleuth.recipe import load_recipe
from sleuth.runs.run_folder import open_on
from sleuth.training import learning


def run_on(world: int, recipe: Path, folder: Path, *overrides: str) -> Path:
    """Run a recipe, or go on with it; the last checkpoint."""
    checkpoints = on_ranks(world, _run, recipe, folder, overrides)
    assert len(set(checkpoints)) == 1, "every rank is told the same"
    return checkpoints[0]


def _run(ranks: Ranks, recipe: Path, folder: Path, overrides: tuple[str, ...]) -> Path:
    resolved = load_recipe(recipe, overrides)
    with open_on(ranks, folder, resolved) as place:
        return run_recipe(resolved, place, ranks)


def run_short_of_memory(recipe: Path, folder: Path, *overrides: str, most: int) -> Path:
    """The same on two ranks, of which the other has no memory for an update with more than `most` tokens at once."""
    return on_ranks(2, _run_short_of_memory, recipe, folder, overrides, most)[0]


def _run_short_of_memory(ranks: Ranks, recipe: Path, folder: Path, overrides: tuple[str, ...], most: int) -> Path:
    class Scarce(Policy):
        def minimise(self, *arguments: Any, budget: int, **named: Any) -> Any:
            self.short = ranks.rank == 1 and budget > most
            return super().minimise(*arguments, budget=budget, **named)

        def _backward(self, *arguments: Any) -> dict[str, float]:
            sums = super()._backward(*arguments)
            if self.short:  # behind the first pass, when the first rank begins the second
                raise torch.OutOfMemoryError("CUDA out of memory")
            return sums

    with patch.object(learning, "Policy", Scarce):
        return _run(ranks, recipe, folder, overrides)
