"""tinker-cookbook's search reward: exact match of what follows the one `Answer:` of the last assistant message.

As in the original, a last message without `Answer:`, or with more than one, scores -0.1, and everything after it is the
answer, an explanation too.
"""

from __future__ import annotations

from collections.abc import Sequence

from sleuth.answers.match import exact_match
from sleuth.answers.scorers.scorer import LAST_TURN, Scorer

PREFIX = "Answer:"
FORMAT_PENALTY = -0.1


def _answer(last_turn: str) -> str | None:
    return last_turn.partition(PREFIX)[2].strip() if last_turn.count(PREFIX) == 1 else None


def _score(last_turn: str, golden_answers: Sequence[str]) -> float:
    answer = _answer(last_turn)
    return FORMAT_PENALTY if answer is None else float(exact_match(answer, golden_answers))


TINKER = Scorer(name="tinker", source="tinker-cookbook, search_tool", view=LAST_TURN, score=_score, answer=_answer)
