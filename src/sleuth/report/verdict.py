"""What a run came to, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Set

from sleuth.metrics.intervals import Measured
from sleuth.metrics.paired import Evaluation, mean_difference, records_of, side_of_zero
from sleuth.report.figures import measured_of
from sleuth.report.run_files import BASE, TRAINED


def verdict(evaluations: Mapping[str, Evaluation]) -> str:
    """The run in one sentence, from the evaluation files alone."""
    base, trained = (measured_of(evaluations.get(name, {}).get("em")) for name in (BASE, TRAINED))
    if base is None and trained is None and (certified := _certified(evaluations)):
        return certified
    if base is None or trained is None:
        lacking = [f"eval/{name}.json" for name, one in ((BASE, base), (TRAINED, trained)) if one is None]
        return f"Not measured yet: no exact match in {' and '.join(lacking)}."
    side = side_of_zero(mean_difference("em", *(records_of(evaluations, name) for name in (TRAINED, BASE))))
    greedy = evaluations[TRAINED].get("temperature") == 0
    move = {1: "rose", 0: "did not clearly move:", -1: "fell"}[side]
    sets = len(evaluations[TRAINED].get("sets", ()))
    over = f", as the mean over {sets} sets," if sets else ""
    return (
        f"{'Greedy exact match' if greedy else 'Exact match'} on {trained.n} questions{over} {move} "
        f"from {interval(base)} to {interval(trained)}."
    )


def _certified(evaluations: Mapping[str, Evaluation]) -> str:
    """What the probes of a model's thoughts came to, in the order of their certificates' names; empty without one."""
    told = {name: one["certificate"]["claim"] for name, one in evaluations.items() if "certificate" in one}
    return " ".join(f"{name}: {claim}." for name, claim in told.items())


def overlap(evaluations: Mapping[str, Evaluation], played: Set[str]) -> str:
    """Whether the evaluated questions are among those that the stored rollouts played; empty if that is unknown."""
    asked = {record["question"] for name in (BASE, TRAINED) for record in records_of(evaluations, name)}
    if not asked or not played:
        return ""
    if seen := len(asked & played):
        return (
            f"Careful: {seen} of these {len(asked)} questions are also among the {len(played)} in the stored rollouts."
        )
    return f"None of these {len(asked)} questions is among the {len(played)} in the stored rollouts."


def interval(measured: Measured) -> str:
    """`0.81 [0.78, 0.84]`."""
    return f"{measured.value:.2f} [{measured.low:.2f}, {measured.high:.2f}]"
