"""Cards of models and data sets: the README.md of a folder or of a repository on the hub, and what it states."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, cast

from sleuth.host.threads import to_stderr

CARD = "README.md"
Repository = Literal["model", "dataset"]

_CITATION = re.compile(r"^```\w*[ \t]*\r?\n(\s*@\w+\s*\{(?:(?!^```).)*+)^```[ \t]*\r?$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryCard:
    """What a card states. `licence` is a licence name of the hub; `other` is named by `licence_name` and described at
    `licence_link`. `citations` are BibTeX. `found` is False if there is no card here, and `problem` says why the front
    matter of one could not be read."""

    found: bool = True
    problem: str | None = None
    licence: str | None = None
    licence_name: str | None = None
    licence_link: str | None = None
    datasets: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    citations: tuple[str, ...] = ()

    def licence_line(self) -> str:
        """The licence in words, or why it is not known."""
        if self.licence is not None:
            name = f"`{self.licence_name or self.licence}`"
            return f"{name} ({self.licence_link})" if self.licence_link else name
        if not self.found:
            return "not known: its card is not here"
        return f"not known: {self.problem}" if self.problem else "not stated on its card"


NO_CARD = RepositoryCard(found=False)


def card_of(place: str, kind: Repository = "model") -> RepositoryCard:
    """The card of a folder, or of a hub repository whose card was fetched before; nothing is downloaded."""
    if Path(place).is_dir():
        file = Path(place) / CARD
        return read_card(file) if file.is_file() else NO_CARD
    found = _in_cache(place, kind)
    return read_card(Path(found)) if isinstance(found, str) else NO_CARD


def read_card(file: Path) -> RepositoryCard:
    """What a card states. Front matter that cannot be read is its `problem`; its citations are kept."""
    import yaml
    from huggingface_hub import metadata_load

    text = file.read_text(encoding="utf-8", errors="replace")
    citations = tuple(found.strip() for found in _CITATION.findall(text))
    try:
        stated = metadata_load(file) or {}
    except (yaml.YAMLError, ValueError, IndexError, RecursionError):  # no such date, no mapping; an empty number
        problem = f"the front matter of {file} is no YAML of keys and values"
        return RepositoryCard(problem=problem, citations=citations)
    licences = _texts(stated.get("license"))
    return RepositoryCard(
        licence=licences[0] if licences else None,
        licence_name=_text(stated.get("license_name")),
        licence_link=_text(stated.get("license_link")),
        datasets=_texts(stated.get("datasets")),
        tags=_texts(stated.get("tags")),
        citations=citations,
    )


@cache
def prepare_card(model: str, log: Callable[[str], None] = to_stderr) -> None:
    """Fetches the card of a model on the hub, and logs a line if its front matter cannot be read."""
    if not Path(model).is_dir():
        fetch_card(model, "model", log)
    if (problem := card_of(model).problem) is not None:
        log(f"{problem}: cards of checkpoints will not state the licence of {model}")


def fetch_card(repository: str, kind: Repository, log: Callable[[str], None] = to_stderr) -> None:
    """Downloads the card of a hub repository into the hub's cache, once. Logs a line if the hub cannot be reached."""
    if _in_cache(repository, kind) is not None:
        return
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(repository, CARD, repo_type=kind)
    except Exception as error:  # the hub's own errors and those of its web client, which differ by version
        if _in_cache(repository, kind) is None:  # the cache also remembers that a repository has no card
            reason = " ".join(str(error).split())[:120]
            log(f"{repository}: its card could not be fetched, so its licence will not be stated: {reason}")


def _in_cache(repository: str, kind: Repository) -> object:
    """The path of a fetched card, another object if the repository is known to have none, None if it was not fetched
    or `repository` is no hub id."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return try_to_load_from_cache(repository, CARD, repo_type=kind)
    except HFValidationError:
        return None


def _text(value: object) -> str | None:
    return " ".join(value.split()) or None if isinstance(value, str) else None


def _texts(value: object) -> tuple[str, ...]:
    """The texts of a value that may be one text or a list; others are left out."""
    values = cast(list[object], value) if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(text for one in values if (text := _text(one)) is not None))
