"""Whether a model is where its name says: a folder of this machine, or a repository of the hub, which is asked once;
which files of a folder decide what is loaded from it, and whether those beside its weights are plain descriptions."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from sleuth.types import SleuthError

HUB_SECONDS = 5.0
"""How long the hub may take to answer."""
COMPANIONS = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template*",
    "additional_chat_templates/*.jinja",
)
"""Patterns of the files that go with weights and config.json."""
LOADED = (*COMPANIONS, "*config.json", "protocol.json", "*.safetensors", "*.bin", "*.index.json", "*.h5", "adapter/*")
LOADED += ("state/*",)
"""Patterns of the files that change what transformers, peft or a resumed run load from a folder."""
_KINDS = {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
LARGEST = {
    "config.json": 4 << 20,
    "generation_config.json": 4 << 20,
    "tokenizer_config.json": 32 << 20,
    "special_tokens_map.json": 4 << 20,
    "chat_template.jinja": 4 << 20,
    "model.safetensors.index.json": 64 << 20,
    "tokenizer.json": 256 << 20,
}
"""Bytes of the largest such file that is read; published ones have a tenth."""
MOST_LAYERS = 10_000
"""A config makes a list of them before any weight is read."""
LARGEST_NUMBER = 2**40


def require_model(path: str) -> None:
    """Raises SleuthError unless `path` is a folder, or the id of a model that is on the hub or was downloaded before.

    The disk is looked at first. The hub is asked only for what reads OWNER/NAME where no folder OWNER is here, and only
    once: transformers would ask again and again, for most of a minute a file. Where it does not answer, this process
    asks it nothing more.
    """
    if Path(path).exists():
        loaded_files(Path(path))
        if Path(path).is_file():  # transformers would ask the hub for it, for minutes
            raise SleuthError(f"{path}: is a file; a model is a folder, with config.json and tokenizer.json")
        return
    absent = f"{path}: no such folder" + ("" if path.startswith(("/", "~")) else f" here (from {Path.cwd()})")
    if path.startswith(("/", ".", "~")) or path.count("/") != 1:
        raise SleuthError(f"{absent}, and a hub id would read OWNER/NAME")
    if (owner := Path(path).parent).is_dir():
        raise SleuthError(f"{absent}: there is a folder {owner}, and so it is not looked for on the hub")
    if (problem := _problem_on_hub(path)) is not None:
        raise SleuthError(f"{absent}, and {problem}")


def not_a_file(path: Path) -> str | None:
    """What is in place of a file, in words: a pipe would be waited for. None for a file, a link to one, and nothing."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except OSError:  # nothing is there, a link to itself, or to nothing
        return "a link that leads to no file" if path.is_symlink() else None
    return None if kind == stat.S_IFREG else f"a {_KINDS.get(kind, 'device')}, not a file"


def require_file(path: Path) -> None:
    """Raises SleuthError if something else than a file is there."""
    if (problem := not_a_file(path)) is not None:
        raise SleuthError(f"{path}: is {problem}")


def loaded_files(folder: Path) -> list[str]:
    """The names of the files in a folder that decide what is loaded from it, sorted; none if it is no folder. Raises
    SleuthError for one that is something else than a file."""
    if not folder.is_dir():
        require_file(folder)
        return []
    inner = {pattern.partition("/")[0] for pattern in LOADED if "/" in pattern}
    found = [
        *folder.iterdir(),
        *(path for name in inner if (folder / name).is_dir() for path in (folder / name).iterdir()),
    ]
    names = {path.relative_to(folder).as_posix(): path for path in found if not path.is_dir()}
    loaded = sorted(name for name in names if name in inner or any(fnmatchcase(name, one) for one in LOADED))
    for name in loaded:
        require_file(names[name])
    return loaded


def require_plain(path: str) -> None:
    """Raises SleuthError if a file that describes the model is too large to read, or its config names code of the hub,
    or numbers that no model has. Transformers would download that code, and fill the memory with layers."""
    for name, largest in LARGEST.items():
        if (file := _file_of(path, name)) is not None and file.stat().st_size > largest:
            raise SleuthError(f"{file}: {file.stat().st_size:,} bytes: should have at most {largest:,}")
    if (file := _file_of(path, "config.json")) is None:
        return
    for key, value in _leaves(read_object(file)):
        if key.endswith("attn_implementation") and isinstance(value, str) and "/" in value:
            raise SleuthError(f"{file}: {key} = {value!r} names code of the hub, which is not run: remove the key")
        if isinstance(value, int) and not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
            raise SleuthError(f"{file}: {key} = {value}: should be a number up to {LARGEST_NUMBER}")
        if isinstance(value, int) and key.endswith(("layers", "layer")) and value > MOST_LAYERS:
            raise SleuthError(f"{file}: {key} = {value}: should be at most {MOST_LAYERS}")


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises SleuthError if it has none."""
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise SleuthError(f"{file}: is not JSON: {str(error) or 'nested too deep'}") from None
    if not isinstance(value, dict):
        raise SleuthError(f"{file}: is not a JSON object")
    return value


def _leaves(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """All values that are not containers, each with the nearest key above it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, key)
    else:
        yield key, value


def _file_of(path: str, name: str) -> Path | None:
    """A file of a model, downloaded first if that is on the hub; None if it has none."""
    if Path(path).is_dir():
        return file if (file := Path(path) / name).is_file() else None
    return _downloaded(path, name)


@cache
def _downloaded(model: str, name: str) -> Path | None:
    from huggingface_hub import hf_hub_download

    with suppress(Exception):  # most have only some of them; who loads the model says what is missing
        return Path(hf_hub_download(model, name))
    return None


def model_name(path: str) -> str:
    """The name of a model without its owner or folder: `e5-base-v2` of `intfloat/e5-base-v2`, of `/models/e5-base-v2`
    and of its snapshot in the hub's cache."""
    parts = Path(path).parts
    return parts[-3].rpartition("--")[2] if len(parts) > 2 and parts[-2] == "snapshots" else Path(path).name


@cache
def _problem_on_hub(model: str) -> str | None:
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    try:
        HfApi().model_info(model, timeout=HUB_SECONDS)
        return None
    except HFValidationError:
        return "no hub id either, which would read OWNER/NAME"
    except GatedRepoError:  # it is there; whether it may be read shows when it is
        return None
    except RepositoryNotFoundError:
        problem = "the hub has no model of that name, or none that you may read"
    except HfHubHTTPError as error:
        problem = f"the hub answers {error.response.status_code} {error.response.reason_phrase}"
    except Exception as error:  # of whichever HTTP client the hub's package has
        problem = f"the hub could not be reached: {' '.join(str(error).split())[:200] or type(error).__name__}"
    if not isinstance(try_to_load_from_cache(model, "config.json"), str):
        return problem
    constants.HF_HUB_OFFLINE = True  # what was downloaded is read without asking for each file again
    return None
