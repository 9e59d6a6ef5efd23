"""One word of the field for each thing: names of our own that were replaced do not come back."""

from __future__ import annotations

import tokenize
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from sleuth.recipe import Recipe
from sleuth.recipe.renamed import FIGURES, KEYS
from sleuth.recipe.strict import models_in
from sleuth.recipe.sweep import SweepRecipe

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "benchmarks", "tools", "examples")
NAMES = """
    StageRun stage_run Learner Preferrer Pupil Trainee Beginner Ahead Bench bench weighing weighed crediting
    Courier courier Line LineError Abilities abilities find_abilities Drafts drafts Writers CompiledWriters
    attend_stretch Limb limb limbs limb_loss takes_limbs Cut Pull pull pulls pulled pulled_logprobs dealing deal
    emphasis Reach reach told_apart TOLD_APART Seats seats Front Spoken Speaker speaker speaking_app Examination
    examination examination_of ExaminationRecipe asked_setting Wishes taken_over take_over retelling retold
    misfits_of also_forced signal_fraction mismatch_kl patience Patience PATIENCE pays charges EndlessOrder
    ArmsRecipe load_arms
"""
"""Identifiers. The other old names are ordinary words, which mean other things by right: line, place, cut, story."""


def python_files() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


def names_in(file: Path) -> set[str]:
    with open(file, "rb") as lines:
        return {token.string for token in tokenize.tokenize(lines.readline) if token.type == tokenize.NAME}


def keys_of(model: type[BaseModel]) -> Iterator[str]:
    """Every key of a model of TOML tables, whatever table it is in."""
    for key, field in model.model_fields.items():
        yield key
        for inner in models_in(field):
            yield from keys_of(inner)


def test_no_identifier_has_a_name_that_was_replaced() -> None:
    found = {str(file.relative_to(ROOT)): sorted(names_in(file) & set(NAMES.split())) for file in python_files()}
    assert {file: names for file, names in found.items() if names} == {}


def test_no_recipe_key_has_a_name_that_was_replaced() -> None:
    assert set(keys_of(Recipe)).isdisjoint({way[-1] for way in KEYS})
    assert set(KEYS.values()) <= set(keys_of(Recipe))
    assert set(keys_of(SweepRecipe)).isdisjoint({way[-1] for way in KEYS})


def test_no_figure_has_a_name_that_was_replaced() -> None:
    written = {name for file in python_files() for name in names_in(file)}
    assert written.isdisjoint(FIGURES)
