"""Checks of what a verb was given. None imports torch, so that a mistake is reported at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sleuth.host.atomic import PARTIAL
from sleuth.terminal.tables import print_notes
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.recipe import Recipe, StageFields
    from sleuth.retrieval.folder import FolderRecord

Stage = TypeVar("Stage", bound="StageFields")


def require_inputs(models: Sequence[str], *, questions: Path | None = None, index: Path | None = None) -> None:
    """Raises SleuthError where a model, the file of questions or the index does not exist."""
    from sleuth.host.model_path import require_model
    from sleuth.terminal.recipe_inputs import require_file, require_index

    for model in models:
        require_model(model)
    if questions is not None:
        require_file(questions)
    if index is not None:
        require_index(index)


def read_folder(folder: Path, home: Path, *, quiet: bool = False, **asked: Any) -> FolderRecord:
    """`update_folder`, with a bar in a terminal and a note about what is newly left out."""
    from sleuth.retrieval.folder import update_folder
    from sleuth.runs.progress import progress_bar
    from sleuth.runs.progress import quiet as silence

    with silence(quiet or not sys.stderr.isatty()), progress_bar("documents") as progress:
        return update_folder(folder, home, lambda line: print_notes([] if quiet else [line]), progress, **asked)


def require_passages(index: Path | None, option: str, urls: Sequence[str]) -> None:
    """Raises SleuthError where passages come from an index and from servers, or an address is malformed; `option` is
    how the servers were given."""
    if index is not None and urls:
        raise SleuthError(f"--index and {option} are both given: passages come from one of them")
    for url in urls:
        require_url(option, url)


def require_url(option: str, url: str) -> None:
    """Raises SleuthError where the value of `option` is not an HTTP address."""
    if not url.startswith(("http://", "https://")):
        raise SleuthError(f"{option} {url}: should be http://HOST:PORT")


def require_engine(engine: str | None, served_as: str | None, local: Mapping[str, object]) -> None:
    """Raises SleuthError if the URL is malformed, if an option of `local` is for a model in this process and a server
    is named, or if a name on the server is given without one."""
    if engine is None:
        require_unset({"--served-as": served_as}, f"{served_as} is for a server; give its URL too: --engine URL")
        return
    require_url("--engine", engine)
    for option, value in local.items():
        require_unset({option: value}, f"{value} is for a model in this process; the server at {engine} has its own")


def require_unset(options: Mapping[str, object], reason: str) -> None:
    """Raises SleuthError for the first option that has a value: `--encoder is for ...`, where `reason` is what follows
    the option's name."""
    for option, value in options.items():
        if value is not None:
            name = option.replace("--", "--no-", 1) if value is False else option
            raise SleuthError(f"{name} {reason}")


@contextmanager
def naming(place: object) -> Iterator[None]:
    """Errors begin with the file, or the stage, that they are about."""
    try:
        yield
    except SleuthError as error:
        raise SleuthError(*(f"{place}: {problem}" for problem in error.args)) from None


def prepare_out_file(out: Path | None, *, option: str = "--out", example: str = "eval.json") -> None:
    """Makes the folder of the file of an option before the work, and writes beside it what it removes again. Raises
    SleuthError where no file can be written."""
    if out is None:
        return
    try:
        if out.is_dir():
            raise SleuthError(f"{option} {out}: a folder; name a file, such as {out / example}")
        out.parent.mkdir(parents=True, exist_ok=True)
        trial = out.with_name(out.name + PARTIAL)
        trial.write_bytes(b"\n")
        trial.unlink()
    except (FileExistsError, NotADirectoryError) as error:
        raise SleuthError(f"{option} {out}: {error.filename} is not a folder; name another place") from None
    except OSError as error:
        raise SleuthError(f"{option} {out}: cannot be written ({error.strerror}); name another place") from None


def load_stage(file: Path, kind: type[Stage]) -> tuple[Recipe, Stage]:
    """A recipe and its first stage of that kind. Raises SleuthError where it has none, or where a file that the stage
    names does not exist."""
    from sleuth.recipe import load_recipe
    from sleuth.terminal.recipe_inputs import require_named

    recipe = load_recipe(file)
    for at, stage in enumerate(recipe.stage):
        if isinstance(stage, kind):
            require_named(stage, str(file), ("stage", at))
            return recipe, stage
    raise SleuthError(f'{file}: has no stage of kind = "{kind.own_kind()}"; add one')
