"""What a recipe needs of the world outside it: each thing here, to be fetched, or missing with the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from sleuth.answers.suites import SEVEN, SUITES, folder_of, load_suite
from sleuth.data.catalogue import command_for, find_entry
from sleuth.data.catalogue import needs_of as entry_needs
from sleuth.data.hub import HubLocation, files_of_split, is_cached, local_file, repository_files
from sleuth.episodes.library import PUBLISHED, import_prompt
from sleuth.host.disk import free_bytes, shown
from sleuth.host.hardware import Cards, read_cards
from sleuth.recipe import Recipe
from sleuth.recipe.problems import looked_for
from sleuth.recipe.strict import StrictModel
from sleuth.terminal.recipe_inputs import REQUIRED
from sleuth.types import SleuthError

WEIGHTS = ["*.safetensors", "*.json", "*.txt", "*.jinja", "*.model"]
"""Patterns of the files of a model that are fetched."""
LABELS = {"here": "here", "fetch": "to fetch", "missing": "MISSING"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A thing, such as `model Qwen/Qwen2.5-3B`, where it stands, the `bytes` to fetch, and how. `rows`: the path of
    rows on the hub."""

    what: str
    state: Literal["here", "fetch", "missing"] = "here"
    detail: str = ""
    bytes: int = 0
    rows: Path | None = None
    fetch: Callable[[], object] = lambda: None

    def line(self) -> str:
        """`to fetch  model Qwen/Qwen2.5-3B: 6.2 GB, licence apache-2.0`."""
        return f"{LABELS[self.state]:<8}  {self.what}{f': {self.detail}' if self.detail else ''}"

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"what": self.what, "state": self.state, "detail": self.detail, "bytes": self.bytes}


def needs_of(recipe: Recipe) -> list[Need]:
    """What the recipe names: models, rows, test sets, indexes, prompts, servers. What an earlier stage makes is left
    out. Asks the hub for the sizes of what is not here; nothing is fetched."""
    found: list[Need] = []

    def look(table: StrictModel) -> Iterator[str]:
        for key, kind in table.named.items():
            value = getattr(table, key, None)
            values = value if isinstance(value, tuple) else (value,)
            found.extend(_need(kind, one, value, table) for one in values if one)
        if getattr(table, "urls", None) and hasattr(table, "model"):
            found.append(_served(table))
        if getattr(table, "launch", None) and getattr(table, "model", None):
            found.append(_need("model", table.model, table.model, table))  # type: ignore[attr-defined]
        yield from ()

    list(looked_for(recipe, look))
    files = [file for need in found if (file := need.rows) is not None]
    return list({need.what: _from_rows(need, files) for need in found}.values())


def _from_rows(need: Need, files: Sequence[Path]) -> Need:
    """A missing prompt that is published in rows which the recipe reads is imported from them."""
    name = need.what.removeprefix("prompt ")
    published = PUBLISHED.get(name) if need.state == "missing" else None
    for file in files if published is not None else ():
        location = HubLocation.read(file)
        if published is not None and location is not None and location.repository in published.source:
            fetch = partial(_import_prompt, name, file)
            return replace(need, state="fetch", detail=f"from the rows of {location.repository}", fetch=fetch)
    return need


def _import_prompt(name: str, file: Path) -> None:
    import_prompt(name, local_file(file))


def _need(kind: str, one: Any, value: Any, table: StrictModel) -> Need:
    what = f"{NOUNS.get(kind, kind)} {one}"
    location = HubLocation.read(folder_of(one) if kind == "suite" else Path(one)) if kind in OF_HUB else None
    try:
        if kind == "model" and _on_hub(str(one)):
            return _of_hub(what, str(one), "model", fetch=partial(_fetch_model, str(one)))
        if location is not None and kind == "suite":
            named = SUITES[str(one)].questions if str(one) in SUITES else SEVEN
            below = tuple(f"{name}/" for name in named)
            return _of_hub(what, location.repository, "dataset", below, partial(load_suite, one))
        if location is not None:
            what = f"{NOUNS.get(kind, kind)} {location}"
            is_split = kind != "texts" and not Path(location.path).suffix
            repository_files(location.repository, "dataset")  # answers at once where there is no hub; lists try again
            below = tuple(file.path for file in files_of_split(location)) if is_split else (location.path,)
            fetch = partial(local_file, Path(one)) if kind != "texts" or Path(location.path).suffix else None
            return replace(_of_hub(what, location.repository, "dataset", below or ("?",), fetch), rows=Path(one))
        REQUIRED[kind](value, table)
        return Need(what=what)
    except SleuthError as error:
        if kind == "index" and (command := command_for(Path(one))) is not None:
            return _index(what, command)
        return Need(what=what, state="missing", detail=str(error).removeprefix(f"{one}: "))


OF_HUB = ("file", "files", "texts", "suite")
"""Kinds of `StrictModel.named` that may be data sets of the hub."""
NOUNS = {"texts": "rows", "file": "rows", "files": "file", "spoken_dialect": "dialect", "text": "prompt"}
"""What a kind of `StrictModel.named` is called, where it has another name."""


def _on_hub(model: str) -> bool:
    return not Path(model).exists() and model.count("/") == 1 and not Path(model).parent.is_dir()


def _of_hub(
    what: str,
    repository: str,
    kind: Literal["model", "dataset"],
    below: tuple[str, ...] = ("",),
    fetch: Callable[[], object] | None = None,
) -> Need:
    """A repository of the hub, or its files `below` some of these; without `fetch` it is read as it is needed."""
    if is_cached(repository, kind, below[0] or "config.json"):
        return Need(what=what)
    files, licence = repository_files(repository, kind)
    if not (sizes := [size for name, size in files.items() if name.startswith(below)]):
        raise SleuthError(f"{repository} has no {' or '.join(below)}")
    detail = f"{shown(sum(sizes))}, licence {licence}"
    if fetch is None:
        return Need(what=what, detail=f"{detail}; read from the hub as far as it is needed")
    return Need(what=what, state="fetch", detail=detail, bytes=sum(sizes), fetch=fetch)


def _fetch_model(repository: str) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(repository, allow_patterns=WEIGHTS)


def _index(what: str, command: str) -> Need:
    """An index that `sleuth get` writes."""
    from sleuth.cli.get import get

    name, dense = command.split()[2], "--kind dense" in command
    try:
        needed = entry_needs(find_entry(name), Path("data") / name, dense=dense)
    except SleuthError as error:
        return Need(what=what, state="missing", detail=f"`{command}` writes it, but {error}")
    size, kind = needed.download + needed.index, cast(Literal["bm25", "dense"], "dense" if dense else "bm25")
    detail = f"`{command}`: {shown(needed.download)} to download, {shown(needed.index)} for the index"
    return Need(what=what, state="fetch", detail=detail, bytes=size, fetch=partial(get, name, kind=kind))


def _served(table: Any) -> Need:
    """A judge or a teacher that the user serves."""
    from sleuth.judges.factory import wait_until_served

    what = f"server of {table.model} at {', '.join(table.urls)}"
    try:
        wait_until_served(table.urls, table.model, key=getattr(table, "key", None))
    except SleuthError as error:
        return Need(what=what, state="missing", detail=f"{error}; start one, or set launch and the run starts it")
    return Need(what=what)


def cards_of(recipe: Recipe) -> Cards | None:
    """The cards that a recipe names, unless it is to run on the CPU."""
    return read_cards(recipe.card) if recipe.card is not None and recipe.device != "cpu" else None


def cards_needed(recipe: Recipe) -> list[Need]:
    """The cards that it names, beside those that are here."""
    if (cards := cards_of(recipe)) is None:
        return []
    import torch

    here = [torch.cuda.get_device_properties(at).total_memory for at in range(torch.cuda.device_count())]
    enough = len([memory for memory in here if memory >= 0.95 * cards.card.memory]) >= cards.count
    found = f"here are {len(here) or 'none'}{f' of {shown(min(here))} and more' if here else ''}"
    remedy = f"{found}; `sleuth plan {recipe.name} --card NAME` says what would fit yours"
    return [Need(what=f"cards {cards}", state="here" if enough else "missing", detail="" if enough else remedy)]


def disk_needed(recipes: Sequence[Recipe], needs: Sequence[Need], root: Path) -> Need:
    """Room for what is fetched and for the checkpoints of all runs, as far as the shapes of their models are known."""
    from sleuth.host.memory import total_host_memory
    from sleuth.plan.fit import plan_for_cpu

    fetched, kept = sum(need.bytes for need in needs), 0
    for recipe in recipes:
        try:
            kept += plan_for_cpu(recipe, total_host_memory()).peak_disk_bytes
        except SleuthError:  # a model that is not here yet
            continue
    free = free_bytes(root)
    detail = f"{shown(fetched)} to fetch and {shown(kept)} of checkpoints, of {shown(free)} that are free"
    return Need(what=f"disk at {root}", state="here" if fetched + kept <= free else "missing", detail=detail)
