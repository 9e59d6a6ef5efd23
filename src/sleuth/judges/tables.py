"""The tables of judges of any text: by rules, and by a language model behind an API."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from sleuth.judges.lexical import LexicalJudge
from sleuth.recipe.judges import ExaminedJudgeFields, ServedModelRecipe

if TYPE_CHECKING:
    from sleuth.judges.factory import OpenJudge


class LexicalJudgeRecipe(ExaminedJudgeFields):
    """Compares names, dates, numbers, words and negations on this machine, without a model."""

    kind: Literal["lexical"] = "lexical"

    def open(self) -> OpenJudge:
        from sleuth.judges.factory import OpenJudge

        return OpenJudge(judge=LexicalJudge())


class HttpJudgeRecipe(ServedModelRecipe, ExaminedJudgeFields):
    """A language model as judge."""

    subjects: ClassVar[tuple[Literal["claims", "continuations"], ...]] = ("claims", "continuations")
    keeps_verdicts: ClassVar[bool] = True
    kind: Literal["http"]

    def open(self) -> OpenJudge:
        """One question may take as long as all attempts of a call, so that an outage is waited for only once."""
        from sleuth.judges.cache import VERDICT_RETRIES, RetryLimits
        from sleuth.judges.factory import OpenJudge, connect
        from sleuth.judges.http import HttpJudge
        from sleuth.judges.pool import ATTEMPTS

        http = connect(self, HttpJudge)
        limits = RetryLimits(retries=VERDICT_RETRIES, seconds=ATTEMPTS * self.seconds)
        return OpenJudge(judge=http, sheets=http, pairs=http, ledger=http.ledger, limits=limits)
