"""Who judges, and who teaches: a recipe's model as an object."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from sleuth.factories.thoughts import THINK
from sleuth.judges import LexicalJudge
from sleuth.judges.cache import NamedJudge, NamedPairJudge, NamedSheetJudge
from sleuth.judges.http import HttpJudge
from sleuth.judges.json_client import JsonClient
from sleuth.judges.nli import NliJudge
from sleuth.judges.pool import Ledger
from sleuth.judges.rubric_writer import RubricWriter
from sleuth.judges.served import wait_until_served
from sleuth.judges.thought_writer import ThoughtWriter
from sleuth.recipe.judges import (
    HttpJudgeRecipe,
    JudgeRecipe,
    LexicalJudgeRecipe,
    NliJudgeRecipe,
    ServedModelRecipe,
    TeacherRecipe,
)
from sleuth.types import SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJudge:
    """A judge that can be asked. `sheets` is None for one that judges by one criterion at a time, `pairs` for one that
    compares nothing, `ledger` for one that makes no calls."""

    judge: NamedJudge
    sheets: NamedSheetJudge | None = None
    pairs: NamedPairJudge | None = None
    ledger: Ledger | None = None

    @property
    def identity(self) -> str:
        """Changes whenever the same question could get another verdict."""
        return self.judge.identity


def judge_of(recipe: JudgeRecipe) -> OpenJudge:
    """The judge of a recipe, which is there. Raises SleuthError where its server does not serve its model, or it cannot
    be loaded."""
    require_there(recipe)
    return unasked(recipe)


def require_there(recipe: JudgeRecipe) -> None:
    """Wait while the servers of a judge are loading. Raises SleuthError where one does not answer or serves other
    models; a judge of this machine is there when it is loaded."""
    if isinstance(recipe, HttpJudgeRecipe):
        require_served(recipe)


def require_served(recipe: ServedModelRecipe) -> None:
    """Wait while the servers of a model are loading. Raises SleuthError where one does not answer or serves others."""
    if recipe.key_variable is not None and not _key(recipe):
        raise SleuthError(f"key_variable = {recipe.key_variable!r}: there is no such variable in the environment")
    wait_until_served(recipe.urls, recipe.model, key=_key(recipe), log=_say)


def unasked(recipe: JudgeRecipe) -> OpenJudge:
    """The judge of a recipe; whether its servers are there shows when they are asked."""
    if isinstance(recipe, LexicalJudgeRecipe):
        return OpenJudge(judge=LexicalJudge())
    if isinstance(recipe, NliJudgeRecipe):
        return OpenJudge(judge=NliJudge(recipe.model, device=recipe.device))
    http = HttpJudge(
        recipe.urls,
        recipe.model,
        timeout=recipe.seconds,
        at_once=recipe.at_once,
        max_tokens=recipe.max_tokens,
        budget=recipe.budget,
        extra=recipe.request,
        key=_key(recipe),
    )
    return OpenJudge(judge=http, sheets=http, pairs=http, ledger=http.ledger)


def rubric_writer_of(recipe: TeacherRecipe) -> RubricWriter:
    """The teacher of a recipe, who is there. Raises SleuthError where its server does not serve its model."""
    return RubricWriter(_json_client(recipe))


def thought_writer_of(recipe: TeacherRecipe) -> ThoughtWriter:
    """The teacher of a recipe, who is there. Raises SleuthError where its server does not serve its model."""
    return ThoughtWriter(_json_client(recipe), (THINK.open, THINK.close))


def _json_client(recipe: ServedModelRecipe) -> JsonClient:
    require_served(recipe)
    return JsonClient(
        recipe.urls,
        recipe.model,
        timeout=recipe.seconds,
        at_once=recipe.at_once,
        max_tokens=recipe.max_tokens,
        extra=recipe.request,
        key=_key(recipe),
        ledger=Ledger(budget=recipe.budget),
    )


def identity_of(recipe: JudgeRecipe) -> str:
    """Who judges, as it travels with a checkpoint. Asks nobody; a cross-encoder is loaded for it."""
    return unasked(recipe).identity


def _key(recipe: ServedModelRecipe) -> str | None:
    return os.environ.get(recipe.key_variable) if recipe.key_variable is not None else None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
