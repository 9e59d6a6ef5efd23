"""Problems that ask for reasoning: `[[stage]]` of kind "reason"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from sleuth.recipe.strict import FilePath, Name, Row, StrictModel, combination


class ProblemsRecipe(StrictModel):
    """One test set: `[[stage.sets]]`."""

    layout: Literal["gsm8k", "math_500", "gpqa_diamond", "olympiad_bench"]
    """How its rows are written."""
    problems: FilePath
    """A .jsonl, .jsonl.gz or .parquet file (GPQA's a .csv too), here or on the hub: hf://OWNER/NAME/FILE."""
    limit: PositiveInt | None = None
    """Only the first so many."""


class ReasonRecipe(StrictModel):
    """Problems answered by the model as it stands, several times each: Mean@k and Pass@k in `eval/NAME.json`, and of
    each set, with every record, in `eval/NAME@SET.json`."""

    kind: Literal["reason"]
    name: Name
    """The file's name, such as "reasoning"."""
    sets: Annotated[Row[ProblemsRecipe], Field(min_length=1)]
    """The sets of problems, a file each."""
    samples: PositiveInt = 8
    """Answers to each problem: the k of Mean@k and Pass@k."""
    temperature: NonNegativeFloat = 0.6
    """At which they are sampled, from the whole vocabulary."""
    max_tokens: PositiveInt = 4_096
    """Tokens of an answer."""
    slots: PositiveInt = 64
    """Answers the in-process engine writes at once; changes memory and speed."""

    @combination
    def _samples_differ(self) -> Iterator[str]:
        layouts = [one.layout for one in self.sets]
        twice = next((layout for layout in layouts if layouts.count(layout) > 1), None)
        if twice is not None:
            yield f'sets has layout = "{twice}" twice; each set is a file of its own'
        if self.temperature == 0 and self.samples > 1:
            yield f"samples = {self.samples} of temperature = 0 are all the same; set samples = 1"
