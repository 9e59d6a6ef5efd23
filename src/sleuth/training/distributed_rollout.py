"""Episodes that ranks play together: each its own prompts, and all know all of them when they are scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sleuth.ranks import Ranks
from sleuth.rollout import Rollout, scored
from sleuth.types import Env, Group, Reward, Task


async def play_together(
    rollout: Rollout,
    tasks: Sequence[Task],
    make_env: Callable[[Task], Env],
    *,
    samples: int,
    first_prompt: int,
    reward: Reward | None,
    ranks: Ranks,
) -> list[Group]:
    """As `Rollout.groups`, of which each rank plays a stretch of the tasks. The draws are named by the prompt, not by
    who plays it. The first rank, which alone has the reward, scores them all: it knows what judges said before."""
    if ranks.alone:
        return await rollout.groups(tasks, make_env, samples=samples, first_prompt=first_prompt, reward=reward)
    mine = ranks.share(len(tasks))
    groups = await rollout.groups(tasks[mine], make_env, samples=samples, first_prompt=first_prompt + mine.start)
    return await score_together(ranks.all_gather(groups), reward, ranks)


async def score_together(groups: Sequence[Group], reward: Reward | None, ranks: Ranks) -> list[Group]:
    """As `scored`; the first rank asks, and the others hear it."""
    found: list[Group] | Exception = []
    if reward is not None:
        try:
            found = await scored(groups, reward)
        except Exception as error:  # it is raised below, on every rank: none may wait for scores that never come
            found = error
    return ranks.broadcast(lambda: _given(found))


def _given(found: list[Group] | Exception) -> list[Group]:
    if isinstance(found, Exception):
        raise found
    return found
