"""A judge with known right endings, for world texts, whose ending follows from their beginning."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from sleuth.types import Case, Pair, Verdict

WORD = re.compile(r"\w+")
SENTENCE_END = re.compile(r"[.!?](?:\s|$)|\n")
DIGESTS = 2.0**64
UNKNOWN = Verdict(score=None, reason="the text does not say what a right ending names")


class EndingJudge:
    """A `Judge` and `PairJudge` of continuations; the `evidence` of a case or pair lists the right endings, one name
    per line. The continuation that ends right is better; if both or neither do, it is a tie. Without evidence the
    verdict is missing.

    A share `flip` of the verdicts is inverted on purpose (a tie stays one), chosen by a hash of the texts in their
    order, so that the same question always gets the same answer.
    """

    def __init__(self, flip: float = 0.0) -> None:
        self.flip = flip

    @property
    def identity(self) -> str:
        """Changes whenever the same pair could get another verdict."""
        return f"ending flip={self.flip:g}" if self.flip else "ending"

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """1 for each continuation (the claim) that ends right, else 0."""
        return [self._ending(case) for case in cases]

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """1, 0.5 or 0 for each pair."""
        return [self._verdict(pair) for pair in pairs]

    def _ending(self, case: Case) -> Verdict:
        answers = case.evidence.splitlines()
        if not answers:
            return UNKNOWN
        right = float(ends_right(case.claim, answers))
        if self._errs(case.question, case.claim):
            return Verdict(score=1 - right, reason="an error on purpose")
        return Verdict(score=right, reason=f"a right ending names {answers[0]}")

    def _verdict(self, pair: Pair) -> Verdict:
        answers = pair.evidence.splitlines()
        if not answers:
            return UNKNOWN
        right = (1 + ends_right(pair.first, answers) - ends_right(pair.second, answers)) / 2
        if self._errs(pair.question, pair.first, pair.second):
            return Verdict(score=1 - right, reason="an error on purpose")
        return Verdict(score=right, reason=f"a right ending names {answers[0]}")

    def _errs(self, *texts: str) -> bool:
        key = "\0".join(texts).encode(errors="replace")
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") < self.flip * DIGESTS


def ends_right(text: str, answers: Sequence[str]) -> bool:
    """Whether the first sentence of a continuation ends with the words of one of `answers`, ignoring case. A sentence
    that continues after them does not count: it may mean something else."""
    words = WORD.findall(SENTENCE_END.split(text.strip(), maxsplit=1)[0].lower())
    return any((ending := WORD.findall(answer.lower())) and words[-len(ending) :] == ending for answer in answers)
