"""What a stage reads: `[stage.data]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from sleuth.recipe.strict import FilePath, Row, StrictModel, combination

TextKind = Literal[
    "reading",
    "twins",
    "phrasing",
    "lookup",
    "plan",
    "episode",
    "placing",
    "citing",
    "strangers",
    "namesakes",
    "refining",
]
"""A kind of row of text about a generated world: `sleuth.world.text` tells what each is."""


class WorldTextRecipe(StrictModel):
    """Rows of text about a generated world, made anew from the recipe's seed; no file is needed."""

    kind: Literal["world_text"]
    people: PositiveInt
    """How many people live in the world."""
    mix: Annotated[dict[TextKind, PositiveFloat], Field(min_length=1)]
    """Kind of row -> how often it is drawn, relative to the others."""


AskWith = Literal["question", "prompt"]
"""What stands in an environment's prompt where that has its question: the question, or a row's whole message."""


class QuestionsRecipe(StrictModel):
    """Questions with their golden answers."""

    questions: FilePath
    """A .jsonl, .jsonl.gz or .parquet file of questions, here or on the hub: hf://OWNER/NAME/FILE."""
    kinds: Row[str] = ()
    """Only questions of these kinds; empty takes all."""
    limit: PositiveInt | None = None
    """Only the first so many of them."""
    ask_with: AskWith = "question"
    """What stands at the prompt's {question}: the question, or the whole user message that the row brings
    (Search-R1's parquet files do); prompt = "bare" is nothing but that place."""


class AnsweredRowsRecipe(QuestionsRecipe):
    """Rows that bring an answer of their own, which is taught as what follows the prompt."""

    kind: Literal["rows"]


class ExaminationRecipe(StrictModel):
    """What an evaluation asks: one file of questions, or a suite of test sets."""

    questions: FilePath | None = None
    """A .jsonl, .jsonl.gz or .parquet file of questions, here or on the hub: hf://OWNER/NAME/FILE."""
    kinds: Row[str] = ()
    """Only questions of these kinds; empty takes all."""
    limit: PositiveInt | None = None
    """Only the first so many of them."""
    ask_with: AskWith = "question"
    """What stands at the prompt's {question}: the question, or the whole user message that the row brings."""
    suite: FilePath | None = None
    """Instead of `questions`: a folder of test sets (`nq/test.jsonl`, ...), here or on the hub, or a suite by name."""
    per_set: PositiveInt | None = None
    """Ask only so many questions of each set, chosen by a hash of their ids: the same ones for ever."""

    @combination
    def _one_source(self) -> Iterator[str]:
        if self.questions is None and self.suite is None:
            yield "questions is missing: name a file of them, or a suite of test sets"
        if self.questions is not None and self.suite is not None:
            yield "suite stands beside questions; leave one of the two out"
        file_only = {"kinds": self.kinds, "limit": self.limit, "ask_with": self.ask_with == "prompt"}
        for key in (name for name, given in file_only.items() if given and self.suite is not None):
            yield f"{key} is for a file of questions; of a suite, per_set chooses"
        if self.per_set is not None and self.suite is None:
            yield f"per_set = {self.per_set} is for a suite; of a file, limit takes the first so many"
