"""A judge that can be called, with all that it can be asked."""

from __future__ import annotations

from dataclasses import dataclass, field

from sleuth.judges.cache import NamedJudge, NamedPairJudge, NamedSheetJudge, RetryLimits
from sleuth.judges.pool import Ledger
from sleuth.recipe.judges import ON_SHEETS, UNSEEN, Skill


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJudge:
    """A judge that can be called. `sheets` is None for one that judges by one criterion at a time, `pairs` for one that
    compares nothing, `ledger` for one that makes no HTTP calls. `limits` are those of asking for a missing verdict."""

    judge: NamedJudge
    sheets: NamedSheetJudge | None = None
    pairs: NamedPairJudge | None = None
    ledger: Ledger | None = None
    limits: RetryLimits = field(default_factory=RetryLimits)

    @property
    def identity(self) -> str:
        """A name that changes whenever the same question could get another verdict."""
        return self.judge.identity

    @property
    def skills(self) -> tuple[Skill, ...]:
        """All that it can be asked. One that compares texts reads written criteria; others know statements alone."""
        statements = "claims", "criteria", f"criteria{UNSEEN}"
        written = "static_criteria", f"static_criteria{UNSEEN}"
        texts = "continuations", "suffixes", "quality", "factuality", "safety"
        singly = (*statements, *written) if self.pairs is not None else statements
        on_sheets = tuple(f"{skill}{ON_SHEETS}" for skill in singly) if self.sheets is not None else ()
        return (*singly, *on_sheets, *(texts if self.pairs is not None else ()))
