"""The questions that every side was asked, and only those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sleuth.metrics.paired import Record, by_question, paired_records
from sleuth.report.arms import Arm
from sleuth.types import SleuthError

Pair = tuple[str, str]
"""The names of two arms; a difference is the second minus the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """`questions` are the ids that every run of every arm was asked, in the order of the first; in `answers[arm][run]`
    are the records of each. `left_out[arm]` counts questions that it was asked and some other run was not; `reworded`
    those whose id stands for other words or other golden answers somewhere."""

    questions: tuple[str, ...]
    answers: Mapping[str, Sequence[Mapping[str, Sequence[Record]]]]
    left_out: Mapping[str, int]
    reworded: int

    def records(self, arm: str) -> list[Record]:
        """All answers of an arm, run by run."""
        return [record for run in self.answers[arm] for name in self.questions for record in run[name]]

    def paired(self, arms: Sequence[str]) -> list[tuple[Record, ...]]:
        """The answers of these arms' first runs beside each other, question by question."""
        firsts = (self.answers[arm][0] for arm in arms)
        return paired_records(*([record for name in self.questions for record in run[name]] for run in firsts))


def match(arms: Sequence[Arm]) -> Matched:
    """Find them by id; `SleuthError` where there are none."""
    answers = {arm.name: [by_question(member.evaluation["records"]) for member in arm.members] for arm in arms}
    runs = [run for of_arm in answers.values() for run in of_arm]
    common = [name for name in runs[0] if all(name in run for run in runs)]
    same = tuple(name for name in common if len({_meaning(run[name][0]) for run in runs}) == 1)
    if not same:
        names = " and ".join(arm.name for arm in arms)
        why = f"all {len(common)} ids that they share stand for different questions" if common else "they share no id"
        raise SleuthError(f"{names} have no question in common ({why}): ask them the same file of questions")
    left_out = {name: len(set().union(*of_arm) - set(common)) for name, of_arm in answers.items()}
    return Matched(questions=same, answers=answers, left_out=left_out, reworded=len(common) - len(same))


def _meaning(record: Record) -> tuple[str, frozenset[str]]:
    return record["question"], frozenset(record["golden_answers"])
