"""The table of the judge that knows how texts end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from sleuth.recipe.judges import JudgeFields
from sleuth.think.suffix_judge import EndingJudge

if TYPE_CHECKING:
    from sleuth.judges.factory import OpenJudge


class EndingJudgeRecipe(JudgeFields):
    """Compares with the right ending, where the data has one (`golden_answers`), without a model."""

    subjects: ClassVar[tuple[Literal["claims", "continuations"], ...]] = ("continuations",)
    needs_endings: ClassVar[bool] = True
    kind: Literal["ending"] = "ending"
    flip: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Share of its verdicts that are inverted, to measure the effect of a judge's errors on training."""

    def open(self) -> OpenJudge:
        from sleuth.judges.factory import OpenJudge

        judge = EndingJudge(self.flip)
        return OpenJudge(judge=judge, pairs=judge)
