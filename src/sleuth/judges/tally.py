"""What a cache spared, and what is missing all the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from sleuth.types import Verdict


@dataclass(slots=True, kw_only=True)
class Tally:
    """Questions that were `asked` of the judge, or `cached`, because it had been asked already, a moment ago or in
    another run; and of the verdicts on both, `missing` and `invalid` ones. A sheet is one question."""

    asked: int = 0
    cached: int = 0
    missing: int = 0
    invalid: int = 0

    def enter(self, verdict: Verdict) -> Verdict:
        """Count how a verdict turned out."""
        self.missing += verdict.score is None and not verdict.invalid
        self.invalid += verdict.invalid
        return verdict

    def take(self) -> dict[str, int]:
        """What was counted since this was last called."""
        counts = asdict(self)
        for field in fields(self):
            setattr(self, field.name, 0)
        return counts
