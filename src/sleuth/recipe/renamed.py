"""Keys of recipes and figures of runs that had another name before, in one table each.

A recipe that somebody wrote is refused in a line that names the new key. What Sleuth itself wrote, the resolved recipe
and the metrics of a run, is read under the new names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KEYS: dict[tuple[str, ...], str] = {
    ("stage", "also_forced"): "forced_search_arm",
    ("stage", "credit", "charges"): "penalty",
    ("stage", "credit", "pays"): "bonus",
    ("stage", "engine", "ahead"): "max_policy_lag",
    ("stage", "engine", "patience"): "unavailable_timeout",
    ("stage", "loss", "old"): "old_logprobs",
}
"""By the way to a key, without the numbers of lists: its last part today."""
FIGURES = {"mismatch_kl": "sampler_learner_kl", "signal_fraction": "nonzero_advantage_fraction"}
"""Figures of `metrics.jsonl`."""


def new_name(key: Sequence[str | int]) -> str | None:
    """What the last part of `key` is called today; None where it was never called otherwise."""
    return KEYS.get(tuple(part for part in key if isinstance(part, str)))


def renamed_keys(value: Any, above: tuple[str, ...] = ()) -> Any:
    """The tables of a recipe with today's keys."""
    if isinstance(value, list):
        return [renamed_keys(inner, above) for inner in value]
    if not isinstance(value, Mapping):
        return value
    return {KEYS.get((*above, name), name): renamed_keys(inner, (*above, name)) for name, inner in value.items()}


def renamed_figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `metrics.jsonl` with today's names."""
    return {FIGURES.get(name, name): value for name, value in row.items()}
