"""`kind = "evaluate"`: questions that are asked and counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from sleuth.recipe.data import EvalQuestionsRecipe
from sleuth.recipe.envs import EnvRecipe, ThoughtEnvRecipe
from sleuth.recipe.judges import ContinuationJudgeTable
from sleuth.recipe.strict import FilePath, Name, Row, StrictModel, combination
from sleuth.recipe.text import PlacesRecipe, TextRecipe


class EvaluateRecipe(StrictModel):
    """Questions answered by the model as it stands; written to `eval/NAME.json`, and of a suite, each set
    to `eval/NAME@SET.json` and their mean to `eval/NAME.json`."""

    kind: Literal["evaluate"]
    name: Name
    """The file's name, such as "base" or "trained"."""
    temperature: NonNegativeFloat = 0.0
    """0 is greedy."""
    context: PositiveInt | None = None
    """Longest episode in tokens; absent: that of the nearest `grpo` stage."""
    data: EvalQuestionsRecipe
    """The questions to ask."""
    forced_search_arm: bool = False
    """Ask once more with the first action replaced by an opening search tag, for `eval/NAME_forced.json`: what a
    trained model gains over that is more than the habit of searching."""
    env: EnvRecipe | None = None
    """Absent: that of the nearest `grpo` stage, so that what is measured is what was trained."""


class ProbeRecipe(StrictModel):
    """The model's thoughts at held-out places against none, empty phrases, foreign ones and a teacher's, by what they
    make of the true suffix; written to `eval/NAME.json`, and into the model's folder as a certificate."""

    kind: Literal["probe"]
    name: Name
    """The file's name, such as "thoughts"."""
    data: Annotated[TextRecipe | PlacesRecipe, Field(discriminator="kind")]
    """The held-out texts, and where to think in them."""
    env: ThoughtEnvRecipe
    """Its budgets. With suffix_tokens each arm's suffixes are written too, for the judge."""
    samples: PositiveInt = 4
    """Thoughts at each place."""
    temperature: PositiveFloat = 1.0
    """At which thoughts and suffixes are sampled."""
    slots: PositiveInt = 64
    """Sequences the in-process engine writes at once; changes memory and speed."""
    judge: ContinuationJudgeTable | None = None
    """Who decides whether a written suffix comes to the true one; absent: none is written."""

    @combination
    def _written_for_somebody(self) -> Iterator[str]:
        if (self.judge is not None) != bool(self.env.suffix_tokens):
            yield "judge reads suffixes that are written: give it and env.suffix_tokens, or neither"


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
