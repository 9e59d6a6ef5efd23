from __future__ import annotations

import tomllib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sleuth.recipe import dump_toml, load_recipe
from sleuth.recipe.draft import emit_value

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
PLAIN = st.one_of(
    TEXT, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    PLAIN, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)), max_leaves=8
)


@given(VALUES)
def test_an_emitted_value_is_one_line_that_reads_back_equal(value: object) -> None:
    line = emit_value(value)
    assert "\n" not in line
    assert tomllib.loads(f"key = {line}") == {"key": value}


def test_the_resolved_copy_of_a_recipe_reads_back_equal(demo: Path, pretraining: Path, tmp_path: Path) -> None:
    for path, overrides in ((demo, ["stage.1.stop_after=5", "stage.1.betas=[0.8,0.9]"]), (pretraining, [])):
        recipe = load_recipe(path, overrides)
        copy = tmp_path / "resolved.toml"
        copy.write_text(dump_toml(recipe), encoding="utf-8")
        assert load_recipe(copy) == recipe
        assert path == pretraining or "clip_high = 0.28" in copy.read_text()  # defaults too
        assert dump_toml(load_recipe(copy)) == dump_toml(recipe)
