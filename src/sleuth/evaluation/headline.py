"""Evaluations in a line for the terminal: the figures of one, and what changed between two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sleuth.answers.answer import SCORE
from sleuth.evaluation.intervals import Measured
from sleuth.evaluation.paired import Evaluation, mean_difference, records_of

SHOWN = {
    "em": "exact match",
    "citation_f1": "F1 of the citations",
    "claim_f1": "F1 of the claims",
    "win_rate": "preferred",
    "searched": "searched",
    "searches_mean": "searches",
}
"""The figures of a line and their names; the first one that two evaluations share is the headline."""
FIRST = 3
"""How many figures are shown of an evaluation that has none of SHOWN."""
LEADING = 6
"""How many are shown of those that an evaluation names as its headline."""


def leading_figures(*evaluations: Evaluation, others: Iterable[str] = SHOWN) -> list[str]:
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
    keys = keys or [key for key in SHOWN if key in measured] or [*measured][:FIRST]
    figures = [f"{SHOWN.get(key, key)} {_with_interval(measured[key])}" for key in keys[:LEADING]]
    more = [f"{len(keys) - LEADING} more figures"] if len(keys) > LEADING else []
    counts = [f"n {measured[keys[0]].n:,}"] if keys else []
    return f"{name}: {', '.join([*figures, *more, *counts]) or 'nothing measured'}"


def _own(keys: Sequence[str], measured: Mapping[str, Measured]) -> list[str]:
    """Without a function that is all of the score, and so has the same value."""
    return [key for key in keys if key == keys[0] or "/" in key or measured[key] != measured[keys[0]]]


def headline(evaluations: Mapping[str, Evaluation], before: str, after: str) -> str | None:
    """`exact match 0.175 -> 0.933 (+0.758 [0.72, 0.79])`, the difference paired by question, with its 95 % interval;
    None if the two evaluations share no question or no such figure."""
    one, other = evaluations[before], evaluations[after]
    for key in leading_figures(other, one):
        levels = [contents[key].get("value") for contents in (one, other) if _is_measured(contents.get(key))]
        if len(levels) < 2 or None in levels:
            continue
        change = mean_difference(key, records_of(evaluations, after), records_of(evaluations, before))
        if change is not None and change.value is not None:
            between = f"{change.value:+.3f} [{change.low:.2f}, {change.high:.2f}]"
            return f"{SHOWN.get(key, key)} {levels[0]:.3f} -> {levels[1]:.3f} ({between})"
    return None


def _is_measured(figure: object) -> bool:
    return isinstance(figure, Mapping) and figure.keys() == {"value", "low", "high", "n"}


def _with_interval(measured: Measured) -> str:
    if measured.value is None:
        return "missing"
    return f"{measured.value:.3f} [{measured.low:.2f}, {measured.high:.2f}]"
