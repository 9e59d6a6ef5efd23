"""The figures of a step's episodes, the sentences of the probe before the first step, and the episodes that show an
alarm."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from statistics import fmean
from typing import Any

from sleuth.answers.answer import OUTCOMES
from sleuth.episodes.calls import ERROR
from sleuth.learn.batch import Advantages
from sleuth.learn.losses import has_signal
from sleuth.types import Episode, Group, Score

FEW = 0.05
"""Below this share of episodes or groups, learning starts from almost nothing."""
SHOWN = 3
"""Episodes that are named with an alarm."""

Scored = tuple[Episode, Score]

SHOWS: dict[str, Callable[[Scored], Any]] = {
    "reward_collapse": lambda scored: math.inf if scored[1].value is None else scored[1].value,
    "length_runaway": lambda scored: -response_tokens(scored[0]),
    "tool_abandonment": lambda scored: scored[0].trajectory.searches,
}
"""By alarm, a number that is lowest in the episodes that show it best; any episode shows the other alarms."""


def values_of(group: Group) -> list[float | None]:
    """The scores of a group's episodes; None where one is missing."""
    return [score.value for score in group.scores]


def step_figures(
    groups: Sequence[Group], advantages: Advantages, replaced: Container[int] = ()
) -> dict[str, float | None]:
    """The figures of a step's episodes in `metrics.jsonl`; shares are of groups or of episodes, as their names say.

    Every group that was played counts, also `replaced` ones (indices): they too show what the policy does. Episodes
    that failed are in `missing_fraction` only. `em` is always strict; the other parts of the scores have their means
    under their own names (`score_search_r1`, `format`), over the episodes that have them.
    """
    episodes = _whole_episodes(groups)
    scores = [score for group in groups for score in group.scores]
    present = [score for score in scores if score.value is not None]
    figures = {
        "reward_mean": mean_of([score.value for score in present if score.value is not None]),
        "reward_max": max((score.value for score in present if score.value is not None), default=None),
        "em": mean_of([score.parts["em"] for score in scores if "em" in score.parts]),
        "searched": mean_of([float(episode.trajectory.searches > 0) for episode in episodes]),
        "searches_mean": mean_of([episode.trajectory.searches for episode in episodes]),
        "searches": sum(bool(action.passages) for episode in episodes for action in episode.trajectory.actions),
        "response_tokens_mean": mean_of([response_tokens(episode) for episode in episodes]),
        "nonzero_advantage_fraction": mean_of([float(has_signal(values_of(group))) for group in groups]),
        "missing_fraction": 1 - len(present) / len(scores),
        "dropped_groups": sum(
            all(value is None for value in of_group) for at, of_group in enumerate(advantages) if at not in replaced
        ),
        "replaced_groups": sum(at in replaced for at in range(len(groups))),
    }
    calls = [action for episode in episodes for action in episode.trajectory.actions if action.kind == "call"]
    if calls:
        figures["calls_mean"] = len(calls) / len(episodes)
        figures["call_errors"] = mean_of([float((action.result or "").startswith(ERROR)) for action in calls])
    return figures | {name: mean for name, mean in _part_means(scores).items() if name not in figures}


def _part_means(scores: Sequence[Score]) -> dict[str, float]:
    """The mean of every part, over the scores that have it, without the parts that say how an episode ended."""
    names = dict.fromkeys(name for score in scores for name in score.parts if name not in OUTCOMES)
    return {name: fmean(score.parts[name] for score in scores if name in score.parts) for name in names}


def sampled_entropy(groups: Sequence[Group]) -> float | None:
    """The entropy in nats a token, estimated by the mean negative log-probability of the sampled tokens; None if the
    engine gave none."""
    logprobs = [
        logprob
        for episode in _whole_episodes(groups)
        for trajectory in episode.trajectories
        for segment in trajectory.segments
        for logprob in segment.logprobs or ()
    ]
    return -fmean(logprobs) if logprobs else None


def probe_lines(
    groups: Sequence[Group],
    *,
    searches: bool = True,
    right: Callable[[Score], float | None] = lambda score: score.value,
) -> list[str]:
    """Whether there is anything to learn from, and what to do if not; `searches` if there is a tool to search with.
    `right` says how right the episode of a score is."""
    episodes = _whole_episodes(groups)
    values = [value for group in groups for value in values_of(group) if value is not None]
    if not episodes or not values:
        return [f"probe of {len(groups)} questions: every score is missing ({groups[0].scores[0].note})"]
    signal = fmean(float(has_signal(values_of(group))) for group in groups)
    searched = fmean(float(episode.trajectory.searches > 0) for episode in episodes)
    answered = fmean(float(episode.trajectory.stop == "answered") for episode in episodes)
    of_episodes = f"{searched:.0%} of episodes search, {answered:.0%}" if searches else f"{answered:.0%} of episodes"
    lines = [
        f"probe of {len(groups)} questions x {len(groups[0].episodes)} samples: {signal:.0%} of groups carry signal, "
        f"{of_episodes} end with an answer"
    ]
    if searches and searched < FEW:
        lines.append(
            "almost no episode searches: what never happens cannot be reinforced; use a prompt with a worked example, "
            "or fine-tune on a few hundred searching episodes first"
        )
    if signal < FEW:
        shares = [share for group in groups for score in group.scores if (share := right(score)) is not None]
        all_right = fmean(shares) > 0.5
        lines.append(
            "almost every group is all right: the questions are too easy to teach anything; take harder ones"
            if all_right
            else "almost every group is all wrong: take easier questions, more samples_per_prompt, or a stronger base"
        )
    return lines


def _whole_episodes(groups: Sequence[Group]) -> list[Episode]:
    """The episodes that did not fail: a failed one does not show what the policy would have done."""
    return [episode for group in groups for episode in group.episodes if episode.trajectory.stop != "failed"]


def episodes_showing(alarm: str, groups: Sequence[Group]) -> list[str]:
    """The few episodes of a step that show an alarm best, by question and sample: "q17 sample 3"."""
    scored = [pair for group in groups for pair in zip(group.episodes, group.scores, strict=True)]
    if alarm in SHOWS:
        scored = sorted(scored, key=SHOWS[alarm])
    return [f"{episode.task.id} sample {episode.sample}" for episode, _ in scored[:SHOWN]]


def response_tokens(episode: Episode) -> int:
    """How many tokens the policy wrote in an episode."""
    return sum(
        len(segment.tokens)
        for trajectory in episode.trajectories
        for segment in trajectory.segments
        if segment.author == "policy"
    )


def mean_of(values: Sequence[float]) -> float | None:
    """The mean; None of no values."""
    return fmean(values) if values else None
