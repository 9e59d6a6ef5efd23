"""Arms beside each other: figures, paired differences, and what became of each question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from sleuth.answers.failures import Mode, mode_counts, transitions
from sleuth.episodes.protocol import HISTORY
from sleuth.episodes.protocol_differences import differences
from sleuth.evaluation.figures import compared_figures, figure, is_paid, scores_in
from sleuth.evaluation.intervals import Measured
from sleuth.evaluation.paired import (
    Record,
    by_question,
    leading_figures,
    paired_records,
    question_means,
    same_reward,
)
from sleuth.evaluation.significance import Difference, Runs, difference, level
from sleuth.report.arms import Arm, Evaluated
from sleuth.report.curves import Arms, matched_charts
from sleuth.runs.manifest import flat
from sleuth.terminal.tables import count_of
from sleuth.types import SleuthError

Pair = tuple[str, str]
"""The names of two arms; a difference is the second minus the first."""
Table = Mapping[Mode, Mapping[Mode, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure by arm, and its differences by pair; None if no question has it in both arms."""

    levels: Mapping[str, Measured]
    differences: Mapping[Pair, Difference | None]

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        apart = {_arrow(pair): found and found.as_json() for pair, found in self.differences.items()}
        return {"arms": {name: measured.as_json() for name, measured in self.levels.items()}, "differences": apart}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that the table and the page show. `compared[figure][set]` is of each set of a suite, then under `""` of all
    questions, or the mean over the sets. `modes[arm]` counts the answers of all its runs; `became[pair]` is
    `transitions` of the arms' first runs. `notes` and `protocols` are sentences, `lead` is the figure of the headlines;
    `recipes[key][arm]` holds recipe values that differ.
    """

    arms: tuple[Arm, ...]
    matched: Matched
    compared: Mapping[str, Mapping[str, Compared]]
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
        found = self.figures[self.lead].differences if self.lead in self.figures else {}
        label, over = figure(self.lead).label, f", as the {self.mean}" if self.mean else ""
        return [_headline(pair, found[pair], label, over) for pair in found if pair[0] == self.names[0]]

    @property
    def mean(self) -> str:
        """What figures of all questions are, if these are of several sets; else empty."""
        return f"mean over {len(self.matched.sets)} sets" if len(self.matched.sets) > 1 else ""

    @property
    def figures(self) -> dict[str, Compared]:
        """The figures of all questions."""
        return {key: sets[""] for key, sets in self.compared.items() if "" in sets}

    @property
    def leading(self) -> list[str]:
        """The figure of the headlines, exact match and the scores, as far as they were compared."""
        return [key for key in dict.fromkeys([self.lead, "em", *scores_in([self.figures])]) if key in self.figures]

    @property
    def curves(self) -> Arms:
        """The metrics rows of each arm's runs; empty unless every arm has runs and they are not all the same run."""
        runs = {arm.name: [member.run for member in arm.members if member.run] for arm in self.arms}
        folders = {run.folder.resolve() for of_arm in runs.values() for run in of_arm}
        if len(folders) < 2 or not all(runs.values()):
            return {}
        return {name: [run.metrics for run in of_arm] for name, of_arm in runs.items()}

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON; the key of a pair is `"A -> B"`, and its difference is B minus A."""
        return {
            "arms": {arm.name: [str(member.file) for member in arm.members] for arm in self.arms},
            "questions": len(self.matched.questions),
            "left_out": dict(self.matched.left_out),
            "left_out_sets": {name: list(arms) for name, arms in self.matched.lacking.items()},
            "reworded": len(self.matched.reworded),
            "headlines": self.headlines,
            "notes": list(self.notes),
            "protocol_differences": list(self.protocols),
            "recipe_differences": {key: dict(values) for key, values in self.recipes.items()},
            "figures": {key: found.as_json() for key, found in self.figures.items()},
            "sets": {
                name: {"questions": len(questions)}
                | {key: sets[name].as_json() for key, sets in self.compared.items() if name in sets}
                for name, questions in self.matched.sets.items()
                if name
            },
            "modes": {name: dict(counts) for name, counts in self.modes.items()},
            "transitions": {_arrow(pair): _without_zeros(table) for pair, table in self.became.items()},
            "curves": {
                stage: {
                    chart.title: {"steps": chart.steps, "arms": {curve.label: curve.values for curve in chart.curves}}
                    for chart in charts
                }
                for stage, charts in matched_charts(self.curves).items()
            },
        }


def compare(arms: Sequence[Arm], progress: Callable[[int, int], None] = lambda done, total: None) -> Comparison:
    """Compares the arms on the questions that they share; raises SleuthError if they share none. Calls
    `progress(done, total)` after each figure: intervals of thousands of questions take a while."""
    matched = match(arms)
    names = [arm.name for arm in arms]
    pairs = list(combinations(names, 2))
    evaluations = [member.evaluation for arm in arms for member in arm.members]
    leads = leading_figures(*evaluations, others=["em"])
    scores = scores_in(record for arm in arms for record in matched.records(arm.name))
    alike = same_reward(*evaluations)
    keys = [key for key in dict.fromkeys([*leads, *compared_figures(), *scores]) if not is_paid(key) or alike]
    compared: dict[str, dict[str, Compared]] = {}
    for done, key in enumerate(keys, start=1):
        tables = {
            name: {arm: question_means(key, questions, runs) for arm, runs in matched.answers.items()}
            for name, questions in matched.sets.items()
        }
        parts = {**{name: [table] for name, table in tables.items()}, "": [*tables.values()]}
        if of_sets := {name: found for name, part in parts.items() if (found := _compared(key, part))}:
            compared[key] = of_sets
        progress(done, len(keys))
    paired = (key for key in leads if (one := compared.get(key, {}).get("")) and all(one.differences.values()))
    return Comparison(
        arms=tuple(arms),
        matched=matched,
        compared=compared,
        modes={name: mode_counts(matched.records(name)) for name in names},
        became={pair: transitions(matched.paired(pair)) for pair in pairs},
        notes=notes(arms, matched, alike),
        protocols=protocol_lines(arms),
        lead=next(paired, leads[0] if leads else "em"),
        recipes=recipe_differences(arms),
    )


def _compared(key: str, sets: Sequence[Mapping[str, Runs]]) -> Compared | None:
    """A figure as the mean over the sets, each of which has the runs of every arm; None if no arm has it."""
    shared = figure(key).is_share
    levels = {arm: level(*(tables[arm] for tables in sets), is_share=shared) for arm in sets[0]}
    if not any(measured.n for measured in levels.values()):
        return None
    apart = {
        (one, other): difference(*((tables[other], tables[one]) for tables in sets), is_share=shared)
        for one, other in combinations(levels, 2)
    }
    return Compared(levels=levels, differences=apart)


def _headline(pair: Pair, found: Difference | None, label: str, over: str) -> str:
    one, other = pair
    if found is None:
        return f"No question has a value of {label.lower()} on both sides of {one} and {other}."
    move = {1: "is above", 0: "is not clearly different from", -1: "is below"}[found.measured.side]
    value, low, high = (f"{bound:+.3f}" for bound in (found.measured.value, found.measured.low, found.measured.high))
    return f"{label} of {other} {move} that of {one}{over}: {value} [{low}, {high}]."


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
    count = count_of(len(matched.questions), "question")
    if len(matched.sets) > 1:
        yield f"{count} of {len(matched.sets)} sets answered by all, paired by id within each set."
        yield "Figures over all are unweighted means over the sets, with intervals over the questions within them."
    else:
        yield f"{count} answered by all, paired by id."
    for name, lacking in matched.lacking.items():
        yield f"Left out: the set {name}, which was not asked of {' and '.join(lacking)}."
    for name, left_out in matched.left_out.items():
        if left_out:
            yield f"Left out: {count_of(left_out, 'question')} of {name} that not all answered."
    if matched.reworded:
        count = count_of(len(matched.reworded), "id")
        first = f"{'such as ' * (len(matched.reworded) > 1)}{matched.reworded[0]}"
        yield f"Left out: {count} shared by all, with another wording or other golden answers ({first})."


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """`questions` are the ids that all runs of all arms answered, in the order of the first, and `sets` the same by set
    of a suite (`""` without sets); `answers[arm][run]` holds their records. `left_out[arm]` counts its questions that
    some other run did not answer, without those of sets of which an arm answered none: `lacking[set]` names such arms.
    `reworded` are ids whose wording or golden answers differ."""

    questions: tuple[str, ...]
    sets: Mapping[str, Sequence[str]]
    answers: Mapping[str, Sequence[Mapping[str, Sequence[Record]]]]
    left_out: Mapping[str, int]
    lacking: Mapping[str, Sequence[str]]
    reworded: Sequence[str]

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
    reworded = [name for name in common if len({_meaning(run[name][0]) for run in runs}) > 1]
    excluded = set(reworded)
    questions = tuple(name for name in common if name not in excluded)
    if not questions:
        names = " and ".join(arm.name for arm in arms)
        why = f"all {len(common)} shared ids have different questions" if common else "they share no id"
        raise SleuthError(f"{names} have no question in common ({why}): evaluate them on the same file of questions")
    set_of: dict[str, str] = {}
    for name, samples in (item for run in runs for item in run.items()):
        set_of.setdefault(name, samples[0].get("set", ""))
    sets = {one: {name for name in set_of if set_of[name] == one} for one in dict.fromkeys(set_of.values())}
    lacking = {
        name: without
        for name, of_set in sets.items()
        if (without := [arm for arm in answers if any(of_set.isdisjoint(run) for run in answers[arm])]) and name
    }
    elsewhere = {*common}.union(*(sets[name] for name in lacking))
    return Matched(
        questions=questions,
        sets={name: shared for name, of_set in sets.items() if (shared := [one for one in questions if one in of_set])},
        answers=answers,
        left_out={name: len(set().union(*of_arm) - elsewhere) for name, of_arm in answers.items()},
        lacking=lacking,
        reworded=reworded,
    )


def _meaning(record: Record) -> tuple[str, frozenset[str]]:
    return record["question"], frozenset(record["golden_answers"])
