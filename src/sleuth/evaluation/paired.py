"""Paired comparison of evaluation files, matched by question, and evaluations in a line for the terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from sleuth.answers.answer import SCORE
from sleuth.evaluation.figures import Record, figure, figures, question_value
from sleuth.evaluation.intervals import Measured, Stratum, mean_of_means
from sleuth.evaluation.significance import Difference, Runs
from sleuth.evaluation.significance import difference as arm_difference

Evaluation = Mapping[str, Any]
"""The contents of an `eval/NAME.json`."""


def by_question(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The samples of each question by its id, in their order."""
    grouped: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        grouped[record["id"]].append(record)
    return dict(grouped)


def question_means(key: str, questions: Sequence[str], runs: Sequence[Mapping[str, Sequence[Record]]]) -> Runs:
    """The table `[run][question]` of a figure: the mean over the question's samples, None if none has a value. Each run
    is its records `by_question`."""
    return [[_mean([question_value(key, record) for record in run[name]]) for name in questions] for run in runs]


def difference(key: str, ours: Iterable[Record], theirs: Iterable[Record]) -> Difference | None:
    """Ours minus theirs over the questions that both were asked; None if none has the figure on both sides."""
    one, other = by_question(ours), by_question(theirs)
    common = [name for name in one if name in other]
    tables = (question_means(key, common, [run]) for run in (one, other))
    return arm_difference(*tables, is_share=figure(key).is_share)


def mean_difference(key: str, ours: Sequence[Record], theirs: Sequence[Record]) -> Measured | None:
    """The measured part of `difference`; for a suite, whose records name their set, the mean over its sets."""
    if not any("set" in record for record in ours):
        result = difference(key, ours, theirs)
        return result and result.measured
    sets: defaultdict[str, tuple[list[Record], list[Record]]] = defaultdict(lambda: ([], []))
    for side, records in enumerate((ours, theirs)):
        for record in records:
            sets[record.get("set", "")][side].append(record)
    measured = mean_of_means([_differences(key, *sides) for sides in sets.values() if all(sides)])
    return measured if measured.n else None


def _differences(key: str, ours: Sequence[Record], theirs: Sequence[Record]) -> Stratum:
    """Ours minus theirs for each question."""
    one, other = by_question(ours), by_question(theirs)
    common = [name for name in one if name in other]
    [a], [b] = (question_means(key, common, [run]) for run in (one, other))
    pairs = zip(a, b, strict=True)
    return Stratum(values=[None if left is None or right is None else left - right for left, right in pairs])


def records_of(evaluations: Mapping[str, Evaluation], name: str) -> list[Record]:
    """The records of an evaluation. Those of a suite come from the files of its sets, with the name of the set
    added."""
    evaluation = evaluations.get(name, {})
    sets = {set_name: evaluations.get(f"{name}@{set_name}", {}) for set_name in evaluation.get("sets", ())}
    suite = [{**record, "set": set_name} for set_name, one in sets.items() for record in one.get("records", ())]
    return [*evaluation.get("records", ()), *suite]


def paired_records(*runs: Iterable[Record]) -> list[tuple[Record, ...]]:
    """The records of the questions that all runs share, in the order of the first; n-th samples are paired."""
    numbered = [_numbered(records) for records in runs]
    return [tuple(run[key] for run in numbered) for key in numbered[0] if all(key in run for run in numbered)]


def _numbered(records: Iterable[Record]) -> dict[tuple[str, int], Record]:
    """The records by question and sample: `("q7", 2)` is the second answer to q7."""
    counts: Counter[str] = Counter()
    numbered = {}
    for record in records:
        counts[record["id"]] += 1
        numbered[record["id"], counts[record["id"]]] = record
    return numbered


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None


# -- in a line --------------------------------------------------------------------------------------------------------

FIRST = 3
"""How many figures are shown of an evaluation that has none with a short name."""
LEADING = 6
"""How many are shown of those that an evaluation names as its headline."""


def leading_figures(*evaluations: Evaluation, others: Iterable[str]) -> list[str]:
    """The figures that evaluations are compared by, the first one first: the score of their stage and its parts, where
    they name these as their headline, and `others`, unless all do. Scores of different rewards are not compared."""
    named = [key for one in evaluations for key in one.get("headline", ()) if key != SCORE or same_reward(*evaluations)]
    return list(dict.fromkeys([*named, *(() if all(one.get("headline") for one in evaluations) else others)]))


def same_reward(*evaluations: Evaluation) -> bool:
    """Whether the evaluations that have a `score` computed it by the same reward."""
    return len({one["reward"] for one in evaluations if "reward" in one}) <= 1


def evaluation_line(name: str, evaluation: Evaluation) -> str:
    """`base: exact match 0.175 [0.15, 0.21], searched 0.000 [0.00, 0.01], n 600`; only the name if nothing was
    measured. If the evaluation names a headline, only that: `base: score 0.310 [0.21, 0.42], n 50`."""
    measured = {key: Measured(**figure) for key, figure in evaluation.items() if _is_measured(figure)}
    keys = _own([key for key in evaluation.get("headline", ()) if key in measured], measured)
    keys = keys or [key for key in _with_short_name() if key in measured] or [*measured][:FIRST]
    shown = [f"{figure(key).short or key} {measured[key].bracketed()}" for key in keys[:LEADING]]
    more = [f"{len(keys) - LEADING} more figures"] if len(keys) > LEADING else []
    counts = [f"n {measured[keys[0]].n:,}"] if keys else []
    return f"{name}: {', '.join([*shown, *more, *counts]) or 'nothing measured'}"


def _own(keys: Sequence[str], measured: Mapping[str, Measured]) -> list[str]:
    """Without a function that is all of the score, and so has the same value."""
    return [key for key in keys if key == keys[0] or "/" in key or measured[key] != measured[keys[0]]]


def headline(evaluations: Mapping[str, Evaluation], before: str, after: str) -> str | None:
    """`exact match 0.175 -> 0.933 (+0.758 [0.72, 0.79])`, the difference paired by question, with its 95 % interval;
    None if the two evaluations share no question or no such figure."""
    one, other = evaluations[before], evaluations[after]
    for key in leading_figures(other, one, others=_with_short_name()):
        levels = [contents[key].get("value") for contents in (one, other) if _is_measured(contents.get(key))]
        if len(levels) < 2 or None in levels:
            continue
        change = mean_difference(key, records_of(evaluations, after), records_of(evaluations, before))
        if change is not None and change.value is not None:
            between = f"{change.value:+.3f} [{change.low:.2f}, {change.high:.2f}]"
            return f"{figure(key).short or key} {levels[0]:.3f} -> {levels[1]:.3f} ({between})"
    return None


def _with_short_name() -> list[str]:
    return [row.name for row in figures() if row.short]


def _is_measured(figure: object) -> bool:
    return isinstance(figure, Mapping) and figure.keys() == {"value", "low", "high", "n"}
