"""Several rewards as one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sleuth.answers.factory import TotalReward
from sleuth.types import Credit, Episode, Group, Score, Task, Trajectory

TASK = Task(id="q", question="?", golden_answers=("x",))
GROUP = Group(
    task=TASK,
    episodes=tuple(Episode(task=TASK, sample=i, trajectories=(Trajectory(segments=()),)) for i in range(2)),
)


@dataclass
class Fixed:
    scores: list[Score]

    async def __call__(self, group: Group) -> list[Score]:
        return self.scores


def test_rewards_add_up_episode_by_episode_with_all_their_parts() -> None:
    first = Fixed(
        [Score(value=1.0, parts={"em": 1.0}, note="correct"), Score(value=0.0, parts={"em": 0.0}, note="wrong")]
    )
    second = Fixed([Score(value=0.25, parts={"format": 0.25}), Score(value=0.5, parts={"format": 0.5})])
    one, two = asyncio.run(TotalReward([first, second], [1.0, 1.0])(GROUP))
    assert (one.value, one.parts, one.note) == (1.25, {"em": 1.0, "format": 0.25}, "correct")
    assert (two.value, two.note) == (0.5, "wrong")


def test_a_note_of_the_user_and_ours_are_both_kept() -> None:
    first = Fixed([Score(value=1.0, note="correct")] * 2)
    second = Fixed([Score(value=0.5, notes={"brevity": "long"}), Score(value=None, note="no", notes={"brevity": "no"})])
    one, two = asyncio.run(TotalReward([first, second], [1.0, 1.0])(GROUP))
    assert (one.note, one.notes) == ("correct", {"brevity": "long"})
    assert (two.note, two.notes) == ("no", {"brevity": "no"})


def test_a_sum_with_a_missing_part_is_missing_and_says_why() -> None:
    first = Fixed([Score(value=1.0, note="correct")] * 2)
    second = Fixed([Score(value=None, note="judge timed out"), Score(value=0.5)])
    one, two = asyncio.run(TotalReward([first, second], [1.0, 1.0])(GROUP))
    assert (one.value, one.note) == (None, "judge timed out")
    assert two.value == 1.5


def test_weights_multiply_what_is_summed_and_leave_the_parts_as_they_are() -> None:
    first = Fixed([Score(value=1.0, parts={"em": 1.0}, note="correct")] * 2)
    second = Fixed([Score(value=0.5, parts={"format": 0.5})] * 2)
    one, _ = asyncio.run(TotalReward([second, first], [0.2, 2.0])(GROUP))
    assert (one.value, one.parts, one.note) == (2.1, {"format": 0.5, "em": 1.0}, "correct")


def test_what_is_paid_to_single_tokens_has_the_weight_of_its_reward() -> None:
    first = Fixed([Score(value=1.0, credits=(Credit(segment=1, value=1.0, begin=2, end=4),)), Score(value=1.0)])
    second = Fixed([Score(value=0.0, credits=(Credit(segment=3, value=2.0),)), Score(value=0.0)])
    one, two = asyncio.run(TotalReward([first, second], [2.0, 0.5])(GROUP))
    assert one.credits == (Credit(segment=1, value=2.0, begin=2, end=4), Credit(segment=3, value=1.0))
    assert two.credits == ()
