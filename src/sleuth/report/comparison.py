"""Arms beside each other: figures, paired differences, and what became of each question."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from sleuth.metrics.arms import Difference, difference, level
from sleuth.metrics.failures import Mode, mode_counts, transitions
from sleuth.metrics.intervals import Measured
from sleuth.metrics.paired import FIGURES, MEANS, question_means, side_of_zero
from sleuth.report.arms import Arm
from sleuth.report.comparison_notes import notes, protocol_sentences, recipe_differences
from sleuth.report.matching import Matched, Pair, match

Table = Mapping[Mode, Mapping[Mode, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that the table and the page show. `levels[figure][arm]`; `differences[figure][pair]` is None where no
    question has the figure on both sides; `modes[arm]` counts the answers of all its runs; `became[pair]` is
    `transitions` of the arms' first runs. `notes` and `protocols` are sentences; `recipes[key][arm]` holds what the
    runs were told otherwise.
    """

    arms: tuple[Arm, ...]
    matched: Matched
    levels: Mapping[str, Mapping[str, Measured]]
    differences: Mapping[str, Mapping[Pair, Difference | None]]
    modes: Mapping[str, Mapping[Mode, int]]
    became: Mapping[Pair, Table]
    notes: Sequence[str]
    protocols: Sequence[str]
    recipes: Mapping[str, Mapping[str, str]]

    @property
    def names(self) -> list[str]:
        """The arms, in the order in which they were given."""
        return [arm.name for arm in self.arms]

    @property
    def headlines(self) -> list[str]:
        """Exact match of each arm beside the first, in a sentence."""
        found = self.differences.get("em", {})
        return [_headline(pair, found[pair]) for pair in found if pair[0] == self.names[0]]

    def as_json(self) -> dict[str, Any]:
        """One object of plain values; a pair is `"A -> B"`, and its difference is B minus A."""
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
    """Measure the arms on the questions that they share; `SleuthError` where they share none. Tells `progress` how many
    figures of how many are done: thousands of questions take a while to draw again."""
    matched = match(arms)
    names = [arm.name for arm in arms]
    pairs = list(combinations(names, 2))
    levels: dict[str, dict[str, Measured]] = {}
    differences: dict[str, dict[Pair, Difference | None]] = {}
    for done, key in enumerate(FIGURES, start=1):
        is_share = key not in MEANS
        tables = {name: question_means(key, matched.questions, matched.answers[name]) for name in names}
        of_arms = {name: level(table, is_share=is_share) for name, table in tables.items()}
        if any(measured.n for measured in of_arms.values()):
            levels[key] = of_arms
            differences[key] = {(a, b): difference(tables[b], tables[a], is_share=is_share) for a, b in pairs}
        if progress is not None:
            progress(done, len(FIGURES))
    return Comparison(
        arms=tuple(arms),
        matched=matched,
        levels=levels,
        differences=differences,
        modes={name: mode_counts(matched.records(name)) for name in names},
        became={pair: transitions(matched.paired(pair)) for pair in pairs},
        notes=notes(arms, matched),
        protocols=protocol_sentences(arms),
        recipes=recipe_differences(arms),
    )


def _headline(pair: Pair, found: Difference | None) -> str:
    one, other = pair
    if found is None:
        return f"No question has an exact match on both sides of {one} and {other}."
    side = side_of_zero(found.measured)
    move = {1: "is above", 0: "is not clearly different from", -1: "is below"}[side]
    value, low, high = (f"{bound:+.3f}" for bound in (found.measured.value, found.measured.low, found.measured.high))
    return f"Exact match of {other} {move} that of {one}: {value} [{low}, {high}]."


def _arrow(pair: Pair) -> str:
    return " -> ".join(pair)


def _without_zeros(table: Table) -> dict[str, dict[str, int]]:
    rows = {before: {after: count for after, count in row.items() if count} for before, row in table.items()}
    return {before: row for before, row in rows.items() if row}
