"""Comparisons of continuations by a judge: the reward for the share of others that one beats, and pair judges that
correct for the order of the answers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import fmean

from sleuth.recipe.judges import JudgeFields
from sleuth.recipe.rewards import Judges
from sleuth.think.preference_tables import ComparisonRecipe
from sleuth.types import Episode, Group, Pair, PairJudge, Score, Segment, Task, Trajectory, Verdict

MIN_JUDGED_SHARE = 0.5
"""A candidate with a smaller share of its comparisons judged has no score."""
PAIR_CRITERION = (
    "Question and answers are pieces of one text: the first is how it begins, the other two are ways in which it may "
    "go on. Better is the one that goes on coherently from where the beginning stops; of two that do, the one that is "
    "truer, more to the point and better written. All were cut off after a number of words: that one feels unfinished "
    "says nothing against it."
)
"""Without its last sentence judges prefer any text that ends."""


def pair_judge_of(recipe: ComparisonRecipe, judge_pool: Judges) -> PairJudge:
    """The judge that compares two continuations, in the orders of the recipe."""
    both = recipe.orders == "both"
    return (BothOrders if both else OneOrder)(judge_pool.pair_judge(recipe.judge))


def shown_to(judge: JudgeFields) -> Callable[[Task], str]:
    """What a judge sees besides the texts: a judge of endings the golden answers, one a line; others nothing."""
    return (lambda task: "\n".join(task.golden_answers)) if judge.needs_endings else lambda task: ""


class PairwiseReward:
    """The share of a group's other candidates that a candidate beats. A tie is half a win; equal texts are one
    candidate, and a group of equal texts scores 0.5.

    All pairs are compared. Missing verdicts are left out, and a candidate with less than half of its verdicts has no
    score. `evidence_of(task)` is shown to the judge besides the texts.

    Parts: `wins`, and `unjudged`, the share of comparisons without a verdict.
    """

    def __init__(self, judge: PairJudge, *, evidence_of: Callable[[Task], str] = lambda task: "") -> None:
        self.judge = judge
        self.evidence_of = evidence_of

    async def __call__(self, group: Group) -> list[Score]:
        task, texts = group.task, [continuation(episode).text for episode in group.episodes]
        shown = {"question": task.question, "evidence": self.evidence_of(task), "criterion": PAIR_CRITERION}
        won: dict[str, list[float | None]] = {text: [] for text in texts}
        pairs = [Pair(first=one, second=other, **shown) for one, other in combinations(won, 2)]
        for pair, verdict in zip(pairs, await self.judge.compare(pairs), strict=True):
            won[pair.first].append(verdict.score)
            won[pair.second].append(None if verdict.score is None else 1 - verdict.score)
        return [_score(won[text]) for text in texts]


def _score(scores: Sequence[float | None]) -> Score:
    known = [score for score in scores if score is not None]
    if not scores:
        return Score(value=0.5, parts={"wins": 0.5, "unjudged": 0.0})
    unjudged = 1 - len(known) / len(scores)
    if not known or len(known) < MIN_JUDGED_SHARE * len(scores):
        return Score(value=None, parts={"unjudged": unjudged}, note="too few comparisons have a verdict")
    return Score(value=fmean(known), parts={"wins": fmean(known), "unjudged": unjudged})


def candidate(task: Task, sample: int, continuation: Segment, stop: str) -> Episode:
    """An episode of the task's prefix and a continuation; `stop` as a completion's, `source` for the text's own."""
    trajectory = Trajectory(segments=(task.required_continuation.prefix, continuation), stop=stop)
    return Episode(task=task, sample=sample, trajectories=(trajectory,))


def continuation(episode: Episode) -> Segment:
    """The segment after the prefix."""
    return episode.trajectory.segments[-1]


TIE = 0.5


class BothOrders:
    """A `PairJudge` that asks another in both orders. One answer is better if both orders say so (arXiv:2306.05685);
    anything else is a tie, whose reason says whether the orders disagreed. If one order has no verdict, the pair has
    none."""

    def __init__(self, judge: PairJudge) -> None:
        self._judge = judge

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """A verdict of 1, 0.5 or 0 for each pair in its given order; two calls each."""
        verdicts = await self._judge.compare([order for pair in pairs for order in (pair, pair.swapped)])
        return [in_both_orders(*verdicts[at : at + 2]) for at in range(0, len(verdicts), 2)]


def in_both_orders(given: Verdict, swapped: Verdict) -> Verdict:
    """The verdict on a pair from its verdict as given and the one on the swapped pair."""
    if given.score is None or swapped.score is None:
        verdict, order = (given, "as given") if given.score is None else (swapped, "exchanged")
        return Verdict(score=None, reason=f"{order}: {verdict.reason}", invalid=verdict.invalid)
    one, other = _side(given.score), _side(1 - swapped.score)
    if one == other:
        return Verdict(score=one, reason=given.reason, evidence=given.evidence)
    words = {1.0: "the first is better", 0.0: "the second is better", TIE: "a tie"}
    return Verdict(score=TIE, reason=f"as given: {words[one]}; exchanged: {words[other]}")


def _side(score: float) -> float:
    return TIE if score == TIE else float(score > TIE)


class OneOrder:
    """A `PairJudge` that asks another once, in an order chosen by a hash of the pair: half the calls of `BothOrders`,
    and a position bias favours no answer on average."""

    def __init__(self, judge: PairJudge) -> None:
        self._judge = judge

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """A verdict for each pair in its given order."""
        swaps = [bool(zlib.crc32(repr(pair).encode(errors="replace")) & 1) for pair in pairs]
        orders = [pair.swapped if swap else pair for pair, swap in zip(pairs, swaps, strict=True)]
        verdicts = await self._judge.compare(orders)
        return [_unswapped(verdict) if swap else verdict for verdict, swap in zip(verdicts, swaps, strict=True)]


def _unswapped(verdict: Verdict) -> Verdict:
    return verdict if verdict.score is None else replace(verdict, score=1 - verdict.score)
