"""The records of an evaluation file to the figures of a test set, and those of several sets to their simple mean.

Every figure is computed from the records as they are stored, so that a file tells the same whenever it is read. Samples
of one question count as one draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sleuth.metrics.intervals import Measured, Stratum, bootstrap_mean, mean_of_means, share
from sleuth.metrics.paired import question_value
from sleuth.rewards.match import sub_match, token_f1

Record = Mapping[str, Any]
"""One answered question, as `sleuth.evaluation.evaluate.question_record` has it."""


def record_values(record: Record) -> dict[str, float | None]:
    """What a set's records hold beside those of any evaluation: `sub_match` and `f1` of the answer.

    As in exact match, what the strict reader did not take for an answer matches nothing, and without a verdict there
    is none: None.
    """
    if record["em"] is None:
        return {"sub_match": None, "f1": None}
    answer = record["answer"] if record["note"] in ("correct", "wrong") else None
    if answer is None:
        return {"sub_match": 0.0, "f1": 0.0}
    golden = record["golden_answers"]
    return {"sub_match": float(sub_match(answer, golden)), "f1": token_f1(answer, golden)}


def set_figures(records: Sequence[Record]) -> dict[str, Measured]:
    """`em` and `sub_match` with Wilson's interval; `f1`, searches and tokens (that the policy wrote in an episode) with
    that of a bootstrap over questions."""
    strata = {name: _stratum(records, name) for name in FIGURES}
    return {name: measure(strata[name].values, strata[name].clusters) for name, measure in FIGURES.items()}


def mean_over_sets(records: Sequence[Sequence[Record]]) -> dict[str, Measured]:
    """The simple mean of each figure over the sets, with a stratified bootstrap over questions."""
    return {name: mean_of_means([_stratum(of_set, name) for of_set in records]) for name in FIGURES}


def _stratum(records: Sequence[Record], name: str) -> Stratum:
    """The values, and the question that each belongs to."""
    return Stratum(
        values=[question_value(name, record) for record in records], clusters=[record["id"] for record in records]
    )


FIGURES: dict[str, Callable[..., Measured]] = {
    "em": share,
    "sub_match": share,
    "f1": bootstrap_mean,
    "searches_mean": bootstrap_mean,
    "response_tokens_mean": bootstrap_mean,
}
"""How each figure of a set is measured; a record's part in it is `question_value`'s."""
