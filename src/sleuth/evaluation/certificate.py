"""A certificate: what a trained model gained over its base on held-out questions.

Beside what an evaluation file has, a record has the answer `given` (None without a valid one), whether none is shown
(`silent`: it may be withheld) or one is (`shown`), whether it is right and quoted from the passage that answers
(`supported`, None where a dialect quotes nothing), and whether a judge finds it right (`judged`), where there is one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sleuth.answers.failures import mode_counts
from sleuth.evaluation.figures import Figure, Record, is_kind
from sleuth.evaluation.intervals import Measured, difference_of_shares
from sleuth.evaluation.paired import BASE, TRAINED

UNANSWERABLE = "unanswerable"
"""The kind of a question whose passages are taken out of the index."""


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


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Records of the arms `base` and `trained`, and of control arms, which need an id and `em` alone. `facts` say what
    was asked, with digests."""

    facts: Mapping[str, Any]
    arms: Mapping[str, Sequence[Record]]
    controls: Mapping[str, Sequence[Record]] = field(default_factory=dict)

    @cached_property
    def id(self) -> str:
        """Changes with the models, the questions, the documents and the answers."""
        answers = [[(one["id"], one["given"]) for one in self.arms[arm]] for arm in (BASE, TRAINED)]
        return _digest([answers, {name: fact for name, fact in self.facts.items() if name.endswith("sha256")}])

    def figures(self, kind: str | None = None) -> Iterator[tuple[Figure, dict[str, Measured]]]:
        """Each figure of some question, or of those of a kind: `base`, `trained`, and `difference`, paired."""
        chosen = {arm: [one for one in of if kind in (None, one["kind"])] for arm, of in self.arms.items()}
        for row in FIGURES:
            values = {arm: [row.value_in(one) for one in records] for arm, records in chosen.items()}
            if any(value is not None for of_arm in values.values() for value in of_arm):
                levels = {arm: row.interval(of_arm) for arm, of_arm in values.items()}
                yield row, levels | {"difference": difference_of_shares(values[TRAINED], values[BASE])}

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
            name: {"em": levels[name], "difference": difference_of_shares(*zip(*both, strict=True))}
            for name, both in asked.items()
        }

    def answerable(self) -> dict[str, list[Record]]:
        """The records of both models on the answerable questions."""
        return {arm: [*filter(is_answerable, records)] for arm, records in self.arms.items()}

    @cached_property
    def gain(self) -> Measured:
        """What decides: the gain in exact match."""
        return dict(self.figures())[FIGURES[0]]["difference"]

    @property
    def passes(self) -> bool:
        """Whether the gain's whole interval is above zero."""
        return self.gain.side > 0

    @property
    def verdict(self) -> str:
        """`its gain in exact match, +0.050 (+0.020 to +0.080), is above zero`."""
        return f"its gain in exact match, {self.gain.formatted('+.3f')}, {'is' if self.passes else 'is not'} above zero"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        tables = {
            "figures": {row.name: figures for row, figures in self.figures()},
            "kinds": self.kinds(),
            "controls": self.against_controls(),
        }
        plain = {
            name: {row: {arm: one.as_json() for arm, one in figures.items()} for row, figures in table.items()}
            for name, table in tables.items()
        }
        head = {"certificate": self.id, **self.facts, "passes": self.passes, "verdict": self.verdict}
        modes = {arm: mode_counts(records) for arm, records in self.answerable().items()}
        return {**head, "gain": self.gain.as_json(), **plain, "failures": modes}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
