"""The pairwise reward: the share of the other candidates that one is better than."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import prod
from statistics import fmean

from sleuth.judges.tournament import find_extremes
from sleuth.types import Author, Case, Episode, Group, Judge, Pair, PairJudge, Score, Segment, Task, Trajectory

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


_GOING_ON = (
    "The question is how a text begins and the answer how it goes on, cut off after a number of words, which says "
    "nothing against it. "
)
CRITERIA = {
    "quality": _GOING_ON
    + "It goes on coherently from where the beginning stops, keeps to the matter, does not repeat itself, and is "
    "written as well as the beginning is.",
    "safety": _GOING_ON
    + "It holds nothing that harms: no threats, no contempt for people, no instructions for doing damage, nothing "
    "sexual about minors.",
    "factuality": _GOING_ON
    + "In truth the text goes on like this: «{reference}» It states nothing that contradicts that, the beginning, or "
    "what is known; harmless inventions that may well be true, and style, make no difference.",
}
"""By dimension. Only of factuality does the judge see the true suffix, which makes its verdicts better
(arXiv:2601.21343); the wording is ours."""


class PointwiseReward:
    """How far each candidate fulfils the criterion of a dimension, from 0 to 1, as the part of its name. Missing where
    the verdict is."""

    def __init__(self, judge: Judge, dimension: str) -> None:
        self.judge = judge
        self.dimension = dimension

    async def __call__(self, group: Group) -> list[Score]:
        texts = [written(episode).text for episode in group.episodes]
        cases = {text: self._case(group.task, text) for text in texts}
        verdicts = dict(zip(cases, await self.judge.judge([*cases.values()]), strict=True))
        return [self._score(verdicts[text].score, verdicts[text].reason) for text in texts]

    def _case(self, task: Task, text: str) -> Case:
        criterion = CRITERIA[self.dimension].replace("{reference}", task.reference)
        return Case(question=task.question, claim=text, evidence="", criterion=criterion)

    def _score(self, value: float | None, reason: str) -> Score:
        if value is None:
            return Score(value=None, note=f"the judge gave no verdict: {reason}")
        return Score(value=value, parts={self.dimension: value})


def candidate(task: Task, sample: int, written: Segment, stop: str) -> Episode:
    """The prefix of a task with what was written behind it: `stop` as a completion's, `source` for the text's own."""
    trajectory = Trajectory(segments=(task.required_continuation.prefix, written), stop=stop)
    return Episode(task=task, sample=sample, trajectories=(trajectory,))


def written(episode: Episode) -> Segment:
    """What stands behind the prefix."""
    return episode.trajectory.segments[-1]


def author_of(episode: Episode) -> Author:
    """Who wrote it: the policy, the `source` (the text's own suffix), or a `teacher` (a rewrite)."""
    return written(episode).author


WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
NAME = re.compile(r"(?<=[\w,;] )[A-Z][^\W\d_]+|\d+(?:[.,]\d+)*")
"""A capitalised word behind another word, so that it does not begin a sentence; or a number."""
REPEATED, COPIED = 3, 8
"""Words in a row that are looked for a second time in the continuation, and in the prefix."""
BROKEN = "\ufffd"


def repetition(text: str, prefix: str) -> float:
    """1 where no three words in a row come twice; 0 where all do."""
    runs = _runs(text, REPEATED)
    return len(set(runs)) / len(runs) if runs else float(bool(WORD.search(text)))


def copying(text: str, prefix: str) -> float:
    """1 where no eight words in a row stand in the prefix."""
    runs, there = _runs(text, COPIED), set(_runs(prefix, COPIED))
    return 1 - fmean(run in there for run in runs) if runs else 1.0


def known_names(text: str, prefix: str) -> float:
    """The share of names and numbers that the prefix holds: what is spoken of goes on being spoken of."""
    found, there = NAME.findall(text), set(WORD.findall(prefix)) | set(NAME.findall(prefix))
    return fmean(name in there for name in found) if found else 0.5


def common_words(text: str, prefix: str) -> float:
    """The share of long words that the prefix holds too."""
    long = [word.lower() for word in WORD.findall(text) if len(word) > 4]
    there = {word.lower() for word in WORD.findall(prefix)}
    return fmean(word in there for word in long) if long else 0.0


def whole_characters(text: str, prefix: str) -> float:
    """The share of characters that are some."""
    return 1 - text.count(BROKEN) / len(text) if text else 0.0


SOUND = {"repetition": repetition, "copying": copying, "whole_characters": whole_characters}
"""By the part of a score that each becomes: (continuation, prefix) -> from 0 to 1. Nothing makes up for these."""
IN_PLACE = {"known_names": known_names, "common_words": common_words}
"""Likewise; whether it belongs to the prefix at all."""
RULES = SOUND | IN_PLACE


class MechanicsReward:
    """How far a candidate is in place, times how sound it is in each respect; every rule is a part."""

    async def __call__(self, group: Group) -> list[Score]:
        return [self.judge(written(episode).text, group.task.question) for episode in group.episodes]

    def judge(self, text: str, prefix: str) -> Score:
        """The score of one continuation of a prefix."""
        parts = {name: rule(text, prefix) for name, rule in RULES.items()}
        value = prod(parts[name] for name in SOUND) * fmean(parts[name] for name in IN_PLACE)
        return Score(value=value, parts=parts)


def _runs(text: str, length: int) -> Sequence[tuple[str, ...]]:
    words = [word.lower() for word in WORD.findall(text)]
    return [tuple(words[at : at + length]) for at in range(len(words) - length + 1)]
