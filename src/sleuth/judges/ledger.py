"""What a judge was asked, what came of it, and how much of it may still be spent."""

from __future__ import annotations

from dataclasses import dataclass

from sleuth.types import Verdict


class BudgetSpentError(Exception):
    """No further call may be made."""


@dataclass(slots=True, kw_only=True)
class Ledger:
    """`calls` were made, `failed` of them without an answer, `asked_again` because the answer was no verdict. Every
    question ends as one of `scored`, `missing` and `invalid`. At most `budget` calls are made; None is no limit."""

    budget: int | None = None
    calls: int = 0
    failed: int = 0
    asked_again: int = 0
    scored: int = 0
    missing: int = 0
    invalid: int = 0

    def spend(self) -> None:
        """One more call. Raises BudgetSpentError where none is left."""
        if self.budget is not None and self.calls >= self.budget:
            raise BudgetSpentError(f"the budget of {self.budget:,} judge calls is spent")
        self.calls += 1

    def enter(self, verdict: Verdict) -> Verdict:
        """Count how a question ended."""
        if verdict.score is not None:
            self.scored += 1
        elif verdict.invalid:
            self.invalid += 1
        else:
            self.missing += 1
        return verdict
