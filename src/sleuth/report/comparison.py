"""Arms beside each other: figures, paired differences, and what became of each question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from sleuth.answers.answer import SCORE
from sleuth.answers.failures import Mode, mode_counts, transitions
from sleuth.episodes.protocol import HISTORY
from sleuth.episodes.protocol_differences import differences
from sleuth.evaluation.figures import compared_figures, figure, scores_in
from sleuth.evaluation.intervals import Measured
from sleuth.evaluation.paired import (
    Record,
    by_question,
    leading_figures,
    paired_records,
    question_means,
    same_reward,
)
from sleuth.evaluation.significance import Difference, difference, level
from sleuth.report.arms import Arm, Evaluated
from sleuth.runs.manifest import flat
from sleuth.types import SleuthError

Table = Mapping[Mode, Mapping[Mode, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that the table and the page show. `levels[figure][arm]`; `differences[figure][pair]` is None if no question
    has the figure in both arms; `modes[arm]` counts the answers of all its runs; `became[pair]` is `transitions` of the
    arms' first runs. `notes` and `protocols` are sentences, `lead` is the figure of the headlines; `recipes[key][arm]`
    holds recipe values that differ.
    """

    arms: tuple[Arm, ...]
    matched: Matched
    levels: Mapping[str, Mapping[str, Measured]]
    differences: Mapping[str, Mapping[Pair, Difference | None]]
    modes: Mapping[str, Mapping[Mode, int]]
    became: Mapping[Pair, Table]
    notes: Sequence[str]
    protocols: Sequence[str]
    lead: str
    recipes: Mapping[str, Mapping[str, str]]

    @property
    def names(self) -> list[str]:
        """Names of the arms, in the given order."""
        return [arm.name for arm in self.arms]

    @property
    def headlines(self) -> list[str]:
        """A sentence on the leading figure of each arm beside the first."""
        found = self.differences.get(self.lead, {})
        return [_headline(pair, found[pair], figure(self.lead).label) for pair in found if pair[0] == self.names[0]]

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON; the key of a pair is `"A -> B"`, and its difference is B minus A."""
        return {
            "arms": {arm.name: [str(member.file) for member in arm.members] for arm in self.arms},
            "questions": len(self.matched.questions),
            "left_out": dict(self.matched.left_out),
            "reworded": self.matched.reworded,
            "headlines": self.headlines,
            "notes": list(self.notes),
            "protocol_differences": list(self.protocols),
            "recipe_differences": {key: dict(values) for key, values in self.recipes.items()},
            "figures": {
                key: {
                    "arms": {name: measured.as_json() for name, measured in of_arms.items()},
                    "differences": {
                        _arrow(pair): found and found.as_json() for pair, found in self.differences[key].items()
                    },
                }
                for key, of_arms in self.levels.items()
            },
            "modes": {name: dict(counts) for name, counts in self.modes.items()},
            "transitions": {_arrow(pair): _without_zeros(table) for pair, table in self.became.items()},
        }


def compare(arms: Sequence[Arm], progress: Callable[[int, int], None] | None = None) -> Comparison:
    """Compares the arms on the questions that they share; raises SleuthError if they share none. Calls `progress(done,
    total)` after each figure: bootstrap intervals of thousands of questions take a while."""
    matched = match(arms)
    names = [arm.name for arm in arms]
    pairs = list(combinations(names, 2))
    levels: dict[str, dict[str, Measured]] = {}
    differences: dict[str, dict[Pair, Difference | None]] = {}
    evaluations = [member.evaluation for arm in arms for member in arm.members]
    leads = leading_figures(*evaluations, others=["em"])
    scores = scores_in(record for arm in arms for record in matched.records(arm.name))
    alike = same_reward(*evaluations)
    keys = [key for key in dict.fromkeys([*leads, *compared_figures(), *scores]) if key != SCORE or alike]
    for done, key in enumerate(keys, start=1):
        shared = figure(key).is_share
        tables = {name: question_means(key, matched.questions, matched.answers[name]) for name in names}
        of_arms = {name: level(table, is_share=shared) for name, table in tables.items()}
        if any(measured.n for measured in of_arms.values()):
            levels[key] = of_arms
            differences[key] = {(a, b): difference(tables[b], tables[a], is_share=shared) for a, b in pairs}
        if progress is not None:
            progress(done, len(keys))
    return Comparison(
        arms=tuple(arms),
        matched=matched,
        levels=levels,
        differences=differences,
        modes={name: mode_counts(matched.records(name)) for name in names},
        became={pair: transitions(matched.paired(pair)) for pair in pairs},
        notes=notes(arms, matched, alike),
        protocols=protocol_lines(arms),
        lead=next(
            (key for key in leads if all(differences.get(key, {"": None}).values())), leads[0] if leads else "em"
        ),
        recipes=recipe_differences(arms),
    )


def _headline(pair: Pair, found: Difference | None, label: str) -> str:
    one, other = pair
    if found is None:
        return f"No question has a value of {label.lower()} on both sides of {one} and {other}."
    move = {1: "is above", 0: "is not clearly different from", -1: "is below"}[found.measured.side]
    value, low, high = (f"{bound:+.3f}" for bound in (found.measured.value, found.measured.low, found.measured.high))
    return f"{label} of {other} {move} that of {one}: {value} [{low}, {high}]."


def _arrow(pair: Pair) -> str:
    return " -> ".join(pair)


def _without_zeros(table: Table) -> dict[str, dict[str, int]]:
    rows = {before: {after: count for after, count in row.items() if count} for before, row in table.items()}
    return {before: row for before, row in rows.items() if row}


UNLIKE_REWARDS = "Scores are not compared: they were computed by different rewards."
SAME_PROTOCOL = "All were evaluated under the same protocol."
UNKNOWN_RETRIEVERS = "No file records the retriever of its passages; it may be another one in each."
NOT_COMPARED = ("name", "seed", "resolved_from", "trackers")
"""Recipe keys that differ between runs of the same kind."""


def notes(arms: Sequence[Arm], matched: Matched, alike: bool) -> list[str]:
    """Sentences on the questions compared, on what the intervals cover, and on differences in stage, sampling and
    reward, which is `alike` or not."""
    return [
        *_questions(matched),
        _intervals(arms),
        *_stages(arms),
        *_sampling(arms),
        *([] if alike else [UNLIKE_REWARDS]),
        *_unlike_members(arms),
    ]


def protocol_lines(arms: Sequence[Arm]) -> list[str]:
    """The fields in which each arm's protocol differs from the first arm's, and the training of its checkpoint if both
    record it. One sentence if nothing differs."""
    unknown = [arm.name for arm in arms if arm.first.protocol is None]
    if unknown:
        return [f"{' and '.join(unknown)}: the file does not record the protocol of the evaluation."]
    first, *others = arms
    lines = [line for other in others for line in _apart(first, other)]
    if all(arm.first.protocol and arm.first.protocol.retriever_is_unknown for arm in arms):
        lines.append(UNKNOWN_RETRIEVERS)
    return lines or [SAME_PROTOCOL]


def recipe_differences(arms: Sequence[Arm]) -> dict[str, dict[str, str]]:
    """`differences[key][arm]`: the recipe values of the arms' first runs that differ. Empty if an arm has no run, or if
    all arms have the same one."""
    recipes = {arm.name: _recipe_values(arm.first) for arm in arms}
    if not all(recipes.values()) or len({arm.first.run.folder for arm in arms if arm.first.run}) < 2:
        return {}
    keys = dict.fromkeys(key for recipe in recipes.values() for key in recipe)
    values = {key: {name: recipe.get(key, "absent") for name, recipe in recipes.items()} for key in keys}
    return {key: of_arms for key, of_arms in values.items() if len(set(of_arms.values())) > 1}


def _questions(matched: Matched) -> Iterator[str]:
    yield f"{_count(len(matched.questions), 'question')} answered by all, paired by id."
    for name, count in matched.left_out.items():
        if count:
            yield f"Left out: {_count(count, 'question')} of {name} that not all answered."
    if matched.reworded:
        count = _count(matched.reworded, "id")
        yield f"Left out: {count} shared by all, with another wording or other golden answers."


def _intervals(arms: Sequence[Arm]) -> str:
    several = [f"{arm.name} {len(arm.members)}" for arm in arms if len(arm.members) > 1]
    if not several:
        return "Intervals are over questions: they hold for these runs, not for other seeds."
    single = [arm.name for arm in arms if len(arm.members) == 1]
    alone = f"; {' and '.join(single)} is one run, whose variation by seed is unknown" if single else ""
    return f"Intervals are over runs and questions ({', '.join(several)} runs){alone}."


def _stages(arms: Sequence[Arm]) -> Iterator[str]:
    """What of the runs is left out, and where the evaluations are of different stages of training."""
    members = [(arm.name, member) for arm in arms for member in arm.members]
    runs = {member.run.folder: member.run for _, member in members if member.run is not None}
    yield from (line for run in runs.values() for line in run.stale)
    if len({member.file.parent for _, member in members}) == 1:
        return  # of one run: to compare its stages is what was asked for
    same = len({member.file.stem for _, member in members}) == 1
    for name, member in members:
        if member.run is not None and member.run.awaited:
            compared = f"compared by `{member.file.stem}`" + (", as all are" if same else "")
            yield f"Careful: {name} has not measured `{member.run.awaited}` yet and is {compared}."
    trained = [(name, member.evaluation.get("after")) for name, member in members]
    known = [after for _, after in trained if after is not None]
    if len(known) == len(trained) and any(known) and not all(known):
        stages = (f"{name} {'after ' + ' and '.join(after) if after else 'before any'}" for name, after in trained)
        yield f"Careful: these are models of different stages of training: {', '.join(dict.fromkeys(stages))}."


def _sampling(arms: Sequence[Arm]) -> Iterator[str]:
    temperatures = {arm.name: arm.first.evaluation.get("temperature") for arm in arms}
    if len(set(temperatures.values())) > 1:
        yield "Temperatures differ: " + ", ".join(f"{name} {value}" for name, value in temperatures.items()) + "."
    samples = {arm.name: max(map(len, by_question(arm.first.evaluation["records"]).values())) for arm in arms}
    if len(set(samples.values())) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in samples.items())
        yield f"Samples a question differ: {counts}; a question counts by their mean."


def _unlike_members(arms: Sequence[Arm]) -> Iterator[str]:
    """Warnings about arms whose runs differ by more than their seed."""
    for arm in arms:
        recipes = [_recipe_values(member) for member in arm.members]
        keys = dict.fromkeys(key for recipe in recipes for key in recipe if all(recipes))
        unlike = [key for key in keys if len({recipe.get(key) for recipe in recipes}) > 1]
        if unlike:
            yield f"Careful: the runs of {arm.name} differ by more than their seed: {', '.join(unlike)}."
        cards = [member.protocol for member in arm.members]
        if any(cards[0] and card and card.hash != cards[0].hash for card in cards):
            yield f"Careful: the runs of {arm.name} were evaluated under different protocols."


def _apart(one: Arm, other: Arm) -> list[str]:
    """Differences of two protocols, with the fields about a checkpoint's origin from its own, if both are known."""
    ours, theirs = one.first, other.first
    if ours.protocol is None or theirs.protocol is None:
        return []
    trained = (ours.trained, theirs.trained) if ours.trained and theirs.trained else (ours.protocol, ours.protocol)
    a, b = (
        card.model_copy(update={field: getattr(origin, field) for field in HISTORY})
        for card, origin in zip((ours.protocol, theirs.protocol), trained, strict=True)
    )
    return differences(a, b, names=(one.name, other.name))


def _recipe_values(member: Evaluated) -> dict[str, str]:
    """The recipe of a run by dotted key, without NOT_COMPARED."""
    if member.run is None:
        return {}
    return {key: str(value) for key, value in flat(member.run.recipe) if key.split(".")[0] not in NOT_COMPARED}


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


Pair = tuple[str, str]
"""The names of two arms; a difference is the second minus the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """`questions` are the ids that all runs of all arms answered, in the order of the first; `answers[arm][run]` holds
    their records. `left_out[arm]` counts its questions that some other run did not answer; `reworded` counts ids whose
    wording or golden answers differ."""

    questions: tuple[str, ...]
    answers: Mapping[str, Sequence[Mapping[str, Sequence[Record]]]]
    left_out: Mapping[str, int]
    reworded: int

    def records(self, arm: str) -> list[Record]:
        """All records of an arm, run by run."""
        return [record for run in self.answers[arm] for name in self.questions for record in run[name]]

    def paired(self, arms: Sequence[str]) -> list[tuple[Record, ...]]:
        """The records of the arms' first runs, one tuple a question."""
        firsts = (self.answers[arm][0] for arm in arms)
        return paired_records(*([record for name in self.questions for record in run[name]] for run in firsts))


def match(arms: Sequence[Arm]) -> Matched:
    """The shared questions, matched by id. Raises SleuthError if there are none."""
    answers = {arm.name: [by_question(member.evaluation["records"]) for member in arm.members] for arm in arms}
    runs = [run for of_arm in answers.values() for run in of_arm]
    common = [name for name in runs[0] if all(name in run for run in runs)]
    same = tuple(name for name in common if len({_meaning(run[name][0]) for run in runs}) == 1)
    if not same:
        names = " and ".join(arm.name for arm in arms)
        why = f"all {len(common)} shared ids have different questions" if common else "they share no id"
        raise SleuthError(f"{names} have no question in common ({why}): evaluate them on the same file of questions")
    left_out = {name: len(set().union(*of_arm) - set(common)) for name, of_arm in answers.items()}
    return Matched(questions=same, answers=answers, left_out=left_out, reworded=len(common) - len(same))


def _meaning(record: Record) -> tuple[str, frozenset[str]]:
    return record["question"], frozenset(record["golden_answers"])
