"""The table of figures: what each figure of an evaluation is called, how it comes from a record, and its interval.

A row stands with what it measures: those of any answer here, the others in the rooms of their families, which register
them in `Family.figures`. Evaluation files, comparisons, reports and the terminal read these rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Literal

from sleuth import family
from sleuth.answers.answer import AUDIT_SCORE, SCORE
from sleuth.dialect import Dialect
from sleuth.evaluation.intervals import Measured, Stratum, bootstrap_mean, bounded_mean, share
from sleuth.types import Score, StepFigure, Task

Record = Mapping[str, Any]
"""One answered question of an evaluation file."""


def entry_of_part(name: str, task: Task, score: Score) -> dict[str, Any]:
    """A record's entry for a part of its score; none if the score has no such part."""
    return {name: score.parts[name]} if name in score.parts else {}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: `Figure("em", "Exact match", "Share of ...")` is a share, from the entry `em` of records.

    `value(record)` is None where it is missing; `interval(values, clusters)` makes the figure of the values of all
    records that are `of` it. Without such a record an evaluation lacks the figure.
    """

    name: str
    """As in files; `*` stands for any text."""
    label: str
    """In words, for tables; `{0}` stands for what the first `*` is."""
    meaning: str
    _: KW_ONLY
    unit: str = ""
    """Empty: a number from 0 to 1."""
    short: str = ""
    """Its name in a line of the terminal, which only has figures with one."""
    heading: str = ""
    """Its name in the table of a suite's sets, which only has figures with one."""
    value: Callable[[Record], Any] | None = None
    """None: the entry of its name."""
    interval: Callable[..., Measured] = share
    of: Callable[[Record], bool] = lambda record: True
    """Whether the question of a record can have it."""
    used: Literal["everywhere", "files", "comparisons", "elsewhere"] = "everywhere"
    """In evaluation files of questions, in their comparisons, in both, or in files of something else."""
    dialects: Callable[[Dialect], bool] = lambda dialect: True
    """The dialects in whose evaluations it is."""
    alone: bool = False
    """Whether evaluations in these dialects have only such figures and the `shared` ones, if measured."""
    required: bool = False
    """Whether they have it all the same."""
    shared: bool = False
    """Whether every evaluation has it; such figures are shown behind those of the families."""
    in_steps: bool = False
    """Whether it is also a figure of steps: the mean of a part of the score."""
    chart: tuple[str, str] = ("", "")
    """Title and hint of its chart over steps, if it has one."""
    entry: Callable[[str, Task, Score], dict[str, Any]] = entry_of_part
    """What a record has of its name, for a figure without `value`."""

    @property
    def digits(self) -> int:
        """Decimals of its value."""
        return {"tokens": 1, "searches": 2, "claims": 2}.get(self.unit, 3)

    @property
    def is_share(self) -> bool:
        """Whether it is a share of episodes rather than a mean."""
        return self.interval is share

    @property
    def is_outcome(self) -> bool:
        """Whether a question has 0 or 1, or, of a score, may have."""
        return self.interval in (share, bounded_mean)

    def step_figure(self) -> StepFigure:
        """Its row among the figures of steps."""
        return StepFigure(self.name, self.meaning, *self.chart, top=1.0 if self.is_share else None)

    def value_in(self, record: Record) -> Any:
        """Its value for one record; None if that has none."""
        if not self.of(record):
            return None
        return record.get(self.name) if self.value is None else self.value(record)

    def stratum(self, records: Sequence[Record]) -> Stratum:
        """Its values, clustered by question."""
        return Stratum(values=[self.value_in(one) for one in records], clusters=[one["id"] for one in records])

    def measure(self, records: Sequence[Record]) -> Measured:
        """The figure of these records; samples of one question count as one draw."""
        stratum = self.stratum(records)
        return self.interval(stratum.values, stratum.clusters)


COMPARED = ("everywhere", "comparisons")


@family.cached
def figures() -> tuple[Figure, ...]:
    """All rows, in the order of tables."""
    rows = [row for row in family.figures() if isinstance(row, Figure)]
    return (*(row for row in rows if not row.shared), *(row for row in rows if row.shared))


@family.cached
def figure(name: str) -> Figure:
    """The row of a figure. A name that no row has is in no comparison, and its label is its words."""
    words = name.replace("_", " ")
    words = words[:1].upper() + words[1:]
    for row in sorted(figures(), key=lambda row: "*" in row.name):
        pattern = re.escape(row.name).replace(r"\*", "(.*)")
        if match := re.fullmatch(pattern, name):
            return replace(row, name=name, label=row.label.format(*match.groups()) or words)
    return Figure(name=name, label=words, meaning="", used="elsewhere", interval=bootstrap_mean)


def compared_figures() -> list[str]:
    """The names of the figures that comparisons have, but for scores, whose names depend on the recipe."""
    return [row.name for row in figures() if row.used in COMPARED and "*" not in row.name and not is_score(row.name)]


def is_score(name: str) -> bool:
    """Whether a figure is what a stage pays, a scorer other than the strict one, a user's function or a part of it."""
    return is_paid(name) or name.startswith("score_")


def is_paid(name: str) -> bool:
    """Whether a figure is what a stage pays, by its judges or an audit judge, or a part of it: only evaluations by the
    same rewards can be compared in it."""
    return name.partition("/")[0] in (SCORE, AUDIT_SCORE)


def scores_in(tables: Iterable[Iterable[str]]) -> list[str]:
    """The names of the scores among the keys of records, rows or evaluations."""
    return list(dict.fromkeys(key for keys in tables for key in keys if is_score(key)))


def question_value(name: str, record: Record) -> float | None:
    """The value of a figure for one record; None if it has none, or if the figure is in no comparison. Records of texts
    have the values of their `figures`."""
    if "figures" in record:
        return record["figures"].get(name)
    row = figure(name)
    return row.value_in(record) if row.used in COMPARED else None


def measured_figures(records: Sequence[Record], dialect: Dialect) -> dict[str, Measured]:
    """The figures of an evaluation in a dialect, from its records.

    A figure is absent if no question could have it, and unmeasured (value None, n 0) if every value is missing.
    """
    rows = [row for row in figures() if row.used in ("everywhere", "files") and (row.shared or row.dialects(dialect))]
    if alone := any(row.alone for row in rows):
        rows = [row for row in rows if row.alone or row.shared]
    rows = [row for row in rows if "*" not in row.name and not is_score(row.name)]
    found: dict[str, Measured] = {}
    for row in [*rows, *map(figure, scores_in(records))]:
        population = [record for record in records if row.of(record)]
        measured = row.measure(population)
        if population and (measured.n or row.required or not (alone and row.alone)):
            found[row.name] = measured
    return found


def record_entries(task: Task, score: Score) -> dict[str, Any]:
    """The entries of a record that figures other than exact match are read from."""
    missing = [part for name in score.notes if is_paid(name) for part in (name.partition("/")[0], name)]
    found: dict[str, Any] = dict.fromkeys(missing) | {name: score.parts[name] for name in filter(is_score, score.parts)}
    for row in figures():
        if row.value is None and row.used in COMPARED and row.name != "em" and not is_score(row.name):
            found |= row.entry(row.name, task, score)
    return found


def response_tokens(record: Record) -> float | None:
    """The number of tokens that the policy wrote; None if the retriever failed or the file does not say."""
    return None if record.get("stop") == "failed" else tokens_of(_segments(record, lambda author: author == "policy"))


def tokens_of(segments: Iterable[Mapping[str, Any]]) -> float | None:
    """The tokens of segments of a record; None if the file does not say."""
    counts: list[Any] = [segment.get("tokens") for segment in segments]
    return None if None in counts else float(sum(counts))


def _segments(record: Record, by: Callable[[str], bool]) -> list[Mapping[str, Any]]:
    return [segment for segment in record.get("segments", ()) if by(segment["author"])]


def _missing(record: Record) -> float:
    if SCORE in record:
        return float(record[SCORE] is None)
    measured = any(row.alone and row.required and row.name in record for row in figures())
    return float(record.get("em") is None and not measured)


def is_kind(kind: str) -> Callable[[Record], bool]:
    """Whether the question of a record is of this kind."""
    return lambda record: record.get("kind") == kind


_mean = partial(Figure, interval=bootstrap_mean)

FIGURES = (
    Figure(
        "em",
        "Exact match",
        "Share of answers that match a golden answer exactly, read strictly.",
        short="exact match",
        heading="EM",
    ),
    Figure(
        "em_one_hop",
        "Exact match, one hop",
        "The same over questions of one hop.",
        value=lambda record: record.get("em"),
        of=is_kind("one_hop"),
    ),
    Figure(
        "em_two_hop",
        "Exact match, two hops",
        "The same over questions of two hops.",
        value=lambda record: record.get("em"),
        of=is_kind("two_hop"),
    ),
    Figure(
        "sub_match",
        "Golden answer within the answer",
        "Share of answers that contain a golden answer; in sets of a suite.",
        heading="sub-match",
        of=lambda record: "sub_match" in record,
    ),
    _mean(
        "f1",
        "F1 of the answer's words",
        "F1 of the words that the answer shares with a golden one; in sets of a suite.",
        heading="F1",
        of=lambda record: "f1" in record,
    ),
    Figure(
        "well_formed",
        "Well-formed episodes",
        "Share of episodes in which every turn is one closed thought and one action, the last one the answer.",
        of=lambda record: "well_formed" in record,
        shared=True,
        in_steps=True,
    ),
    _mean(
        "response_tokens_mean",
        "Tokens the policy wrote",
        "Tokens that the policy wrote in an episode.",
        unit="tokens",
        heading="tokens",
        value=response_tokens,
        shared=True,
    ),
    Figure(
        "missing",
        "Missing verdicts",
        "Share of episodes without a verdict.",
        value=_missing,
        shared=True,
        required=True,
    ),
    _mean(SCORE, "Score", "What the stage pays, where no answer is compared with golden ones.", unit="reward"),
    Figure(
        "score/*",
        "{0}, as paid",
        "A reward that is paid, or a part that its judge decides.",
        unit="reward",
        interval=bounded_mean,
    ),
    _mean("audit_score", "Score by the audit judge", "The same rewards by a judge that is not paid.", unit="reward"),
    _mean("audit_score/*", "{0}, by the audit judge", "Likewise, one of them or a part.", unit="reward"),
    _mean(
        "audit_gap",
        "Score over that of the audit judge",
        "How much more the paid judge gives the same answers; it grows where that judge is gamed.",
        unit="reward",
        value=lambda record: record[SCORE] - record[AUDIT_SCORE],
        of=lambda record: None not in (record.get(SCORE), record.get(AUDIT_SCORE)),
        shared=True,
    ),
    _mean("score_*/*", "{1} of {0}", "A part of the `Score` that a function of your own returned.", unit="reward"),
    Figure(
        "score_*",
        "Score by {0}",
        "The score by another scorer, or by a function of your own.",
        unit="reward",
        interval=bounded_mean,
    ),
)
"""The figures that any answer may have."""
