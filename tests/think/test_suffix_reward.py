"""What was written behind a thought, by a judge who never sees the thought; and what can be seen of thoughts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from sleuth.dialect import Tags
from sleuth.think.suffix_reward import EndingJudge, SuffixReward, equivalence_case, known_ending_case, thought_figures
from sleuth.types import Author, Case, Episode, Group, Judge, Score, Segment, Task, Trajectory, Verdict

TASK = Task(
    id="d", question=" Ada lives in Tarn, which is in", golden_answers=("Osmark",), reference=" Osmark. She paints."
)
TAGS = Tags(open="<think>", close="</think>")


def episode(thought: str, suffix: str | None, sample: int = 0) -> Episode:
    """A suffix of None is that of a thought which nobody closed."""
    closed = thought.endswith(TAGS.close) or suffix is None
    told: list[tuple[Author, str]] = [("source", TASK.question), ("env", TAGS.open), ("policy", thought)]
    told += [] if closed else [("env", TAGS.close)]
    told += [] if suffix is None else [("policy", suffix)]
    segments = tuple(Segment(author=author, tokens=(*range(len(text.split())),), text=text) for author, text in told)
    return Episode(task=TASK, sample=sample, trajectories=(Trajectory(segments=segments),))


def group(*written: tuple[str, str | None]) -> Group:
    return Group(task=TASK, episodes=tuple(episode(*of, sample=at) for at, of in enumerate(written)))


class Asked:
    """Says what `verdicts` has for a claim, and keeps what it was asked."""

    def __init__(self, **verdicts: float | None) -> None:
        self.verdicts = verdicts
        self.cases: list[Case] = []

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        self.cases += cases
        return [Verdict(score=self.verdicts[case.claim.strip()], reason="because") for case in cases]


def paid(judge: Judge, case: Callable[[Task, str], Case], *written: tuple[str, str | None]) -> list[Score]:
    return asyncio.run(SuffixReward(judge, case, TAGS.close)(group(*written)))


def test_an_exact_judge_pays_right_endings_whatever_was_thought() -> None:
    found = paid(EndingJudge(), known_ending_case, (" Osmark</think>", " Ulmark."), (" no idea", " Osmark. She"))
    assert [score.value for score in found] == [0.0, 1.0]
    assert [dict(score.parts) for score in found] == [{"suffix": 0.0, "right": 0.0}, {"suffix": 1.0, "right": 1.0}]


def test_a_judge_sees_text_truth_and_suffix_and_never_the_thought() -> None:
    judge = Asked(one=0.9, two=0.5)
    found = paid(judge, equivalence_case, (" SECRET</think>", " one"), (" SECRET", " two"), (" other", " one"))
    assert [score.value for score in found] == [1, 0, 1]
    assert [case.claim for case in judge.cases] == [" one", " two"]  # equal suffixes are asked about once
    assert all("SECRET" not in repr(case) for case in judge.cases)
    assert all(TASK.reference in case.criterion and case.question == TASK.question for case in judge.cases)


def test_an_unclosed_thought_is_worth_nothing_and_nobody_is_asked() -> None:
    judge = Asked()
    [score] = paid(judge, equivalence_case, (" on and on", None))
    assert (score.value, score.note, judge.cases) == (0.0, "the thought was never closed", [])


def test_a_missing_verdict_is_missing_and_no_zero() -> None:
    found = paid(Asked(one=None, two=1.0), equivalence_case, (" a</think>", " one"), (" b</think>", " two"))
    assert [score.value for score in found] == [None, 1.0]
    assert "no verdict: because" in found[0].note
    unknown = Task(id="d", question="?", golden_answers=())
    [verdict] = asyncio.run(EndingJudge().judge([known_ending_case(unknown, " Osmark.")]))
    assert verdict.score is None


def test_signs_count_what_is_no_thought() -> None:
    eight = "Ada lives in Tarn, which is in"
    found = thought_figures(
        [group((f" {eight} Osmark</think>", None), (" .", None), (" so <think> again", None), (" a b c a b c", None))],
        TAGS,
    )
    assert found["closed"] == 1 / 4
    assert found["empty_thoughts"] == 1 / 4
    assert found["thought_artefacts"] == 1 / 4
    assert found["copied"] == pytest.approx(0.0)  # seven words of the text: fewer than a run
    assert found["repeated"] == pytest.approx((1 / 4) / 4)
    assert found["thought_tokens_mean"] == (8 + 1 + 3 + 6) / 4
