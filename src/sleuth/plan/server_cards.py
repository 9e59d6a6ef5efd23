"""The cards of a machine that servers of a recipe have to themselves, beside those that train."""

from __future__ import annotations

import math
from dataclasses import replace
from urllib.parse import urlsplit

from sleuth.plan.episodes import Played
from sleuth.recipe import GrpoRecipe, Recipe
from sleuth.recipe.grpo import PoolRecipe

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SERVER_SHARE = 0.9
"""The share of its card that a server takes by default: vLLM 0.92, SGLang a little less."""


def ranks_and_servers(recipe: Recipe, cards: int) -> tuple[int, int]:
    """How many of the `cards` of a machine train, and how many have a server of their own, one each. Servers that would
    leave no card to train are taken to be elsewhere, and so are those of other machines."""
    pools = [stage.engine for stage in recipe.stages_of(GrpoRecipe).values()]
    servers = max((_own_cards(pool, cards) for pool in pools if pool is not None), default=0)
    return (cards - servers, servers) if servers < cards else (cards, 0)


def shares_learner_card(pool: PoolRecipe, ranks: int, servers: int) -> bool:
    """Whether a pool's server is on a card that trains, and sleeps during updates: on one of the first `ranks`, or,
    where the recipe names none, if no `servers` have cards of their own."""
    if pool.launch is None:
        return pool.sleeps and _here(pool) > 0
    return servers == 0 if pool.cards is None else min(pool.cards) < ranks


def played_by_server(played: Played, pool: PoolRecipe, ranks: int, servers: int) -> Played:
    """What each of `servers` generates of what `ranks` would generate alone as `played`."""
    if played.prompts is None:
        return replace(played, at_once=pool.requests_at_once, cache_memory=pool.memory)
    prompts = math.ceil(played.prompts * ranks / servers)
    at_once = min(pool.requests_at_once, prompts * played.samples)
    return replace(played, prompts=prompts, at_once=at_once, cache_memory=pool.memory)


def _own_cards(pool: PoolRecipe, cards: int) -> int:
    if pool.launch is None:
        return 0 if pool.sleeps else _here(pool)
    if pool.cards is not None:
        return 0 if 0 in pool.cards else len(pool.cards)  # the first card always trains
    return cards - 1  # all but those that train, of which there is one unless a launcher starts more


def _here(pool: PoolRecipe) -> int:
    return sum(urlsplit(url).hostname in LOOPBACK for url in pool.urls or ())
