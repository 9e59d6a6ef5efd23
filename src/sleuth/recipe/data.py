"""What a stage reads: `[stage.data]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from sleuth.recipe.strict import FilePath, Row, StrictModel


class WorldTextRecipe(StrictModel):
    """Rows of text about a generated world, made anew from the recipe's seed; no file is needed."""

    kind: Literal["world_text"]
    people: PositiveInt
    """How many people live in the world."""
    mix: Annotated[
        dict[Literal["reading", "twins", "phrasing", "lookup", "plan", "episode"], PositiveFloat], Field(min_length=1)
    ]
    """Kind of row -> how often it is drawn, relative to the others."""


class QuestionsRecipe(StrictModel):
    """Questions with their golden answers."""

    questions: FilePath
    """A .jsonl, .jsonl.gz or .parquet file of questions."""
    kinds: Row[str] = ()
    """Only questions of these kinds; empty takes all."""
    limit: PositiveInt | None = None
    """Only the first so many of them."""
