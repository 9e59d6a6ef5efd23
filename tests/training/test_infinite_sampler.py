"""In which order tasks are asked."""

from __future__ import annotations

from sleuth.training.infinite_sampler import InfiniteSampler
from sleuth.types import Task

TASKS = [Task(id=str(number), question="?", golden_answers=("x",)) for number in range(10)]


def ids(tasks: list[Task]) -> list[str]:
    return [task.id for task in tasks]


def test_every_task_is_asked_once_before_any_is_asked_twice_in_another_order_each_time_and_with_each_seed():
    order = InfiniteSampler(TASKS, seed=(0, 1))
    first, second = ids(order.take(10)), ids(order.take(10))
    assert sorted(first) == sorted(second) == sorted(ids(TASKS))
    assert first != second
    assert ids(InfiniteSampler(TASKS, seed=(1, 1)).take(10)) != first


def test_an_order_continues_where_it_was_left_and_peeking_asks_nothing():
    whole = ids(InfiniteSampler(TASKS, seed=(0,)).take(25))
    order = InfiniteSampler(TASKS, seed=(0,), taken=13)
    assert order.peek(5) == order.peek(5)
    assert ids(order.take(12)) == whole[13:]
