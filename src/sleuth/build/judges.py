"""Who judges: a recipe's judge as an object."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from sleuth.judges.http import HttpJudge
from sleuth.judges.ledger import Ledger
from sleuth.judges.nli import NliJudge
from sleuth.judges.served import wait_until_served
from sleuth.recipe.judges import HttpJudgeRecipe, JudgeRecipe, NliJudgeRecipe
from sleuth.types import Judge, PairJudge, SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJudge:
    """A judge that is there. `identity` changes whenever the same question could get another verdict; `pairs` is None
    for one that compares nothing, `ledger` for one that makes no calls."""

    identity: str
    judge: Judge
    pairs: PairJudge | None = None
    ledger: Ledger | None = None


def judge_of(recipe: JudgeRecipe) -> OpenJudge:
    """The judge of a recipe. Raises SleuthError where its server does not serve its model, or it cannot be loaded."""
    if isinstance(recipe, NliJudgeRecipe):
        nli = NliJudge(recipe.model, device=recipe.device)
        return OpenJudge(identity=nli.identity, judge=nli)
    key = _key(recipe)
    wait_until_served(recipe.urls, recipe.model, key=key, say=lambda line: print(line, file=sys.stderr, flush=True))
    http = HttpJudge(
        recipe.urls,
        recipe.model,
        timeout=recipe.seconds,
        at_once=recipe.at_once,
        max_tokens=recipe.max_tokens,
        budget=recipe.budget,
        extra=recipe.request,
        key=key,
    )
    return OpenJudge(identity=http.identity, judge=http, pairs=http, ledger=http.ledger)


def _key(recipe: HttpJudgeRecipe) -> str | None:
    if recipe.key_variable is None:
        return None
    key = os.environ.get(recipe.key_variable)
    if not key:
        raise SleuthError(f"key_variable = {recipe.key_variable!r}: there is no such variable in the environment")
    return key
