"""Groups of episodes, written out by hand."""

from __future__ import annotations

from collections.abc import Sequence

from sleuth.types import Episode, Group, Score, Segment, Task, Trajectory


def written(*tokens: int, version: int | None = None, logprobs: Sequence[float] | None = None) -> Segment:
    """What the policy wrote."""
    logprobs = tuple(logprobs or (-0.5,) * len(tokens))
    return Segment(author="policy", tokens=tokens, text=".", logprobs=logprobs, policy_version=version)


def make_group(*played: tuple[Trajectory, Score | None], name: str = "q") -> Group:
    """Siblings of a question and their scores."""
    task = Task(id=name, question="?", golden_answers=("x",))
    episodes = tuple(Episode(task=task, sample=at, trajectories=(one,)) for at, (one, _) in enumerate(played))
    scores = tuple(score for _, score in played if score is not None)
    return Group(task=task, episodes=episodes, scores=scores)
