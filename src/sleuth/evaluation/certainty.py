"""How sure an answer is: the share of right ones among held-out answers with signals like its own.

A logistic regression weighs the signals of an answer. Answers are put into steps by the sum, and the share that is
right rises from step to step: steps where it would not are pooled (isotonic regression, Ann. Math. Stat. 26, 1955).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np

from sleuth.answers.answer import cited_passage, find_words, given_answer, passages_with, quotation
from sleuth.data.spans import stems
from sleuth.dialect import Dialect
from sleuth.evaluation.intervals import Measured, wilson
from sleuth.host.atomic import write_text
from sleuth.host.checksums import list_again
from sleuth.types import Episode, Score, SleuthError, Trajectory

FILE = "certainty.json"
LOST = 0.1
"""The share of right answers that are withheld where it is fitted: of the shipped reader's about other articles 0.096
(0.060 to 0.148) are lost then, and a half of the answers whose passage is taken out are withheld."""
LEAST = 50
"""Right answers at least: with fewer the threshold too often loses more than a tenth of others."""
STEP = 100
"""Answers at least whose share is measured as one."""
NEAR = 100
"""Characters around the words of an answer in which words of the question count, by their first letters."""

Signals = tuple[float, ...]
Answers = Sequence[tuple[Signals | None, bool]]
"""The signals of each answer, None without a valid one, and whether it is right."""


def signals_of(question: str, answer: str, trajectory: Trajectory, dialect: Dialect) -> Signals | None:
    """What tells a right answer from a wrong one: the mean log-probability of its turn; whether a passage that was
    shown holds it, or its quotation; the share of the question's words that stand there, or in the title; and the share
    of the answer's words that the question has. None where the engine gave no log-probabilities."""
    turn = next((segment for segment in reversed(trajectory.segments) if segment.author == "policy"), None)
    if turn is None or not turn.logprobs:
        return None
    asked, near = stems(question), set[str]()
    holding = cited_passage(trajectory, dialect) if dialect.cites else next(passages_with(answer, trajectory), None)
    if holding is not None:
        place = find_words(quotation(trajectory, dialect) if dialect.cites else answer, holding.text)
        begin, end = place.span() if place is not None else (0, 0)
        near = stems(f"{holding.title} {holding.text[max(0, begin - NEAR) : end + NEAR]}")
    likelihood = math.fsum(turn.logprobs) / len(turn.logprobs)
    return likelihood, float(holding is not None), _share(asked, near), _share(stems(answer), asked)


def answers_in(answered: Sequence[tuple[Episode, Score]], dialect: Dialect) -> Answers:
    """The signals of scored episodes, and whether each is right."""
    given = [(episode, given_answer(episode, dialect)) for episode, _ in answered]
    return [
        (None if answer is None else signals_of(one.task.question, answer, one.trajectory, dialect), note == "correct")
        for one, (answer, note) in given
    ]


def _share(words: set[str], others: set[str]) -> float:
    return len(words & others) / max(1, len(words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`right` of `n` answers whose weighted signals are from `above` (or, for the first, any) up to the next step."""

    above: float
    right: int
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Certainty:
    """`Certainty(weights=(3.0, -1.0), threshold=-1.5, steps=(Step(above=-3.0, right=9, n=100),))`: a weight for each
    signal, and a constant. At most `LOST` of the right answers that it was fitted on are below `threshold`."""

    weights: tuple[float, ...]
    threshold: float
    steps: tuple[Step, ...]

    @classmethod
    def fit(cls, answers: Answers) -> Self:
        """Of held-out answers, of which those without signals say nothing. Raises SleuthError if none is right."""
        known = [(one, is_right) for one, is_right in answers if one is not None]
        if not any(is_right for _, is_right in known):
            raise SleuthError(f"certainty: none of {len(answers):,} answers is right")
        signals, right = np.array([[*one, 1.0] for one, _ in known]), np.array([is_right for _, is_right in known])
        return cls(weights=_logistic(signals, right), threshold=-math.inf, steps=()).measured(answers)

    def measured(self, answers: Answers) -> Self:
        """The same weights, with the steps and the threshold of other answers."""
        ordered = sorted((self.weighted(one), is_right) for one, is_right in answers if one is not None)
        steps: list[Step] = []
        for begin in range(0, max(1, len(ordered) - STEP + 1), STEP):
            part = ordered[begin : begin + STEP if begin + 2 * STEP <= len(ordered) else None]
            step = Step(above=part[0][0], right=sum(one for _, one in part), n=len(part))
            while steps and steps[-1].right * step.n >= step.right * steps[-1].n:
                last = steps.pop()
                step = Step(above=last.above, right=last.right + step.right, n=last.n + step.n)
            steps.append(step)
        return replace(self, steps=tuple(steps)).losing(LOST, answers)

    def losing(self, share: float, answers: Answers) -> Self:
        """With the threshold at which at most that share of the right ones among other answers is withheld."""
        right = sorted(self.weighted(signals) for signals, is_right in answers if is_right and signals is not None)
        return replace(self, threshold=right[math.floor(share * len(right))])

    def weighted(self, signals: Signals) -> float:
        """The weighted sum of the signals."""
        return math.fsum(weight * one for weight, one in zip(self.weights, (*signals, 1.0), strict=True))

    def share_right(self, signals: Signals) -> Measured:
        """The share of right answers among those with such signals, with its interval."""
        weighted = self.weighted(signals)
        step = next((step for step in reversed(self.steps) if step.above <= weighted), self.steps[0])
        return wilson(step.right, step.n)

    def withholds(self, signals: Signals) -> bool:
        """Whether an answer is below the threshold."""
        return self.weighted(signals) < self.threshold

    def write(self, model: Path) -> None:
        """Writes it into a model's folder."""
        write_text(model / FILE, json.dumps(asdict(self), indent=1) + "\n")
        list_again(model, FILE)

    @classmethod
    def read(cls, model: Path) -> Self | None:
        """That of a model's folder, or None if there is none. Raises SleuthError where it is damaged."""
        file = model / FILE
        if not file.is_file():
            return None
        try:
            contents = json.loads(file.read_bytes())
            steps = tuple(Step(**step) for step in contents["steps"])
            if not steps or any(one.above >= other.above for one, other in pairwise(steps)):
                raise ValueError("its steps do not rise")
            return cls(
                weights=tuple(map(float, contents["weights"])), threshold=float(contents["threshold"]), steps=steps
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SleuthError(f"{file}: no certainty of a model can be read there ({error}); write it again") from None


def _logistic(signals: np.ndarray, right: np.ndarray) -> tuple[float, ...]:
    """The weights (S) of `signals` (n, S), by Newton's method, with a ridge of 1."""
    weights = np.zeros(signals.shape[1])
    for _ in range(30):
        share = 1 / (1 + np.exp(-signals @ weights))
        curvature = (signals.T * (share * (1 - share))) @ signals + np.eye(len(weights))
        weights += np.linalg.solve(curvature, signals.T @ (right - share) - weights)
    return tuple(map(float, weights))
