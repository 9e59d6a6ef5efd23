"""A server that shares a card gets what the learner leaves of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleuth.host.hardware import read_cards
from sleuth.plan.fit import plan_for_cards
from sleuth.plan.memory import CUDA, SIZES, total
from sleuth.plan.phases import MARGIN, SERVER, Machine, learner_of, server_memory, server_share
from sleuth.plan.shapes import shape_of
from sleuth.recipe import GrpoRecipe, Recipe, load_recipe
from sleuth.recipe.grpo import PoolRecipe
from sleuth.types import SleuthError

GB = 10**9
CONTEXT = 4096
SINGLE_GPU = Path(__file__).parents[2] / "recipes" / "search_r1_slime_3b_single_gpu.toml"
LAUNCHED = "grpo.engine={ launch = 'vllm' }"


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe(SINGLE_GPU, (LAUNCHED,))


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


def test_a_server_has_what_its_memory_holds_in_flight_by_the_same_count_as_the_plan() -> None:
    weights = SIZES["bfloat16"] * shape_of(load_recipe(SINGLE_GPU).model)[0].weights
    for memory, expected in ((None, 256), (11 * GB, 62)):  # of the 32 x 8 of a step
        keys = () if memory is None else (f"grpo.engine.memory={memory // GB}GB",)
        recipe = load_recipe(SINGLE_GPU, ("grpo.engine={ launch = 'vllm', cards = [1] }", *keys))
        share = server_share(recipe, pool_of(recipe), 80 * GB, CONTEXT, shared=False, servers=1)
        assert share == (memory, expected)
        phases = plan_for_cards(recipe, read_cards("2 x h100-80")).phases
        [held] = [one for one in phases if (one.stage, one.name) == ("grpo", "servers")]
        assert (held.asked, held.at_once) == (256, expected)
        assert held.need is not None
        if memory is not None:
            assert expected == round(256 * (memory - SERVER - weights) / held.need.typical)
    told = load_recipe(SINGLE_GPU, ("grpo.engine={ launch = 'vllm', memory = '11GB', requests_at_once = 100 }",))
    assert server_share(told, pool_of(told), 80 * GB, CONTEXT, shared=True, servers=1)[1] == 100
    assert server_share(recipe, pool_of(recipe), None, CONTEXT, shared=True, servers=1)[0] == 11 * GB  # on a CPU


def test_a_server_on_the_cpu_gets_a_cache_for_its_requests(recipe: Recipe) -> None:
    assert server_memory(recipe, pool_of(recipe), None, None, CONTEXT) == 8 * GB
    assert server_memory(recipe, pool_of(recipe), 3 * GB, None, CONTEXT) == 3 * GB
