"""An environment of verifiers as it is: its rows, its harness, which asks the policy, and its rewards."""

import os
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import resolve_env_config


def rows(*, env: dict[str, Any]) -> Iterator[dict[str, str]]:
    """A row for each task of its taskset."""
    for task in vf.load_environment(resolve_env_config(env)).taskset:
        yield {"id": str(task.data.idx), "question": str(task.data.prompt)}


async def solve(task, base_url: str, api_key: str, *, env: dict[str, Any]) -> float:
    """The reward of one episode, the sum of those of its agents."""
    variable = f"API_KEY_{api_key}"  # verifiers reads a key from a variable, and gives those of API_KEY to no program
    client = vf.EvalClientConfig(base_url=base_url, api_key_var=variable)
    os.environ[variable] = api_key
    environment = vf.load_environment(resolve_env_config(env))
    try:
        async with environment.serving():
            [asked] = environment.taskset.include(idx=[int(task.id)])
            episode = await environment.run_episode(asked, vf.ModelContext(model="policy", client=client))
    finally:
        del os.environ[variable]
    if not episode.ok:
        raise RuntimeError([*episode.errors, *(error for trace in episode.traces for error in trace.errors)])
    return sum(trace.reward for trace in episode.traces)
