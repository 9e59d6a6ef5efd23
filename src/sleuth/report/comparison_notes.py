"""What a reader must know before the figures of a comparison: which questions, which intervals, and in what else than
its name one arm differs from another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sleuth.metrics.paired import by_question
from sleuth.report.arms import Arm, Asked
from sleuth.report.matching import Matched
from sleuth.report.summary import flat
from sleuth.runs.protocol import HISTORY, ProtocolCard
from sleuth.runs.protocol_differences import differences

SAME_PROTOCOL = "All were asked under the same protocol."
NO_PART = ("name", "seed", "resolved_from", "trackers")
"""Keys of a recipe that tell two runs of the same kind apart."""


def notes(arms: Sequence[Arm], matched: Matched) -> list[str]:
    """Which questions are compared and what the intervals speak of; then, how arms were asked otherwise."""
    return [*_questions(matched), _intervals(arms), *_asking(arms), *_unlike_members(arms)]


def protocol_sentences(arms: Sequence[Arm]) -> list[str]:
    """How each arm's protocol differs from the first one's, in sentences; and what its checkpoint was trained for,
    where both checkpoints carry that. One sentence where nothing differs."""
    untold = [arm.name for arm in arms if arm.first.asked is None]
    if untold:
        return [f"{' and '.join(untold)}: the file does not tell under which protocol it was asked."]
    first, *others = arms
    found = [f"{sentence}." for other in others for sentence in _apart(first, other)]
    return found or [SAME_PROTOCOL]


def recipe_differences(arms: Sequence[Arm]) -> dict[str, dict[str, str]]:
    """`found[key][arm]`: what the first runs of the arms were told otherwise, by the key of the recipe. Empty where an
    arm has no run, or where all have the same one."""
    recipes = {arm.name: _told(arm.first) for arm in arms}
    if not all(recipes.values()) or len({arm.first.run.folder for arm in arms if arm.first.run}) < 2:
        return {}
    keys = dict.fromkeys(key for told in recipes.values() for key in told)
    values = {key: {name: told.get(key, "absent") for name, told in recipes.items()} for key in keys}
    return {key: of_arms for key, of_arms in values.items() if len(set(of_arms.values())) > 1}


def _questions(matched: Matched) -> Iterator[str]:
    yield f"{_count(len(matched.questions), 'question')} that all were asked, paired by id."
    for name, count in matched.left_out.items():
        if count:
            yield f"Left out: {_count(count, 'question')} of {name} that not all were asked."
    if matched.reworded:
        count = _count(matched.reworded, "id")
        yield f"Left out: {count} that all have, asked in other words or with other golden answers."


def _intervals(arms: Sequence[Arm]) -> str:
    several = [f"{arm.name} {len(arm.members)}" for arm in arms if len(arm.members) > 1]
    if not several:
        return "Intervals are over questions: they speak of these runs, not of what another seed would give."
    single = [arm.name for arm in arms if len(arm.members) == 1]
    alone = f"; {' and '.join(single)} is one run, whose luck they cannot tell" if single else ""
    return f"Intervals are over runs and questions ({', '.join(several)} runs){alone}."


def _asking(arms: Sequence[Arm]) -> Iterator[str]:
    heat = {arm.name: arm.first.evaluation.get("temperature") for arm in arms}
    if len(set(heat.values())) > 1:
        yield "Temperatures differ: " + ", ".join(f"{name} {told}" for name, told in heat.items()) + "."
    samples = {arm.name: max(map(len, by_question(arm.first.evaluation["records"]).values())) for arm in arms}
    if len(set(samples.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in samples.items())
        yield f"Samples a question differ: {told}; a question counts by their mean."


def _unlike_members(arms: Sequence[Arm]) -> Iterator[str]:
    """Runs of one arm should differ by their seed alone."""
    for arm in arms:
        recipes = [_told(member) for member in arm.members]
        keys = dict.fromkeys(key for told in recipes for key in told if all(recipes))
        unlike = [key for key in keys if len({told.get(key) for told in recipes}) > 1]
        if unlike:
            yield f"Careful: the runs of {arm.name} differ by more than their seed: {', '.join(unlike)}."
        cards = [member.asked for member in arm.members]
        if any(cards[0] and card and card.hash != cards[0].hash for card in cards):
            yield f"Careful: the runs of {arm.name} were not asked under one protocol."


def _apart(one: Arm, other: Arm) -> list[str]:
    ours, theirs = one.first, other.first
    if ours.asked is None or theirs.asked is None:
        return []
    a, b = ours.asked, theirs.asked.model_copy(update=_history(ours.asked))
    if ours.trained and theirs.trained:
        a, b = a.model_copy(update=_history(ours.trained)), b.model_copy(update=_history(theirs.trained))
    return differences(a, b, names=(one.name, other.name))


def _history(card: ProtocolCard) -> dict[str, Any]:
    """Where a checkpoint comes from, which the protocol of an evaluation does not tell."""
    return {field: getattr(card, field) for field in HISTORY}


def _told(member: Asked) -> dict[str, str]:
    """A run's recipe by its keys, without what tells runs of a kind apart."""
    if member.run is None:
        return {}
    return {key: value for key, value in flat(member.run.recipe) if key.split(".")[0] not in NO_PART}


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
