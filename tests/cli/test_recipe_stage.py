"""A verb that does one stage of a recipe by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from verb import sleuth

DEMO = Path(__file__).parents[2] / "recipes" / "demo.toml"


@pytest.mark.parametrize(
    ("verb", "option", "kind", "purpose"),
    [
        ("eval", "--reasoning", "reason", "ask"),
        ("eval", "--win-rate", "win_rate", "compare"),
        ("probe", "--thoughts", "probe", "probe"),
    ],
)
def test_a_recipe_without_such_a_stage_is_one_line(verb: str, option: str, kind: str, purpose: str) -> None:
    done = sleuth(verb, "a-model", option, DEMO)
    assert done.exit_code == 2
    assert done.stderr == f'error: {DEMO}: has no stage of kind = "{kind}" to {purpose} as; add one\n'
