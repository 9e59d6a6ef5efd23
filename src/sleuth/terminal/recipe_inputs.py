"""Checks that the files and names in a recipe exist, without importing torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sleuth.answers.function import require_reward
from sleuth.data.catalogue import command_for
from sleuth.data.hub import HubLocation
from sleuth.dialect import dialect_of, require_speakable
from sleuth.episodes.library import read_prompt, require_askable
from sleuth.episodes.mcp_server import tool_server
from sleuth.host.model_path import require_model
from sleuth.own.commands import load_command
from sleuth.own.functions import UserFunction, load_function
from sleuth.own.permission import CODE
from sleuth.recipe.draft import Key, emit_value
from sleuth.recipe.envs import EnvFields, ToolTableRecipe
from sleuth.recipe.problems import looked_for
from sleuth.recipe.shipped import HOME, REFINER_ROWS, WORLD
from sleuth.recipe.strict import StrictModel
from sleuth.retrieval.index_card import read_card
from sleuth.runs.trackers import require_trackers
from sleuth.types import SleuthError


def missing_inputs(table: StrictModel) -> Iterator[str]:
    """A message for each missing file or unknown name in a table: `questions = "nope.jsonl": no such file`."""
    for key, kind in table.named.items():
        value = getattr(table, key, None)
        if not value:
            continue
        try:
            with CODE.skipping():
                REQUIRED[kind](value, table)
        except SleuthError as error:
            reason = f"{error}{_how_to_make(value)}".removeprefix(f"{value}: ").removeprefix(f"{key} = {value!r}: ")
            shown = emit_value(value if isinstance(value, tuple) else str(value))
            yield f"{key} = {shown}: {reason}"


def _how_to_make(value: object) -> str:
    """What writes the files that recipes that ship read: rows of the generated world, rows to refine, and test sets."""
    if not isinstance(value, Path) or not value.suffix:
        return ""
    if HOME in value.parents:
        return f"; `sleuth learn FOLDER --run {HOME}` writes it"
    if value.suffix == ".jsonl" and value.parent == REFINER_ROWS:
        return "; the commands of docs/tutorials/refiner.md#from-nothing-to-a-run write it"
    is_world = value.suffix == ".jsonl" and value.parent == WORLD
    command = f"sleuth world {WORLD}" if is_world else command_for(value)
    return f"; `{command}` writes it" if command else ""


def require_named(table: StrictModel, where: str, key: Key = ()) -> None:
    """Raises SleuthError with a line for each missing file or unknown name in a table and the tables within it. `where`
    names the file of the table, `key` its position there."""
    problems = [f"{where}: {sentence}" for _, sentence in looked_for(table, missing_inputs, key)]
    if problems:
        raise SleuthError(*problems)


def require_file(path: Path) -> None:
    """Raises SleuthError if there is no such file. Files on the hub are checked when they are downloaded."""
    require_files([path])


def require_files(paths: Sequence[Path]) -> None:
    """Likewise for several, with all that are missing in one line."""
    absent = [str(path) for path in paths if HubLocation.read(path) is None and not path.is_file()]
    if absent:
        raise SleuthError(f"{', '.join(absent)}: no such file")


def require_texts(path: Path) -> None:
    """Likewise for a file or a folder."""
    if HubLocation.read(path) is None and not path.exists():
        raise SleuthError(f"{path}: no such file or folder")


def require_suite(suite: Path) -> None:
    """Likewise for a folder of test sets, or a suite by name."""
    from sleuth.answers.suites import folder_of, require_sets

    if HubLocation.read(folder_of(suite)) is None:
        require_sets(suite)


def require_index(folder: Path, env: StrictModel | None = None) -> None:
    """Raises SleuthError if there is no such index, its encoder is missing, or `env` requires another retriever."""
    card = read_card(folder)
    if isinstance(env, EnvFields):
        env.require_retriever(card.retriever)
    if card.encoder is not None:
        from sleuth.retrieval.encoder import require_encoder

        require_encoder(card.encoder.model)


def _require_dialect(name: str, env: StrictModel) -> None:
    opened = {key: getattr(env, key, False) for key in ("forced_search", "closed_book")}
    require_speakable(dialect_of(name), getattr(env, "prompt_role", None) or "user", **opened)


def _require_prompt(name: str, env: StrictModel) -> None:
    text = read_prompt(name)
    if (role := getattr(env, "prompt_role", None)) is not None:
        require_askable(text, role, Path(name).stem)


def _require_searched(folder: Path, env: StrictModel) -> None:
    if getattr(env, "retriever", "index") != "empty" and not getattr(env, "closed_book", False):
        require_index(folder, env)


def _require_tools(tools: Sequence[str | ToolTableRecipe], env: StrictModel) -> None:
    for tool in tools:
        if isinstance(tool, str):
            _load(tool, env)


def _require_server(address: str, server: StrictModel) -> None:
    if address.strip():  # else the recipe refuses it
        tool_server(address, getattr(server, "folder", None)).offered(getattr(server, "only", ()))


def _load(name: str, table: StrictModel) -> UserFunction:
    """The function, with those of its files that exist: the others are reported by their own key."""
    return load_function(name, _files_of(table))


def _files_of(table: StrictModel) -> list[Path]:
    return [file for file in getattr(table, "files", ()) if file.is_file()]


def _require_reward(name: str, reward: StrictModel) -> None:
    require_reward(_load(name, reward), getattr(reward, "parameters", {}))


def _require_startable(kind: str, pool: StrictModel) -> None:
    program = getattr(pool, "command", None) or kind
    CODE.require(f"starts {' '.join([program, *getattr(pool, 'arguments', ())])}")


def _require_variable(name: str, model: StrictModel) -> None:
    if not os.environ.get(name):
        raise SleuthError(f"key_variable = {name!r}: there is no such variable in the environment")


def _require_model(name: str, table: StrictModel) -> None:
    first = next(iter(getattr(table, "stage", ())), None)
    if not getattr(first, "init", None):  # else the run makes its model
        require_model(name)


REQUIRED: dict[str, Callable[[Any, StrictModel], object]] = {
    "file": lambda path, table: require_file(path),
    "files": lambda paths, table: require_files(paths),
    "texts": lambda path, table: require_texts(path),
    "suite": lambda suite, table: require_suite(suite),
    "index": _require_searched,
    "model": _require_model,
    "dialect": lambda name, table: dialect_of(name),
    "spoken_dialect": _require_dialect,
    "prompt": _require_prompt,
    "text": lambda name, table: read_prompt(name),
    "function": _load,
    "agent_command": lambda command, table: load_command(command, _files_of(table)),
    "functions": lambda names, table: [_load(name, table) for name in names],
    "reward": _require_reward,
    "tools": _require_tools,
    "server": _require_server,
    "launch": _require_startable,
    "variable": _require_variable,
    "trackers": lambda names, table: require_trackers(names),
}
"""Checks of a value and its table that raise SleuthError if what it names does not exist, by its kind in
`StrictModel.named`."""
