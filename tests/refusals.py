"""The message with which a recipe is refused before its first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleuth.cli.pipeline import require_inputs
from sleuth.recipe import load_recipe
from sleuth.types import SleuthError


def refused(recipe: Path, *overrides: str) -> str:
    """The message, which has to be one line."""
    with pytest.raises(SleuthError) as caught:
        require_inputs(load_recipe(recipe, overrides))
    assert "\n" not in str(caught.value)
    return str(caught.value)
