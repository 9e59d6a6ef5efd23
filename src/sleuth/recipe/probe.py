"""What tells whether thoughts are of use: `[[stage]]` of kind "probe"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from sleuth.recipe.envs import ThoughtEnvRecipe
from sleuth.recipe.judges import ContinuationJudgeTable
from sleuth.recipe.strict import Name, StrictModel, combination
from sleuth.recipe.text import PlacesRecipe, TextRecipe


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
