"""Which episodes show what an alarm says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from sleuth.training.step_metrics import response_tokens
from sleuth.types import Episode, Group, Score

SHOWN = 3

Scored = tuple[Episode, Score]

FIRST: dict[str, Callable[[Scored], Any]] = {
    "reward_collapse": lambda scored: math.inf if scored[1].value is None else scored[1].value,
    "length_runaway": lambda scored: -response_tokens(scored[0]),
    "tool_abandonment": lambda scored: scored[0].trajectory.searches,
}
"""By alarm, what the episodes that show it have least of; the others are shown by any."""


def episodes_showing(alarm: str, groups: Sequence[Group]) -> list[str]:
    """The few episodes of a step that show an alarm best, by question and sample: "q17 sample 3"."""
    scored = [pair for group in groups for pair in zip(group.episodes, group.scores, strict=True)]
    if alarm in FIRST:
        scored = sorted(scored, key=FIRST[alarm])
    return [f"{episode.task.id} sample {episode.sample}" for episode, _ in scored[:SHOWN]]
