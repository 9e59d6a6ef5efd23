"""What an answer is worth in all: its content and its citations as one number, as published refiners add them up and as
we do.

The published cards name the parts and their weights, not the sum: `additive` and `convex` are the two that fit. The
difference matters. An additive citation term is worth as much beside a wrong answer as beside a right one, so that a
group in which only the citations vary is taught as hard as one in which the answer does; a convex one bounds that, and
neither keeps a policy from being paid for its form alone.

Ours, `recommended`, is a gate times brevity times a convex mix, less a small penalty: nothing is paid unless there is
a well-formed answer whose ids all exist, so that no citation can be guessed; an answer that copies its evidence is
paid the less the longer it is; 0.6 of the rest is content, because an answer that cites well what was not asked is no
answer; and filler costs up to a tenth, so that it is never free, and never so much that an answer is cut short for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

A_FEW = 30
"""Words that are brief whatever they digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """What is known of one answer. `content` is None where nothing judges it; `finished` is false where the token
    budget cut it off; `well_formed` where nothing but one closed answer, behind a thought where there should be one,
    was written; `valid` where it abstains, or cites only ids that exist, and at least one; `brevity` is 1 for a digest
    and less for what is longer than one (`brevity_of`)."""

    content: float | None
    citation: float
    padding: float
    well_formed: bool
    valid: bool
    finished: bool
    brevity: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSum:
    """`RewardSum(name="additive", citation_weight=0.2, verification_reward=10.0)`: as S2's card has it.

    `format_gate` pays content only where the answer is well-formed; `non_stop_penalty` pays nothing at all where the
    budget cut it off; `verification_reward` multiplies the sum (with advantages over sigma it changes nothing, with
    centered ones the step's size); `padding_penalty` is what an answer of nothing but filler loses.
    """

    name: str = "recommended"
    citation_weight: float = 0.4
    verification_reward: float = 1.0
    non_stop_penalty: bool = False
    format_gate: bool = True
    padding_penalty: float = 0.1

    def of(self, graded: Graded) -> float:
        """The worth of an answer."""
        if self.non_stop_penalty and not graded.finished:
            return 0.0
        return self.verification_reward * SUMS[self.name](self, graded)


def additive(terms: RewardSum, graded: Graded) -> float:
    """content + weight x citation."""
    return _content(terms, graded) + terms.citation_weight * graded.citation


def convex(terms: RewardSum, graded: Graded) -> float:
    """(1 - weight) x content + weight x citation."""
    return (1 - terms.citation_weight) * _content(terms, graded) + terms.citation_weight * graded.citation


def recommended(terms: RewardSum, graded: Graded) -> float:
    """gate x brevity x convex - padding penalty; see above."""
    gate = float(graded.well_formed and graded.valid)
    return gate * graded.brevity * convex(terms, graded) - terms.padding_penalty * graded.padding


def brevity_of(words: int, evidence_words: int) -> float:
    """1 for an answer of at most half as many words as its evidence has, or of a few; what is longer, inversely."""
    return min(1.0, max(A_FEW, evidence_words / 2) / max(words, 1))


def _content(terms: RewardSum, graded: Graded) -> float:
    """Where nothing judges the content, the citation score stands in for it."""
    if terms.format_gate and not graded.well_formed:
        return 0.0
    return graded.citation if graded.content is None else graded.content


SUMS: dict[str, Callable[[RewardSum, Graded], float]] = {
    "recommended": recommended,
    "additive": additive,
    "convex": convex,
}
