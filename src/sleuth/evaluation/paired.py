"""Paired comparison of evaluation files, matched by question, and evaluations in a line for the terminal."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth.evaluation.figures import Record, figure, figures, is_paid, question_value, scores_in
from sleuth.evaluation.intervals import Measured, Stratum, mean_of_means, measured_in, minus
from sleuth.evaluation.significance import Runs

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


def set_tables(key: str, arms: Sequence[Sequence[Iterable[Record]]]) -> list[list[Runs]]:
    """For each set of a suite that every run of every arm was asked, the table of each arm over the questions that all
    were asked. Records that name no set are one."""
    grouped = [[_by_set(records) for records in arm] for arm in arms]
    first, *others = [run for arm in grouped for run in arm]
    tables = []
    for name in (name for name in first if all(name in run for run in others)):
        common = [question for question in first[name] if all(question in run[name] for run in others)]
        tables.append([question_means(key, common, [run[name] for run in arm]) for arm in grouped])
    return tables


def mean_difference(key: str, ours: Iterable[Record], theirs: Iterable[Record]) -> Measured | None:
    """Ours minus theirs over the questions that both were asked, without a test; None if none has the figure on both
    sides. For a suite, whose records name their set, it is the mean over the sets that both were asked."""
    tables = set_tables(key, [[ours], [theirs]])
    measured = mean_of_means([Stratum(values=minus(one, other)) for [one], [other] in tables])
    return measured if measured.n else None


def _by_set(records: Iterable[Record]) -> dict[str, dict[str, list[Record]]]:
    grouped: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        grouped[record.get("set", "")].append(record)
    return {name: by_question(of_set) for name, of_set in grouped.items()}


def records_of(evaluations: Mapping[str, Evaluation], name: str) -> list[Record]:
    """The records of an evaluation, with the name of their set if it is of one. Those of a suite come from the files of
    its sets."""
    evaluation = evaluations.get(name, {})
    sets = {set_name: evaluations.get(f"{name}@{set_name}", {}) for set_name in evaluation.get("sets", ())}
    if own := evaluation.get("set", {}).get("name"):
        sets = {own: evaluation}
    named = ({**record, "set": set_name} for set_name, one in sets.items() for record in one.get("records", ()))
    return [*named] if sets else [*evaluation.get("records", ())]


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


# -- base beside trained -----------------------------------------------------------------------------------------------


BASE, TRAINED = "base", "trained"
"""The evaluations that reports and cards compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """One figure by arm, None where an arm lacks it; `difference` is trained minus base over the questions that both
    answered, None without records."""

    key: str
    measured: Mapping[str, Measured | None]
    difference: Measured | None


def arms_of(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Names of the evaluations that are columns: base, trained, then the others. Sets of a suite are left out: the
    suite has their mean."""
    first = [name for name in (BASE, TRAINED) if name in evaluations]
    return first + [name for name, one in evaluations.items() if name not in first and "set" not in one]


def figure_rows(evaluations: Mapping[str, Evaluation]) -> list[FigureRow]:
    """A row for each figure of some evaluation: those that lead, those of the table of figures, then the others."""
    arms = arms_of(evaluations)
    found = [key for name in arms for key, value in evaluations[name].items() if measured_of(value)]
    leads = [key for name in arms for key in evaluations[name].get("headline", ())]
    keys = dict.fromkeys([*leads, *(row.name for row in figures()), *found])
    return [_row(key, arms, evaluations) for key in keys if key in found]


def set_rows(evaluations: Mapping[str, Evaluation]) -> list[tuple[str, FigureRow]]:
    """Exact match and the scores of other scorers for each test set of the suites, with its name; none without one."""
    arms = arms_of(evaluations)
    asked = {name: evaluations[name].get("sets", {}) for name in arms}
    rows = []
    for set_name in dict.fromkeys(name for sets in asked.values() for name in sets):
        found = {name: sets.get(set_name, {}) for name, sets in asked.items()}
        leads = evaluations.get(arms[0], {}).get("headline", ())
        records = [evaluations.get(f"{name}@{set_name}", {}).get("records", ()) for name in (TRAINED, BASE)]
        for key in dict.fromkeys([*leads, "em", *scores_in(found.values())]):
            measured = {name: measured_of(one.get(key)) for name, one in found.items()}
            rows.append((set_name, FigureRow(key=key, measured=measured, difference=mean_difference(key, *records))))
    return rows


def measured_of(value: object) -> Measured | None:
    """An entry of an evaluation file as a figure; None if it is something else or has no value."""
    parts = ("value", "low", "high", "n")
    if not isinstance(value, Mapping) or not all(isinstance(value.get(part), int | float) for part in parts):
        return None
    return Measured(**{part: value[part] for part in parts})


def _row(key: str, arms: Sequence[str], evaluations: Mapping[str, Evaluation]) -> FigureRow:
    sides = [evaluations[name] for name in (TRAINED, BASE) if name in evaluations]
    records = (records_of(evaluations, name) for name in (TRAINED, BASE))
    return FigureRow(
        key=key,
        measured={arm: measured_of(evaluations[arm].get(key)) for arm in arms},
        difference=mean_difference(key, *records) if not is_paid(key) or same_reward(*sides) else None,
    )


Table = Sequence[tuple[str, ...]]
"""A table as text: its heading and its rows."""


def measured_tables(folder: Path) -> list[Table]:
    """The evaluations in a folder, for a card. Those that share a figure are columns of one table, with the difference
    of base and trained; a suite has its means, and by set what leads. The words are those of people, not keys."""
    evaluations = {file.stem: json.loads(file.read_bytes()) for file in sorted(folder.glob("*.json"))}
    keys = {name: measured_in(one).keys() for name, one in evaluations.items()}
    groups: list[list[str]] = []
    for name in filter(keys.get, arms_of(evaluations)):
        group = next((group for group in groups if keys[name] & keys[group[0]]), [])
        groups += [] if group else [group]
        group.append(name)
    return [
        _table({name: evaluations[name] for name in keys if {name, name.partition("@")[0]} & {*group}})
        for group in groups
    ]


def _table(evaluations: Mapping[str, Evaluation]) -> Table:
    arms, by_set = arms_of(evaluations), set_rows(evaluations)
    over = [f"mean of {len(dict.fromkeys(name for name, _ in by_set))}"] if by_set else []
    compared = BASE in arms and TRAINED in arms
    rows = [("figure", *(["test set"] if over else []), *arms, *(["difference"] if compared else []), "n")]
    shown = [*(([name], row) for name, row in by_set), *((over, row) for row in figure_rows(evaluations))]
    order = [row.key for _, row in shown]
    for where, row in sorted(shown, key=lambda one: order.index(one[1].key)):
        form, bound = (f".{digits}f" for digits in (figure(row.key).digits, min(figure(row.key).digits, 2)))
        lacking = {arm: "missing" if row.key in evaluations[arm] else "" for arm in arms}
        cells = (one.bracketed(form, bound) if one else lacking[arm] for arm, one in row.measured.items())
        apart = [row.difference.bracketed(f"+{form}", f"+{bound}") if row.difference else ""] if compared else []
        counts = dict.fromkeys(f"{one.n:,}" for one in row.measured.values() if one)
        rows.append((figure(row.key).label, *where, *cells, *apart, " and ".join(counts)))
    return rows


# -- in a line --------------------------------------------------------------------------------------------------------

FIRST = 3
"""How many figures are shown of an evaluation that has none with a short name."""
LEADING = 6
"""How many are shown of those that an evaluation names as its headline."""


def leading_figures(*evaluations: Evaluation, others: Iterable[str]) -> list[str]:
    """The figures that evaluations are compared by, the first one first: the score of their stage and its parts, where
    they name these as their headline, and `others`, unless all do. Scores of different rewards are not compared."""
    named = [
        key for one in evaluations for key in one.get("headline", ()) if not is_paid(key) or same_reward(*evaluations)
    ]
    return list(dict.fromkeys([*named, *(() if all(one.get("headline") for one in evaluations) else others)]))


def same_reward(*evaluations: Evaluation) -> bool:
    """Whether the evaluations that have a `score` computed it by the same reward."""
    return len({one["reward"] for one in evaluations if "reward" in one}) <= 1


def evaluation_line(name: str, evaluation: Evaluation) -> str:
    """`base: exact match 0.175 [0.15, 0.21], searched 0.000 [0.00, 0.01], n 600`; only the name if nothing was
    measured. If the evaluation names a headline, only that: `base: score 0.310 [0.21, 0.42], n 50`."""
    measured = measured_in(evaluation)
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
    measured = [measured_in(one), measured_in(other)]
    for key in leading_figures(other, one, others=_with_short_name()):
        levels = [of[key].value for of in measured if key in of]
        if len(levels) < 2 or None in levels:
            continue
        change = mean_difference(key, records_of(evaluations, after), records_of(evaluations, before))
        if change is not None and change.value is not None:
            between = f"{change.value:+.3f} [{change.low:.2f}, {change.high:.2f}]"
            return f"{figure(key).short or key} {levels[0]:.3f} -> {levels[1]:.3f} ({between})"
    return None


def _with_short_name() -> list[str]:
    return [row.name for row in figures() if row.short]
