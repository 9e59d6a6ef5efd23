"""A server that shares a card gets what the learner leaves of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleuth.plan.memory import CUDA, total
from sleuth.plan.phases import Machine, learner_of
from sleuth.plan.server_memory import MARGIN, server_memory
from sleuth.plan.shapes import shape_of
from sleuth.recipe import GrpoRecipe, Recipe, load_recipe
from sleuth.recipe.grpo import PoolRecipe
from sleuth.types import SleuthError

GB = 10**9
CONTEXT = 4096
RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe(RECIPES / "search_r1_slime_3b_single_gpu.toml", ("grpo.engine={ launch = 'vllm' }",))


def pool_of(recipe: Recipe) -> PoolRecipe:
    [pool] = [stage.engine for stage in recipe.stage if isinstance(stage, GrpoRecipe)]
    assert pool is not None
    return pool


def test_a_server_gets_what_the_learner_leaves_of_the_card(recipe: Recipe) -> None:
    [index] = [at for at, stage in enumerate(recipe.stage) if isinstance(stage, GrpoRecipe)]
    machine = Machine(device=CUDA, memory=141 * GB, ranks=1)
    learner = learner_of(recipe, index, shape_of(recipe.model)[0], machine)
    left = 141 * GB - CUDA.libraries - total(learner.state()[0]) - MARGIN
    assert server_memory(recipe, pool_of(recipe), None, 141 * GB, CONTEXT) == left
    assert 30 * GB < left < 141 * GB


def test_a_model_that_leaves_no_room_is_one_line_with_the_remedies(recipe: Recipe) -> None:
    with pytest.raises(SleuthError, match=r"is too large for a server with 8\.7 GB: .*engine\.memory.*engine\.cards"):
        server_memory(recipe, pool_of(recipe), None, 24 * GB, CONTEXT)
    with pytest.raises(SleuthError, match=r"is too large for a server with 5\.0 GB"):
        server_memory(recipe, pool_of(recipe), 5 * GB, 80 * GB, CONTEXT)


def test_a_server_on_the_cpu_gets_a_cache_for_its_requests(recipe: Recipe) -> None:
    assert server_memory(recipe, pool_of(recipe), None, None, CONTEXT) == 8 * GB
    assert server_memory(recipe, pool_of(recipe), 3 * GB, None, CONTEXT) == 3 * GB
