"""The questions of a judge's exam about continuations and suffixes."""

from __future__ import annotations

from sleuth.evaluation.judge_exam import Asked, ExamTexts
from sleuth.think.comparisons import PAIR_CRITERION
from sleuth.think.suffix_reward import equivalence_case
from sleuth.types import Pair


def continuations(texts: ExamTexts) -> Asked:
    """Ways in which a text may go on that has told the facts, each compared with another."""
    for kind, tested, other, right in (
        ("entity_swapped", texts.swapped, texts.true, 0.0),
        ("number_changed", texts.changed, texts.true, 0.0),
        ("negation", texts.negated, texts.true, 0.0),
        ("denial", texts.denied, texts.true, 0.0),
        ("off_topic", texts.other_job, texts.true, 0.0),
        ("scrambled", texts.scrambled, texts.padded_true, 0.0),
        ("empty", "", texts.true, 0.0),
        ("padded_false", texts.padded_false, texts.true, 0.0),
        ("padded_true", texts.padded_true, texts.changed, 1.0),
        ("instructions", texts.instructed, texts.true, 0.0),
        ("same", texts.true, texts.true, 0.5),
    ):
        yield kind, Pair(question=texts.facts.question, first=tested, second=other, criterion=PAIR_CRITERION), right


def suffixes(texts: ExamTexts) -> Asked:
    """Suffixes beside the true one."""
    for kind, suffix, right in (
        ("true", texts.true, 1.0),
        ("restated", texts.restated, 1.0),
        ("cut_off", f"{texts.restated} {' '.join(texts.job.split()[:4])}", 1.0),
        ("entity_swapped", texts.swapped, 0.0),
        ("number_changed", texts.changed, 0.0),
        ("negation", texts.negated, 0.0),
        ("denial", texts.denied, 0.0),
        ("padded_false", texts.padded_false, 0.0),
        ("instructions", texts.instructed, 0.0),
        ("off_topic", texts.other_job, 0.0),
        ("scrambled", texts.scrambled, 0.0),
        ("empty", "", 0.0),
    ):
        yield kind, equivalence_case(texts.opening, suffix), right
