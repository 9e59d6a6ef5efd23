"""Comparisons of continuations by a judge: the reward for the share of others that one beats, pair judges that correct
for the order of the answers, and a tournament that finds the best and the worst of a pool with few comparisons."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean

import numpy as np

from sleuth.recipe.judges import JudgeFields
from sleuth.recipe.rewards import Judges
from sleuth.think.preference_tables import ComparisonRecipe, rounds_of
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

Wins = Mapping[str, tuple[float | None, float]]
"""text -> (share of wins, share of comparisons without a verdict)."""


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


PRIOR = 2.0
"""Prior standard deviation of strengths, in units in which the odds of the stronger are exp(difference) to 1 (Bradley
and Terry, Biometrika 39, 1952)."""
NEWTON_STEPS = 8
DRAWS = 256
"""Candidate pairs drawn per round for the best and for the worst; most repeat an answer or an earlier pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extremes:
    """Indices of the best and the worst of a pool, after `compared` pairs, `missing` of them without a verdict. Both
    are None unless more than half of the verdicts exist. `strengths` are the estimates, 0 on average.

    `Extremes(best=3, worst=0, strengths=(-1.1, ...), compared=40, missing=0)`.
    """

    best: int | None
    worst: int | None
    strengths: tuple[float, ...]
    compared: int
    missing: int


async def find_extremes(
    judge: PairJudge, question: str, pool: Sequence[str], *, evidence: str = "", criterion: str = "", seed: int = 0
) -> Extremes:
    """The best and the worst of a pool of K answers to one question, in log2 K rounds of K / 2 comparisons, both
    rounded up (45 for 17 answers, of 136 pairs). A round is judged concurrently; no pair is compared twice.

    The next pairs are drawn by top-two sampling (arXiv:1602.08448): two that may both be the best given the verdicts so
    far, or two that may both be the worst. No answer is out after one defeat, so that occasional errors of the judge
    are outvoted. Missing verdicts are ignored; if half are missing, best and worst are None.
    """
    rng, standings = np.random.default_rng(seed), Standings(len(pool))
    for _ in range(rounds_of(len(pool))):
        paired = standings.next_round(rng)
        pairs = [
            Pair(question=question, first=pool[one], second=pool[other], evidence=evidence, criterion=criterion)
            for one, other in paired
        ]
        for (one, other), verdict in zip(paired, await judge.compare(pairs), strict=True):
            standings.enter(one, other, verdict.score)
    return standings.extremes()


class Standings:
    """The state of a tournament of `size` answers: scores of pairs, and a posterior over strengths, a normal
    distribution around its mode (Laplace's approximation)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._scores: dict[tuple[int, int], float | None] = {}

    def enter(self, one: int, other: int, score: float | None) -> None:
        """Stores the score of `one` against `other`; None is a missing verdict."""
        self._scores[one, other] = score

    def next_round(self, rng: np.random.Generator) -> list[tuple[int, int]]:
        """At most K / 2 new pairs, each in a random order; the first round includes every answer."""
        met = {_in_order(pair) for pair in self._scores}
        unmet = {pair for pair in combinations(range(self.size), 2) if pair not in met}
        drawn = self._likely_pairs(rng) if met else _first_round(self.size, rng)
        chosen: dict[tuple[int, int], None] = {}
        for pair in drawn:
            if pair in unmet and len(chosen) < (self.size + 1) // 2:
                chosen[pair] = None
        swaps = rng.random(len(chosen)) < 0.5
        return [(b, a) if swap else (a, b) for (a, b), swap in zip(chosen, swaps, strict=True)]

    def extremes(self) -> Extremes:
        """The result so far."""
        known = sum(score is not None for score in self._scores.values())
        strengths, _ = self._strengths()
        enough = 2 * known > len(self._scores)
        return Extremes(
            best=int(strengths.argmax()) if enough else None,
            worst=int(strengths.argmin()) if enough else None,
            strengths=tuple(map(float, strengths)),
            compared=len(self._scores),
            missing=len(self._scores) - known,
        )

    def _likely_pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        """The two best, then the two worst, of two draws of all strengths; then all pairs, the most similar first."""
        mode, root = self._strengths()
        drawn = mode + rng.standard_normal((DRAWS, 2, self.size)) @ root.T  # (DRAWS, 2, K)
        for best, worst in zip(drawn.argmax(axis=2).tolist(), drawn.argmin(axis=2).tolist(), strict=True):
            yield from (_in_order(best), _in_order(worst))
        distance = np.abs(mode[:, None] - mode)
        yield from sorted(combinations(range(self.size), 2), key=lambda pair: float(distance[pair]))

    def _strengths(self) -> tuple[np.ndarray, np.ndarray]:
        """The mode of the strengths (K,) and a Cholesky factor (K, K) of their covariance."""
        known = {pair: score for pair, score in self._scores.items() if score is not None}
        scores = np.array([*known.values()])
        sides = np.zeros((len(known), self.size))  # (pairs, K)
        for row, (one, other) in enumerate(known):
            sides[row, one], sides[row, other] = 1.0, -1.0
        prior = np.eye(self.size) / PRIOR**2
        mode, precision = np.zeros(self.size), prior
        for _ in range(NEWTON_STEPS):
            expected = 1 / (1 + np.exp(-sides @ mode))
            precision = prior + (sides * (expected * (1 - expected))[:, None]).T @ sides
            mode = mode + np.linalg.solve(precision, sides.T @ (scores - expected) - prior @ mode)
        return mode, np.linalg.cholesky(np.linalg.inv(precision))


def _first_round(size: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    order = rng.permutation(size).tolist()
    return [_in_order((one, order[(at + 1) % size])) for at, one in enumerate(order) if at % 2 == 0]


def _in_order(pair: Sequence[int]) -> tuple[int, int]:
    return min(pair), max(pair)


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
