"""What a new kind of reward has to touch: its own code, its table, and one line of a family."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Literal

import sleuth
from sleuth.answers.tables import EpisodeRewardRecipe
from sleuth.recipe import GrpoRecipe, load_recipe

ROOT = Path(__file__).parents[1]
SOURCE = Path(sleuth.__file__).parent


class BriefRecipe(EpisodeRewardRecipe):
    """1 for a brief episode."""

    kind: Literal["brief"]
    measure = staticmethod(lambda episode, dialect: float(len(episode.trajectory.text) < 10_000))


def test_a_reward_of_a_new_kind_does_not_fit_a_refiner_unless_it_says_so() -> None:
    refiner = load_recipe(ROOT / "recipes" / "tiny" / "refiner.toml").stages_of(GrpoRecipe).popitem()[1]
    stage = refiner.model_copy(update={"reward": (BriefRecipe(kind="brief"),)})
    [problem] = [problem for check in stage.combinations() for problem in check(stage)]
    assert "needs an env that searches" in str(problem)


def test_kinds_of_recipe_tables_are_compared_in_few_places() -> None:
    """An `isinstance` narrows a type where one kind has something to do; a row of them belongs into the tables, as
    methods."""
    found = Counter(
        str(file.relative_to(SOURCE))
        for file in SOURCE.rglob("*.py")
        for line in file.read_text().splitlines()
        if re.search(r"isinstance\(.*Recipe", line)
    )
    assert found.total() <= 42, found
    assert max(found.values()) <= 7, found.most_common(3)
