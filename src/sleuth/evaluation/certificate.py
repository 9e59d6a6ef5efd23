"""A certificate: what a trained model gained over its base on held-out questions, also by a person's ratings.

An arm is the records of one way to answer the same questions. Beside those of an evaluation file a record says whether
the model `refused`, whether its quotation is from the passage that answers (`supported`, None in a dialect that quotes
nothing), and what a judge says of a given answer (`judged`), where there is one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sleuth.answers.failures import mode_counts
from sleuth.evaluation.figures import Figure, Record
from sleuth.evaluation.intervals import Measured, minus, prediction_powered
from sleuth.evaluation.paired import BASE, TRAINED
from sleuth.types import SleuthError

UNANSWERABLE = "unanswerable"
"""The kind of a question whose passages are taken out of the index."""
LEAST, MOST = 30, 100
"""Answers that a person rates."""


def given_answer(record: Record) -> str | None:
    """The answer that was read from an episode; None without a valid one."""
    return record["answer"] if record["note"] in ("correct", "wrong") else None


def is_answerable(record: Record) -> bool:
    """Whether the documents have the answer, as far as is known."""
    return record["kind"] != UNANSWERABLE


def _silent(record: Record) -> float | None:
    return None if record["em"] is None else float(given_answer(record) is None or record["refused"])


def _invented(record: Record) -> float | None:
    silent = _silent(record)
    return None if silent is None else 1 - silent


FIGURES = (
    Figure("em", "Exact match", "Share of answers that match a golden answer.", of=is_answerable),
    Figure("judged", "Right by the judge", "Share that a judge finds equal to a golden answer.", of=is_answerable),
    Figure(
        "supported",
        "Right, and its source quoted",
        "Share that are right and quote words from the passage that answers, with the answer in them.",
        of=is_answerable,
    ),
    Figure(
        "silent",
        "No answer, though there is one",
        "Share of answerable questions without an answer, or with one that is withheld. Less is better.",
        value=_silent,
        of=is_answerable,
    ),
    Figure(
        "invented",
        "An answer, though there is none",
        "Share of unanswerable questions that are answered. Less is better.",
        value=_invented,
        of=lambda record: not is_answerable(record),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The arms `base` and `trained`, control arms by name, which need an id and `em` alone, and a person's ratings by
    the keys of `queue`. `facts` say what was asked, with digests."""

    facts: Mapping[str, Any]
    arms: Mapping[str, Sequence[Record]]
    controls: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    ratings: Mapping[str, bool] | None = None

    @cached_property
    def id(self) -> str:
        """Changes with the models, the questions, the documents and the answers."""
        answers = [[(one["id"], given_answer(one)) for one in self.arms[arm]] for arm in (BASE, TRAINED)]
        return _digest([answers, {name: fact for name, fact in self.facts.items() if name.endswith("sha256")}])

    @cached_property
    def pairs(self) -> list[tuple[Record, Record]]:
        """Base and trained on each answerable question that both have a verdict on, in an order that nobody chose."""
        both = zip(self.arms[BASE], self.arms[TRAINED], strict=True)
        pairs = [pair for pair in both if is_answerable(pair[0]) and None not in (pair[0]["em"], pair[1]["em"])]
        return sorted(pairs, key=lambda pair: _digest([self.id, pair[0]["id"]]))

    @cached_property
    def queue(self) -> list[dict[str, str]]:
        """For each of the first of `pairs` the answers to rate by their keys: none, one, or those of both models, which
        the keys do not tell apart. At most `MOST` answers."""
        queue, count = list[dict[str, str]](), 0
        for pair in self.pairs:
            keyed = {self._key(one): given for one in pair if (given := given_answer(one)) is not None}
            if (count := count + len(keyed)) > MOST:
                break
            queue.append(dict(sorted(keyed.items())))
        return queue

    def _key(self, record: Record) -> str:
        return _digest([self.id, record["id"], given_answer(record)])[:12]

    def require_ratings(self, certificate: str | None) -> None:
        """Raises SleuthError for ratings of another certificate, of no answer here, too few, or of chosen answers."""
        if self.ratings is None:
            return
        if certificate != self.id:
            raise SleuthError(
                f"of the certificate {certificate}, and this one is {self.id}; rate the answers on its page"
            )
        order = [key for keys in self.queue for key in keys]
        if unknown := self.ratings.keys() - {*order}:
            raise SleuthError(
                f"{len(unknown):,} ratings are of answers that the certificate does not show: {min(unknown)}"
            )
        if len(self.ratings) < LEAST:
            few = "" if len(order) >= LEAST else f"; the questions have {len(order)}, so make more questions"
            raise SleuthError(f"{len(self.ratings)} answers are rated; at least {LEAST} are needed{few}")
        if skipped := {*order[: len(self.ratings)]} - self.ratings.keys():
            raise SleuthError(
                f"{len(skipped):,} answers before the last rated one are not rated: rate them in their order"
            )

    @property
    def rated(self) -> int:
        """Questions all of whose answers are rated, from the first on."""
        complete = [keys.keys() <= (self.ratings or {}).keys() for keys in self.queue]
        return complete.index(False) if False in complete else len(complete)

    def by_person(self) -> dict[str, Measured]:
        """`base`, `trained` and their `difference`: the shares that the person would find right of all answers, by the
        ratings and what exact match, or the judge, says of the others. An answer that was not given is wrong."""
        key = "judged" if all(one.get("judged") is not None for pair in self.pairs for one in pair) else "em"
        ratings = self.ratings or {}
        judged = [[float(one[key]) for one in pair] for pair in self.pairs]
        person = [
            [float(given_answer(one) is not None and ratings[self._key(one)]) for one in pair]
            for pair in self.pairs[: self.rated]
        ]

        def found(value: Callable[[Sequence[float]], float], *, gain: bool = False) -> Measured:
            both = [(value(one), value(other)) for one, other in zip(person, judged, strict=False)]
            return prediction_powered(both, [*map(value, judged[self.rated :])], gain=gain)

        levels = {BASE: found(lambda pair: pair[0]), TRAINED: found(lambda pair: pair[1])}
        return levels | {"difference": found(lambda pair: pair[1] - pair[0], gain=True)}

    def figures(
        self, of: Callable[[Record], bool] = lambda record: True
    ) -> Iterator[tuple[Figure, dict[str, Measured]]]:
        """Each figure that some question can have: `base`, `trained` and their `difference`, paired by question."""
        chosen = {arm: [one for one in records if of(one)] for arm, records in self.arms.items()}
        for row in FIGURES:
            if any(row.value_in(one) is not None for records in chosen.values() for one in records):
                levels = {arm: row.measure(records) for arm, records in chosen.items()}
                ours, theirs = ([row.value_in(one) for one in chosen[arm]] for arm in (TRAINED, BASE))
                yield row, levels | {"difference": _gain(ours, theirs)}

    def against_controls(self) -> dict[str, dict[str, Measured]]:
        """Exact match of each control arm on the answerable questions, and of the trained model minus it."""
        trained = {one["id"]: one["em"] for one in self.arms[TRAINED]}
        return {
            name: {
                "em": FIGURES[0].measure([{"kind": "", **one} for one in records]),
                "difference": _gain([trained[one["id"]] for one in records], [one["em"] for one in records]),
            }
            for name, records in self.controls.items()
        }

    def answerable(self) -> dict[str, list[Record]]:
        """The records of both models on the answerable questions."""
        return {arm: [*filter(is_answerable, records)] for arm, records in self.arms.items()}

    def kinds(self) -> dict[str, dict[str, Measured]]:
        """The first figure of each kind of question: exact match, or answers to the unanswerable."""
        names = sorted({one["kind"] for one in self.arms[TRAINED]})
        return {name: next(self.figures(lambda one, name=name: one["kind"] == name))[1] for name in names}

    @cached_property
    def gain(self) -> Measured:
        """What decides: the gain by the person, or without ratings that in exact match."""
        return self.by_person()["difference"] if self.ratings else dict(self.figures())[FIGURES[0]]["difference"]

    @property
    def passes(self) -> bool:
        """Whether the gain's whole interval is above zero."""
        return self.gain.side > 0

    @property
    def verdict(self) -> str:
        """`its gain in exact match, +0.050 (+0.020 to +0.080), is above zero`."""
        by = f"by {len(self.ratings)} ratings" if self.ratings else "in exact match"
        clear = "is" if self.passes else "is not"
        return f"its gain {by}, {self.gain.formatted('+.3f')}, {clear} above zero"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "certificate": self.id,
            **self.facts,
            "passes": self.passes,
            "verdict": self.verdict,
            "gain": self.gain.as_json(),
            "figures": {row.name: _plain(figures) for row, figures in self.figures()},
            "by_person": _plain(self.by_person()) if self.ratings else None,
            "controls": {name: _plain(figures) for name, figures in self.against_controls().items()},
            "kinds": {name: _plain(figures) for name, figures in self.kinds().items()},
            "failures": {arm: mode_counts(records) for arm, records in self.answerable().items()},
            "ratings": self.ratings,
        }


def _gain(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Measured:
    """A paired difference of shares with an interval that is never of width 0."""
    return prediction_powered([(value, 0.0) for value in minus(ours, theirs) if value is not None], gain=True)


def _plain(figures: Mapping[str, Measured]) -> dict[str, Any]:
    return {name: measured.as_json() for name, measured in figures.items()}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
