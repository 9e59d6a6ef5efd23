"""Former names of recipe keys and of metrics.

A recipe with a former key is an error that names the new one. Resolved recipes and metrics, which Sleuth itself wrote,
are read with the new names.
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
"""Former key, without list indices -> new name of its last part."""
FIGURES = {"mismatch_kl": "sampler_learner_kl", "signal_fraction": "nonzero_advantage_fraction"}
"""Former name -> new name of a figure in `metrics.jsonl`."""


def new_name(key: Sequence[str | int]) -> str | None:
    """The new name of the last part of `key`; None if it was never renamed."""
    return KEYS.get(tuple(part for part in key if isinstance(part, str)))


def renamed_keys(value: Any, above: tuple[str, ...] = ()) -> Any:
    """The tables of a recipe with the new keys."""
    if isinstance(value, list):
        return [renamed_keys(inner, above) for inner in value]
    if not isinstance(value, Mapping):
        return value
    return {KEYS.get((*above, name), name): renamed_keys(inner, (*above, name)) for name, inner in value.items()}


def renamed_figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `metrics.jsonl` with the new names."""
    return {FIGURES.get(name, name): value for name, value in row.items()}
