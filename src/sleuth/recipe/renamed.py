"""Recipe keys and figures of former versions: renamed ones with their new names, deleted ones with their successors.

A recipe with a former key is an error that says what to write. Resolved recipes and metrics, which Sleuth itself wrote,
are read with the new names, and without deleted keys that had their default value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Deleted:
    """The default value that every resolved recipe of a former version has, and what took the key's place."""

    default: Any
    instead: str


SHUFFLED = "each question is played once an epoch, in shuffled order; choose questions with kinds, limit or a file"
DELETED: dict[tuple[str, ...], Deleted] = {
    ("data", "draw"): Deleted("shuffled", SHUFFLED),
    ("data", "floor"): Deleted(0.1, SHUFFLED),
    ("data", "rate_bounds"): Deleted([0.1, 0.9], SHUFFLED),
    ("alarms", "judge_divergence"): Deleted("warn", "no second judge watches the first; examine it: least_accuracy"),
    ("env", "search_seconds"): Deleted(30.0, "it is 30 (`SEARCH_SECONDS` in sleuth.retrieval.remote)"),
    ("held_out", "suffix_tokens"): Deleted(128, "it is 128 (`HELD_OUT_SUFFIX` in sleuth.think.thought_rows)"),
    ("init", "tie"): Deleted(True, "random weights have one tensor for input and output embeddings"),
    ("judge", "again"): Deleted(8, "it is 8 (`VERDICT_RETRIES` in sleuth.judges.cache)"),
    ("loss", "sequence_mask"): Deleted(None, "set tis_cap, or a function of your own, which may leave rows out"),
    ("loss", "std_floor"): Deleted(1e-4, "the smallest deviation is 1e-4 (`STD_FLOOR` in sleuth.learn.losses)"),
    ("env", "least_thought_tokens"): Deleted(None, "a thought has the same budget in all steps"),
    ("reward", "scorer"): Deleted("frozen", 'a gain is by the weights its stage starts with; only "answer" has one'),
    ("reward", "decay"): Deleted(None, "a gain is by the weights at the start of the stage"),
    ("reward", "schedule"): Deleted("round_robin", "all pairs of a pool are compared"),
    ("stage", "master_weights"): Deleted(True, "with bfloat16 weights the optimiser steps float32 copies of them"),
    ("judge", "verdicts"): Deleted(None, "verdicts are kept in `verdicts.sqlite` of the run's folder"),
    ("reward", "watch"): Deleted(None, "examine the judge before the stage: least_accuracy, or `sleuth check judge`"),
    ("teacher", "right"): Deleted(None, 'with when = "wrong", the scorer says what is right, or the highest score'),
    ("teacher", "seconds"): Deleted(300.0, "the teacher is loaded beside the policy"),
    ("teacher", "url"): Deleted(None, "the teacher is loaded beside the policy, on several ranks in shards"),
    ("reward", "dropout"): Deleted(0.0, "all criteria of an answer are judged; a `function` may draw from them"),
    ("stage", "against"): Deleted(None, "a stage compares with the recipe's model, `sleuth win-rate` with any"),
    ("stage", "rewrites"): Deleted(None, "a pool holds the policy's own continuations and the original"),
    ("stage", "min_siblings"): Deleted(2, "a group is kept from two scores on, which its advantages need"),
    ("stage", "teacher"): Deleted(None, "a warm start plays the policy; a `grpo` stage may have a [stage.teacher]"),
}
"""Deleted key: the last parts of its place, without list indices."""
OWN_REWARD = 'set kind = "python" and a function of your own, which sees the episode and its passages'
KINDS = {
    ("reward", "answer_from_evidence"): OWN_REWARD,
    ("reward", "evidence_in_results"): OWN_REWARD,
    ("reward", "mechanics"): 'set kind = "pairwise" and a judge, or kind = "python" and a function of your own',
    ("reward", "pointwise"): 'set kind = "pairwise", or kind = "python" and a function of your own that asks a model',
    ("reward", "searched"): OWN_REWARD,
    ("reward", "sub_match"): 'set kind = "token_f1", or kind = "python" and a function of your own',
    ("judge", "nli"): 'serve a judge and set kind = "http", or set judge = "lexical"',
    ("trackers", "trackio"): "a hook with `log` in `hooks` of a stage gets the same figures",
}
"""Deleted `kind`, or entry of a list: (the table or list that had it, its value) -> what took its place."""


def new_name(key: Sequence[str | int]) -> str | None:
    """The new name of the last part of `key`; None if it was never renamed."""
    return KEYS.get(_parts(key))


def deleted(key: Sequence[str | int]) -> Deleted | None:
    """What is known of a key that was deleted; None if there never was one."""
    parts = _parts(key)
    return next((found for at in range(len(parts)) if (found := DELETED.get(parts[at:])) is not None), None)


def instead_of_kind(key: Sequence[str | int], value: object) -> str | None:
    """What took the place of a `kind` at this key; None if there never was one."""
    return KINDS.get((_parts(key)[-2], str(value))) if len(_parts(key)) > 1 else None


def renamed_keys(value: Any, above: tuple[str, ...] = ()) -> Any:
    """The tables of a resolved recipe with the new keys, and without deleted ones that change nothing."""
    if isinstance(value, list):
        return [renamed_keys(inner, above) for inner in value]
    if not isinstance(value, Mapping):
        return value
    return {
        KEYS.get((*above, name), name): renamed_keys(inner, (*above, name))
        for name, inner in value.items()
        if (gone := deleted((*above, name))) is None or inner != gone.default
    }


def renamed_figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `metrics.jsonl` with the new names."""
    return {FIGURES.get(name, name): value for name, value in row.items()}


def _parts(key: Sequence[str | int]) -> tuple[str, ...]:
    return tuple(part for part in key if isinstance(part, str))
