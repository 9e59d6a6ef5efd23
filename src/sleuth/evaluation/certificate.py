"""A certificate: what a trained model gained over its base on held-out questions, also by a person's ratings.

Beside what an evaluation file has, a record has the answer `given` (None without a valid one), whether none is shown
(`silent`: it may be withheld) or one is (`shown`), whether it is right and quoted from the passage that answers
(`supported`, None where a dialect quotes nothing), and whether a judge finds it right (`judged`), where there is one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sleuth.answers.failures import mode_counts
from sleuth.evaluation.figures import Figure, Record, is_kind
from sleuth.evaluation.intervals import Measured, RatedPart, minus, prediction_powered, stratified
from sleuth.evaluation.paired import BASE, TRAINED
from sleuth.types import SleuthError

UNANSWERABLE = "unanswerable"
"""The kind of a question whose passages are taken out of the index."""
LEAST, MOST = 30, 100
"""Answers that a person rates."""


def is_answerable(record: Record) -> bool:
    """Whether the documents have the answer, as far as is known."""
    return record["kind"] != UNANSWERABLE


QUOTED = "Share of answers that are right and quoted from the passage that answers."
SILENT = "Share of answerable questions without an answer, or with one that is withheld. Less is better."
INVENTED = "Share of unanswerable questions that are answered. Less is better."
FIGURES = (
    Figure("em", "Exact match", "Share of answers that match a golden answer.", of=is_answerable),
    Figure("judged", "Right by the judge", "Share that a judge finds equal to a golden answer.", of=is_answerable),
    Figure("supported", "Right with a supporting quotation", QUOTED, of=is_answerable),
    Figure("silent", "Abstained on an answerable question", SILENT, of=is_answerable),
    Figure("shown", "Answered an unanswerable question", INVENTED, of=is_kind(UNANSWERABLE)),
)


def apart(pair: tuple[Record, Record]) -> bool:
    """Whether the models answer a question differently. Where they do not, neither is more right."""
    return pair[0]["given"] != pair[1]["given"]


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Records of the arms `base` and `trained`, and of control arms, which need an id and `em` alone; a person's
    ratings by the keys of `queue`. `facts` say what was asked, with digests."""

    facts: Mapping[str, Any]
    arms: Mapping[str, Sequence[Record]]
    controls: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    ratings: Mapping[str, bool] = field(default_factory=dict)

    @cached_property
    def id(self) -> str:
        """Changes with the models, the questions, the documents and the answers."""
        answers = [[(one["id"], one["given"]) for one in self.arms[arm]] for arm in (BASE, TRAINED)]
        return _digest([answers, {name: fact for name, fact in self.facts.items() if name.endswith("sha256")}])

    @cached_property
    def pairs(self) -> list[tuple[Record, Record]]:
        """Base and trained on each answerable question that both have a verdict on. Of three that follow each other two
        are `apart`, while there are such, as the others gain nothing; within both the order is one that nobody chose.
        """
        both = zip(self.arms[BASE], self.arms[TRAINED], strict=True)
        pairs = [pair for pair in both if is_answerable(pair[0]) and None not in (pair[0]["em"], pair[1]["em"])]
        pairs.sort(key=lambda pair: _digest([self.id, pair[0]["id"]]))
        strata = {True: 2, False: 1}
        of = {side: [pair for pair in pairs if apart(pair) is side] for side in strata}
        turns = [(at // strata[side], not side, at, pair) for side, some in of.items() for at, pair in enumerate(some)]
        return [pair for *_, pair in sorted(turns, key=lambda turn: turn[:3])]

    @cached_property
    def queue(self) -> list[dict[str, str]]:
        """For each of the first of `pairs` the answers to rate by their keys: none, one, or those of both models, which
        the keys do not tell apart. At most `MOST` answers."""
        queue, count = list[dict[str, str]](), 0
        for pair in self.pairs:
            keyed = {self._key(one): one["given"] for one in pair if one["given"] is not None}
            if (count := count + len(keyed)) > MOST:
                break
            queue.append(dict(sorted(keyed.items())))
        return queue

    def _key(self, record: Record) -> str:
        return _digest([self.id, record["id"], record["given"]])

    def require_ratings(self, certificate: str) -> None:
        """Raises SleuthError for ratings of another certificate, of no answer here, too few, or out of their order."""
        order, count = [key for keys in self.queue for key in keys], len(self.ratings)
        if certificate != self.id:
            raise SleuthError(
                f"of the certificate {certificate}, and this one is {self.id}; rate the answers of its page"
            )
        if unknown := len(self.ratings.keys() - {*order}):
            raise SleuthError(
                f"{unknown} of {count} ratings are of no answer of this certificate; rate those of its page"
            )
        if count < LEAST:
            more = "rate more" if len(order) >= LEAST else f"there are {len(order)}, so make more questions"
            raise SleuthError(f"{count} answers are rated, and {LEAST} are needed; {more}")
        if self.ratings.keys() != {*order[:count]}:
            raise SleuthError(
                "answers were left out, and chosen ones are no sample; rate them in the order of the page"
            )

    def by_person(self) -> dict[str, Measured]:
        """`base`, `trained` and their `difference`: the shares that the person would find right of all answers, by the
        ratings and what exact match, or the judge, says of the others. An answer that was not given is wrong."""
        key = "judged" if all(one.get("judged") is not None for pair in self.pairs for one in pair) else "em"
        judged = [[float(one[key]) for one in pair] for pair in self.pairs]
        complete = [*(keys.keys() <= self.ratings.keys() for keys in self.queue), False].index(False)
        right = [[float(self.ratings.get(self._key(one), False)) for one in pair] for pair in self.pairs[:complete]]

        differs = [*map(apart, self.pairs)]

        def part(value: Callable[[Sequence[float]], float], side: bool) -> RatedPart:
            rated = [(value(right[at]), value(judged[at])) for at in range(complete) if differs[at] is side]
            return rated, [value(judged[at]) for at in range(complete, len(judged)) if differs[at] is side]

        def level(arm: int) -> Measured:
            return stratified([part(lambda pair: pair[arm], side) for side in {*differs}])

        gain = stratified([part(lambda pair: pair[1] - pair[0], True)], gain=True, equal=differs.count(False))
        return {BASE: level(0), TRAINED: level(1), "difference": gain}

    def figures(self, kind: str | None = None) -> Iterator[tuple[Figure, dict[str, Measured]]]:
        """Each figure of some question, or of those of a kind: `base`, `trained`, and `difference`, paired."""
        chosen = {arm: [one for one in of if kind in (None, one["kind"])] for arm, of in self.arms.items()}
        for row in FIGURES:
            values = {arm: [row.value_in(one) for one in records] for arm, records in chosen.items()}
            if any(value is not None for of_arm in values.values() for value in of_arm):
                levels = {arm: row.interval(of_arm) for arm, of_arm in values.items()}
                yield row, levels | {"difference": _gain(values[TRAINED], values[BASE])}

    def kinds(self) -> dict[str, dict[str, Measured]]:
        """By kind of question its first figure: exact match, or the share of answers to the unanswerable."""
        names = sorted({one["kind"] for one in self.arms[TRAINED]})
        return {name or "question": figures for name in names for _, figures in [*self.figures(name)][:1]}

    def against_controls(self) -> dict[str, dict[str, Measured]]:
        """Exact match of each control arm on the answerable questions, and of the trained model minus it."""
        trained = {one["id"]: one["em"] for one in self.arms[TRAINED]}
        asked = {name: [(trained[one["id"]], one["em"]) for one in records] for name, records in self.controls.items()}
        levels = {name: FIGURES[0].interval([em for _, em in both]) for name, both in asked.items()}
        return {
            name: {"em": levels[name], "difference": _gain(*zip(*both, strict=True))} for name, both in asked.items()
        }

    def answerable(self) -> dict[str, list[Record]]:
        """The records of both models on the answerable questions."""
        return {arm: [*filter(is_answerable, records)] for arm, records in self.arms.items()}

    @cached_property
    def gain(self) -> Measured:
        """What decides: the gain by the person, or without ratings that in exact match."""
        return (self.by_person() if self.ratings else dict(self.figures())[FIGURES[0]])["difference"]

    @property
    def passes(self) -> bool:
        """Whether the gain's whole interval is above zero."""
        return self.gain.side > 0

    @property
    def verdict(self) -> str:
        """`its gain in exact match, +0.050 (+0.020 to +0.080), is above zero`."""
        by = f"by {len(self.ratings)} ratings" if self.ratings else "in exact match"
        return f"its gain {by}, {self.gain.formatted('+.3f')}, {'is' if self.passes else 'is not'} above zero"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        tables = {
            "figures": {row.name: figures for row, figures in self.figures()},
            "ratings": {"right": self.by_person()} if self.ratings else {},
            "kinds": self.kinds(),
            "controls": self.against_controls(),
        }
        plain = {
            name: {row: {arm: one.as_json() for arm, one in figures.items()} for row, figures in table.items()}
            for name, table in tables.items()
        }
        head = {"certificate": self.id, **self.facts, "passes": self.passes, "verdict": self.verdict}
        modes = {arm: mode_counts(records) for arm, records in self.answerable().items()}
        return {**head, "gain": self.gain.as_json(), **plain, "failures": modes, "rated": self.ratings}


def _gain(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Measured:
    """A paired difference of shares with an interval that is never of width 0."""
    return prediction_powered([(value, 0.0) for value in minus(ours, theirs) if value is not None], gain=True)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
