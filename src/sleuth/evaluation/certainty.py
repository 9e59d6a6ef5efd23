"""How sure an answer is: the share of right ones among answers that are about as likely, from held-out questions.

The likelihood of an answer is the mean log-probability of the tokens of the turn that gives it. Shares rise with it:
they are pooled where they would not (isotonic regression, Ann. Math. Stat. 26, 1955).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

from sleuth.evaluation.intervals import Measured, wilson
from sleuth.host.atomic import write_text
from sleuth.host.checksums import list_again
from sleuth.types import Segment, SleuthError

FILE = "certainty.json"
LOST = 0.1
"""The share of right answers that may be withheld."""
STEP = 100
"""Answers at least whose share is measured as one."""


def likelihood(segments: Sequence[Segment]) -> float | None:
    """Of the last turn of the policy; None where its engine gave no log-probabilities."""
    turn = next((segment for segment in reversed(segments) if segment.author == "policy"), None)
    return math.fsum(turn.logprobs) / len(turn.logprobs) if turn is not None and turn.logprobs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`right` of `n` answers with a likelihood from `above` on, up to the next step."""

    above: float
    right: int
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Certainty:
    """`Certainty(threshold=-0.5, steps=(Step(above=-inf, right=10, n=100), Step(above=-0.3, right=40, n=100)))`: below
    `threshold` are at most `LOST` of the right answers that it was fitted on."""

    threshold: float
    steps: tuple[Step, ...]

    @classmethod
    def fit(cls, answers: Sequence[tuple[float, bool]]) -> Self:
        """Of (likelihood, whether it is right) of held-out answers. Raises SleuthError without a right one."""
        ordered = sorted(answers)
        right = [likely for likely, is_right in ordered if is_right]
        if not right:
            raise SleuthError(f"certainty: none of {len(answers):,} answers is right")
        steps: list[Step] = []
        for begin in range(0, max(STEP, len(ordered) - STEP + 1), STEP):
            stop = begin + STEP if begin + 2 * STEP <= len(ordered) else len(ordered)
            part = ordered[begin:stop]
            step = Step(above=part[0][0] if begin else -math.inf, right=sum(one for _, one in part), n=len(part))
            while steps and steps[-1].right * step.n >= step.right * steps[-1].n:
                before = steps.pop()
                step = Step(above=before.above, right=before.right + step.right, n=before.n + step.n)
            steps.append(step)
        return cls(threshold=right[math.floor(LOST * len(right))], steps=tuple(steps))

    def share_right(self, likely: float) -> Measured:
        """The share of right answers among those that are about as likely, with its interval."""
        step = [step for step in self.steps if step.above <= likely][-1]
        return wilson(step.right, step.n)

    def write(self, model: Path) -> None:
        """Writes it into a model's folder."""
        steps = [asdict(step) | {"above": None if math.isinf(step.above) else step.above} for step in self.steps]
        write_text(model / FILE, json.dumps({"threshold": self.threshold, "steps": steps}, indent=1) + "\n")
        list_again(model, FILE)

    @classmethod
    def read(cls, model: Path) -> Self | None:
        """That of a model's folder, or None if there is none. Raises SleuthError where it is damaged."""
        file = model / FILE
        if not file.is_file():
            return None
        try:
            found = json.loads(file.read_bytes())
            steps = [
                Step(above=-math.inf if above is None else float(above), right=int(step["right"]), n=int(step["n"]))
                for step in found["steps"]
                for above in [step["above"]]
            ]
            rises = all(one.above < other.above for one, other in pairwise(steps))
            if not steps or not math.isinf(steps[0].above) or not rises or not all(0 <= s.right <= s.n for s in steps):
                raise ValueError("its steps do not begin without a bound and rise")
            return cls(threshold=float(found["threshold"]), steps=tuple(steps))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SleuthError(f"{file}: no certainty of a model can be read there ({error}); write it again") from None
