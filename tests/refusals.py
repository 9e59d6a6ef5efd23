"""The line of a refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sleuth.cli.pipeline import require_inputs
from sleuth.recipe import load_recipe
from sleuth.types import SleuthError


def line_of(call: Callable[..., object], *arguments: Any, **settings: Any) -> str:
    """The message of a call that is refused, which has to be one line."""
    with pytest.raises(SleuthError) as caught:
        call(*arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refused(recipe: Path, *overrides: str) -> str:
    """The message with which a recipe is refused before its first step."""
    return line_of(lambda: require_inputs(load_recipe(recipe, overrides)))
