"""The pages of reference that the code writes are complete: no recipe key and no figure is without its meaning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from sleuth.recipe import Recipe
from sleuth.recipe.load import JudgeFile, RewardFile, TeacherFile
from sleuth.recipe.strict import models_in
from sleuth.recipe.sweep import SweepRecipe
from sleuth.runs.metrics import meaning_of, step_figures

SOURCE = Path(__file__).parents[2] / "src" / "sleuth"


def tables(*models: type[BaseModel]) -> set[type[BaseModel]]:
    found = set(models)
    for model in models:
        inner = {one for field in model.model_fields.values() for one in models_in(field)}
        found |= tables(*(inner - found))
    return found


MODELS = sorted(tables(Recipe, SweepRecipe, JudgeFile, RewardFile, TeacherFile), key=lambda model: model.__name__)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_table_and_key_of_a_recipe_says_what_it_means(model: type[BaseModel]) -> None:
    assert model.__doc__
    silent = [key for key, field in model.model_fields.items() if not field.description and key != "kind"]
    assert silent == []


def test_every_figure_of_the_glossary_is_one_that_the_code_writes() -> None:
    files = [
        file for file in SOURCE.rglob("*.py") if file != SOURCE / "runs" / "metrics.py" and file.name != "figures.py"
    ]
    written = set(re.findall(r"\w+", "\n".join(file.read_text(encoding="utf-8") for file in files)))
    computed = {f"judge_{name}" for name in ("asked", "cached", "missing", "invalid")}  # by the names of a tally
    computed |= {"citation_discipline", "off_query_padding", "wrong_entity_confabulation"}  # by criteria's titles
    named = {row.name for row in step_figures() if "*" not in row.name}
    assert named - written - computed == set()


def test_a_figure_whose_name_is_put_together_has_a_meaning() -> None:
    assert meaning_of("score_search_r1") == meaning_of("score_slime")
    assert meaning_of("score_brevity/step") not in (None, meaning_of("score_brevity"), meaning_of("step"))
    assert meaning_of("held_out_reading") is not None
    assert meaning_of("nothing_of_the_kind") is None
