"""Evaluations in a line for the terminal: the figures of one, and what changed between two."""

from __future__ import annotations

from collections.abc import Mapping

from sleuth.metrics.intervals import Measured
from sleuth.metrics.paired import Evaluation, mean_difference, records_of

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


def evaluation_line(name: str, evaluation: Evaluation) -> str:
    """`base: exact match 0.175 [0.15, 0.21], searched 0.000 [0.00, 0.01], n 600`; only the name if nothing was
    measured."""
    measured = {key: Measured(**figure) for key, figure in evaluation.items() if _is_measured(figure)}
    keys = [key for key in SHOWN if key in measured] or [*measured][:FIRST]
    figures = [f"{SHOWN.get(key, key)} {_with_interval(measured[key])}" for key in keys]
    counts = [f"n {measured[keys[0]].n:,}"] if keys else []
    return f"{name}: {', '.join([*figures, *counts]) or 'nothing measured'}"


def headline(evaluations: Mapping[str, Evaluation], before: str, after: str) -> str | None:
    """`exact match 0.175 -> 0.933 (+0.758 [0.72, 0.79])`, the difference paired by question, with its 95 % interval;
    None if the two evaluations share no question or no figure of SHOWN."""
    one, other = evaluations[before], evaluations[after]
    for key in SHOWN:
        levels = [contents[key].get("value") for contents in (one, other) if _is_measured(contents.get(key))]
        if len(levels) < 2 or None in levels:
            continue
        change = mean_difference(key, records_of(evaluations, after), records_of(evaluations, before))
        if change is not None and change.value is not None:
            between = f"{change.value:+.3f} [{change.low:.2f}, {change.high:.2f}]"
            return f"{SHOWN[key]} {levels[0]:.3f} -> {levels[1]:.3f} ({between})"
    return None


def _is_measured(figure: object) -> bool:
    return isinstance(figure, Mapping) and figure.keys() == {"value", "low", "high", "n"}


def _with_interval(measured: Measured) -> str:
    if measured.value is None:
        return "missing"
    return f"{measured.value:.3f} [{measured.low:.2f}, {measured.high:.2f}]"
