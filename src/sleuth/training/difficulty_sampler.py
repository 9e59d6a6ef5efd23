"""Questions that teach: draws tasks by how often their episodes were right, a function of seed, place and rates."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from sleuth.recipe.data import PlayedQuestionsRecipe
from sleuth.training.infinite_sampler import InfiniteSampler
from sleuth.types import Group, Score, SleuthError, Task

QUESTION_WINDOW = 2
"""Times that a question was played over which its rate is averaged: the policy changes between them."""
KIND_WINDOW = 32
"""Groups over which the rate of a kind is averaged."""
WHOLE = ""
"""The source of all tasks where sources are not distinguished."""

Rate = tuple[float, int]
"""A running mean and how many values it has seen: `(0.25, 3)`."""


class DifficultySampler:
    """An endless sequence of tasks that prefers those whose rate is within bounds.

    Each source is an `InfiniteSampler` of its own. The source of a draw is chosen at random by the weights of `mix`;
    its sequence is then followed to the next task that is drawn, each with its `probability`. So no task is drawn twice
    in one epoch of its source, and each of those within the bounds once. What is drawn is a function of the seed, the
    state and the number of the draw; without a mix, and until a rate is out of bounds, it is what `InfiniteSampler`
    draws. The rate of a task is the mean of how `right` its episodes are. Raises SleuthError if the sources of the
    tasks are not those of `mix`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        data: PlayedQuestionsRecipe,
        *,
        seed: tuple[int, ...],
        state: Mapping[str, Any] | None = None,
        right: Callable[[Score], float | None] = lambda score: score.value,
    ) -> None:
        self.right = right
        require_sources(data, tasks)
        self.items, self.seed, self.floor = tasks, seed, data.floor
        self.low, self.high = data.rate_bounds
        self.mix = dict(data.mix or {WHOLE: 1.0})
        self.orders = {
            source: InfiniteSampler(
                [task for task in tasks if data.mix is None or task.source == source],
                seed=seed if data.mix is None else (*seed, number),
            )
            for number, source in enumerate(self.mix)
        }
        draws = (state or {}).get("draws", {})
        self.taken: int = (state or {}).get("asked", 0)
        self.places: dict[str, int] = dict.fromkeys(self.mix, 0) | draws.get("places", {})
        self.rates: dict[str, Rate] = dict(draws.get("rates", {}))
        self.kinds: dict[str, Rate] = dict(draws.get("kinds", {}))

    def take(self, count: int) -> list[Task]:
        """The next `count` tasks."""
        taken = self._drawn(count, self.places)
        self.taken += count
        return taken

    def peek(self, count: int) -> list[Task]:
        """What `take` would return."""
        return self._drawn(count, dict(self.places))

    def observe(self, groups: Sequence[Group]) -> float | None:
        """Takes into the rates how right the episodes of played groups are; the mean of these groups' rates. Missing
        scores are left out."""
        seen = []
        for group in groups:
            values = [value for score in group.scores if (value := self.right(score)) is not None]
            if values:
                rate, task = fmean(values), group.task
                seen.append(rate)
                self.rates[task.id] = updated(self.rates.get(task.id), rate, QUESTION_WINDOW)
                if task.kind:
                    self.kinds[kind_of(task)] = updated(self.kinds.get(kind_of(task)), rate, KIND_WINDOW)
        return fmean(seen) if seen else None

    def probability(self, task: Task) -> float:
        """The probability that a task is drawn when its turn comes: 1, or the floor if its own rate is out of bounds
        or, while it was not played yet, that of its kind is above them. A kind below them is drawn: what is hard today
        would otherwise stay so."""
        if (own := self.rates.get(task.id)) is not None:
            return 1.0 if self.low <= own[0] <= self.high else self.floor
        kind = self.kinds.get(kind_of(task)) if task.kind else None
        return 1.0 if kind is None or kind[0] <= self.high else self.floor

    def state_dict(self) -> dict[str, Any]:
        """All that the next draws depend on, besides seed, tasks and recipe."""
        draws = {"places": dict(self.places), "rates": dict(self.rates), "kinds": dict(self.kinds)}
        return {"asked": self.taken, "draws": draws}

    def _drawn(self, count: int, places: dict[str, int]) -> list[Task]:
        """The next tasks after `places` (by source), which are moved on."""
        return [self._next(self._source(number), places) for number in range(self.taken, self.taken + count)]

    def _source(self, number: int) -> str:
        if len(self.mix) == 1:
            return next(iter(self.mix))
        draw = random.Random(f"source {self.seed} {number}")
        return draw.choices([*self.mix], weights=[*self.mix.values()])[0]

    def _next(self, source: str, places: dict[str, int]) -> Task:
        order = self.orders[source]
        while True:
            place = places[source]
            places[source] += 1
            task = order.at(place)
            probability = self.probability(task)
            if probability == 1 or random.Random(f"floor {order.seed} {place}").random() < probability:
                return task


def require_sources(data: PlayedQuestionsRecipe, tasks: Sequence[Task]) -> None:
    """Raises SleuthError with a line for each source in `data.mix` without a task, and each source of tasks without a
    weight."""
    if data.mix is None:
        return
    found = Counter(task.source for task in tasks)
    named = ", ".join(f"{source!r}" for source in found)
    problems = [
        f"data.mix.{source}: no question of {data.questions} has this data_source; there are {named}"
        for source in data.mix
        if source not in found
    ]
    problems += [
        f"data.mix has no weight for data_source {source!r}, that of {count:,} questions of {data.questions}; add one"
        for source, count in found.items()
        if source not in data.mix
    ]
    if problems:
        raise SleuthError(*problems)


def updated(before: Rate | None, value: float, window: int) -> Rate:
    """The running mean with one more value: of all values until there are `window`, from then on it moves by
    1 / `window` of the difference. `updated((0.5, 1), 1.0, 2)` is `(0.75, 2)`."""
    mean, count = before or (0.0, 0)
    return mean + (value - mean) / min(count + 1, window), count + 1


def kind_of(task: Task) -> str:
    """The name under which the rates of a task's kind are kept: its source and its kind."""
    return f"{task.source}/{task.kind}"
