"""The record of a user's own functions that manifests, cards and checkpoints carry."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sleuth.episodes.mcp_server import tool_server, tools_sha256
from sleuth.episodes.protocol import OwnCode, RewardSpec
from sleuth.own.functions import load_function, merged_sources, sources_of
from sleuth.recipe.envs import EnvFields
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.problems import tables_in


def own_code_of(names: Sequence[str], parameters: Mapping[str, Any], files: Sequence[Path]) -> OwnCode:
    """The record of functions, `MODULE:NAME`, which read `files`. Raises UserCodeError if one does not exist."""
    functions = [load_function(name, files) for name in names]
    sources = merged_sources(*(function.sources for function in functions))
    return OwnCode(
        functions=tuple(function.name for function in functions), parameters=dict(parameters), sources=sources
    )


def env_code_in(env: EnvFields) -> OwnCode | None:
    """The record of the functions that an environment calls; None for our environments."""
    if not env.functions() and not env.tool_servers():
        return None
    code = own_code_of(env.functions(), getattr(env, "parameters", {}), getattr(env, "files", ()))
    servers: dict[str, str] = {}
    for server in env.tool_servers():
        address = server.mcp or ""
        name = f"{address} in {server.folder}" if server.folder is not None else address
        servers[name] = tools_sha256(tool_server(address, server.folder).offered(server.only))
    return OwnCode(
        functions=(*code.functions, *servers),
        parameters=code.parameters,
        sources=code.sources | {f"tools of {name}": sha256 for name, sha256 in servers.items()},
    )


def families_code_in(stage: GrpoRecipe) -> OwnCode | None:
    """The record of the classes of a stage's tables that families of others bring; None if there are none."""
    kinds = dict.fromkeys(type(table) for _, table in tables_in(stage))
    others = [kind for kind in kinds if kind.__module__.partition(".")[0] != "sleuth"]
    if not others:
        return None
    names = tuple(f"{kind.__module__}:{kind.__name__}" for kind in others)
    return OwnCode(functions=names, parameters={}, sources=merged_sources(*map(sources_of, others)))


def own_code_in(stage: GrpoRecipe) -> dict[str, OwnCode]:
    """The records of a stage's environment (`env`), loss (`loss`) and tables (`families`), as far as they are not ours.
    The functions of its rewards are in its reward specification."""
    loss = stage.loss
    found = {
        "env": env_code_in(stage.env),
        "loss": own_code_of([loss.function], loss.parameters, loss.files) if loss.function is not None else None,
        "families": families_code_in(stage),
    }
    return {what: code for what, code in found.items() if code is not None}


def all_sources(code: Mapping[str, OwnCode]) -> dict[str, str]:
    """The sha256 of all their files, by path. Raises UserCodeError if two different files have the same path."""
    return merged_sources(*(one.sources for one in code.values()))


def code_differences(before: Mapping[str, OwnCode], now: Mapping[str, OwnCode]) -> list[str]:
    """What differs between records of a stage's code: files, and `the functions of env` or `the parameters of loss`."""
    old, new = all_sources(before), all_sources(now)
    found = [name for name in old | new if old.get(name) != new.get(name)]
    for what in {**before, **now}:
        one, other = before.get(what), now.get(what)
        for part in ("functions", "parameters"):
            if getattr(one, part, None) != getattr(other, part, None):
                found.append(f"the {part} of {what}")
    return found


def accepted_hash(reward: RewardSpec, code: Mapping[str, OwnCode]) -> str:
    """What `--accept-reward` names: the hash of the reward, or, of a stage with other code of the user, of both."""
    if not code:
        return reward.hash
    plain = {what: one.model_dump(mode="json") for what, one in code.items()} | {"reward": reward.hash}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]
