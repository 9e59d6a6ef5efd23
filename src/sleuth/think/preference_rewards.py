"""Rewards of text continuations: pairwise (share of wins) and pointwise (a judge's criterion)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from statistics import fmean

from sleuth.recipe.judges import JudgeFields
from sleuth.recipe.rewards import Judges
from sleuth.think.preference_tables import ComparisonRecipe
from sleuth.think.tournament import BothOrders, OneOrder, find_extremes
from sleuth.types import Episode, Group, Pair, PairJudge, Score, Segment, Task, Trajectory

MIN_JUDGED_SHARE = 0.5
"""A candidate with a smaller share of its comparisons judged has no score."""
PAIR_CRITERION = (
    "Question and answers are pieces of one text: the first is how it begins, the other two are ways in which it may "
    "go on. Better is the one that goes on coherently from where the beginning stops; of two that do, the one that is "
    "truer, more to the point and better written. All were cut off after a number of words: that one feels unfinished "
    "says nothing against it."
)
"""The criterion of the dimension "quality". Without its last sentence judges prefer any text that ends."""

ORDERS = {"both": BothOrders, "one": OneOrder}

Wins = Mapping[str, tuple[float | None, float]]
"""text -> (share of wins, share of comparisons without a verdict)."""


def pair_judge_of(recipe: ComparisonRecipe, judge_pool: Judges) -> PairJudge:
    """The judge that compares two continuations, in the orders of the recipe."""
    return ORDERS[recipe.orders](judge_pool.pair_judge(recipe.judge))


def shown_to(judge: JudgeFields) -> Callable[[Task], str]:
    """What a judge sees besides the texts: a judge of endings the golden answers, one a line; others nothing."""
    return (lambda task: "\n".join(task.golden_answers)) if judge.needs_endings else lambda task: ""


class PairwiseReward:
    """The share of a group's other candidates that a candidate beats. A tie is half a win; equal texts are one
    candidate, and a group of equal texts scores 0.5.

    Round robin compares all pairs; a tournament fewer (`find_extremes`), its shares computed from the estimated
    strengths. Missing verdicts are left out. A candidate with less than half of its verdicts has no score, nor has any
    in a tournament with half of them missing. `evidence_of(task)` is shown to the judge besides the texts.

    Parts: `wins`, and `unjudged`, the share of comparisons without a verdict.
    """

    def __init__(
        self, judge: PairJudge, *, schedule: str = "round_robin", evidence_of: Callable[[Task], str] = lambda task: ""
    ) -> None:
        self.judge = judge
        self.evidence_of = evidence_of
        self._compare = {"round_robin": self._round_robin, "tournament": self._tournament}[schedule]

    async def __call__(self, group: Group) -> list[Score]:
        texts = [continuation(episode).text for episode in group.episodes]
        wins = await self._compare(group.task, list(dict.fromkeys(texts)))
        return [_score(*wins[text]) for text in texts]

    async def _round_robin(self, task: Task, pool: Sequence[str]) -> Wins:
        pairs = list(combinations(pool, 2))
        verdicts = await self.judge.compare([self._pair(task, *pair) for pair in pairs])
        won: dict[str, list[float | None]] = {text: [] for text in pool}
        for (one, other), verdict in zip(pairs, verdicts, strict=True):
            won[one].append(verdict.score)
            won[other].append(None if verdict.score is None else 1 - verdict.score)
        return {text: _share_of_wins(scores) for text, scores in won.items()}

    async def _tournament(self, task: Task, pool: Sequence[str]) -> Wins:
        result = await find_extremes(
            self.judge,
            task.question,
            pool,
            evidence=self.evidence_of(task),
            criterion=PAIR_CRITERION,
            seed=zlib.crc32("\0".join((task.id, *pool)).encode(errors="replace")),
        )
        missing = result.missing / result.compared if result.compared else 0.0
        if result.best is None and len(pool) > 1:
            return dict.fromkeys(pool, (None, missing))
        return {text: (_expected_wins(result.strengths, index), missing) for index, text in enumerate(pool)}

    def _pair(self, task: Task, first: str, second: str) -> Pair:
        evidence = self.evidence_of(task)
        return Pair(question=task.question, first=first, second=second, evidence=evidence, criterion=PAIR_CRITERION)


def _share_of_wins(scores: Sequence[float | None]) -> tuple[float | None, float]:
    known = [score for score in scores if score is not None]
    if not scores:
        return 0.5, 0.0
    share = fmean(known) if len(known) > 0 and len(known) >= MIN_JUDGED_SHARE * len(scores) else None
    return share, 1 - len(known) / len(scores)


def _expected_wins(strengths: Sequence[float], index: int) -> float:
    """The mean Bradley-Terry probability of winning against each other candidate."""
    chances = [1 / (1 + math.exp(other - strengths[index])) for at, other in enumerate(strengths) if at != index]
    return fmean(chances) if chances else 0.5


def _score(wins: float | None, unjudged: float) -> Score:
    if wins is None:
        return Score(value=None, parts={"unjudged": unjudged}, note="too few comparisons have a verdict")
    return Score(value=wins, parts={"wins": wins, "unjudged": unjudged})


def candidate(task: Task, sample: int, continuation: Segment, stop: str) -> Episode:
    """An episode of the task's prefix and a continuation; `stop` as a completion's, `source` for the text's own."""
    trajectory = Trajectory(segments=(task.required_continuation.prefix, continuation), stop=stop)
    return Episode(task=task, sample=sample, trajectories=(trajectory,))


def continuation(episode: Episode) -> Segment:
    """The segment after the prefix."""
    return episode.trajectory.segments[-1]
