"""The pairwise reward: the share of the other candidates that one is better than."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from statistics import fmean

from sleuth.judges.tournament import find_extremes
from sleuth.rewards.preference.candidate import written
from sleuth.types import Group, Pair, PairJudge, Score, Task

ENOUGH = 0.5
"""Of the comparisons of a candidate, the share that needs a verdict; with fewer its score is missing."""
BETTER = (
    "Question and answers are pieces of one text: the first is how it begins, the other two are ways in which it may "
    "go on. Better is the one that goes on coherently from where the beginning stops; of two that do, the one that is "
    "truer, more to the point and better written. All were cut off after a number of words: that one feels unfinished "
    "says nothing against it."
)
"""What decides (the dimension "quality"). Judges that are not told so prefer whatever comes to an end."""

Wins = Mapping[str, tuple[float | None, float]]
"""By text: the share of wins, and the share of its comparisons that had no verdict."""


class PairwiseReward:
    """Candidates with the same text are one; a tie is half a win, and a candidate that nobody else differs from ties
    with all. Round robin compares all pairs; a tournament fewer (`find_extremes`), and its shares are those that the
    strengths which it estimates would give.

    A missing verdict counts for nobody. A candidate with fewer than half of its verdicts has no score, nor has any in
    a tournament of which half is missing. `shown` is what the judge is given to see of a task besides the texts.

    Parts: `wins`, and `unjudged`, the share of comparisons without a verdict.
    """

    def __init__(
        self, judge: PairJudge, *, schedule: str = "round_robin", shown: Callable[[Task], str] = lambda task: ""
    ) -> None:
        self.judge = judge
        self.shown = shown
        self._compare = {"round_robin": self._round_robin, "tournament": self._tournament}[schedule]

    async def __call__(self, group: Group) -> list[Score]:
        texts = [written(episode).text for episode in group.episodes]
        wins = await self._compare(group.task, list(dict.fromkeys(texts)))
        return [_score(*wins[text]) for text in texts]

    async def _round_robin(self, task: Task, pool: Sequence[str]) -> Wins:
        pairs = list(combinations(pool, 2))
        verdicts = await self.judge.compare([self._pair(task, *pair) for pair in pairs])
        won: dict[str, list[float | None]] = {text: [] for text in pool}
        for (one, other), verdict in zip(pairs, verdicts, strict=True):
            won[one].append(verdict.score)
            won[other].append(None if verdict.score is None else 1 - verdict.score)
        return {text: _share_of_wins(of_text) for text, of_text in won.items()}

    async def _tournament(self, task: Task, pool: Sequence[str]) -> Wins:
        found = await find_extremes(
            self.judge,
            task.question,
            pool,
            evidence=self.shown(task),
            criterion=BETTER,
            seed=zlib.crc32("\0".join((task.id, *pool)).encode(errors="replace")),
        )
        missing = found.missing / found.compared if found.compared else 0.0
        if found.best is None and len(pool) > 1:
            return dict.fromkeys(pool, (None, missing))
        return {text: (_expected_wins(found.strengths, at), missing) for at, text in enumerate(pool)}

    def _pair(self, task: Task, first: str, second: str) -> Pair:
        return Pair(question=task.question, first=first, second=second, evidence=self.shown(task), criterion=BETTER)


def _share_of_wins(scores: Sequence[float | None]) -> tuple[float | None, float]:
    known = [score for score in scores if score is not None]
    if not scores:
        return 0.5, 0.0
    share = fmean(known) if len(known) > 0 and len(known) >= ENOUGH * len(scores) else None
    return share, 1 - len(known) / len(scores)


def _expected_wins(strengths: Sequence[float], at: int) -> float:
    """By the odds of Bradley and Terry, as the tournament has them."""
    others = [1 / (1 + math.exp(other - strengths[at])) for number, other in enumerate(strengths) if number != at]
    return fmean(others) if others else 0.5


def _score(wins: float | None, unjudged: float) -> Score:
    if wins is None:
        return Score(value=None, parts={"unjudged": unjudged}, note="too few comparisons have a verdict")
    return Score(value=wins, parts={"wins": wins, "unjudged": unjudged})
