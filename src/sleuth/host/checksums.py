"""`SHA256SUMS`: the checksums of a folder's files, written with it and verified before it is read.

The format is that of `sha256sum`, which checks such a folder too: `sha256sum --check SHA256SUMS`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from sleuth.host.atomic import share_by_umask, write_text
from sleuth.host.model_path import loaded_files, not_a_file, require_file
from sleuth.types import SleuthError

SUMS = "SHA256SUMS"
AT_ONCE = 4
"""Files that are hashed at the same time."""
_HASHED: dict[tuple[int, ...], str] = {}
"""Digest of each file that this process has read, by device, inode, size and times."""
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


def file_sha256(file: Path) -> str:
    """sha256 of a file that is read once in a process, also if a folder above it is renamed."""
    require_file(file)
    with open(file, "rb") as content:
        status = os.fstat(content.fileno())
        version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if version not in _HASHED:
            _HASHED[version] = hashlib.file_digest(content, "sha256").hexdigest()
    return _HASHED[version]


def write_checksums(folder: Path, *, but: Collection[str] = ()) -> None:
    """Writes the checksums of all files in the folder, except those named in `but`, which may be written again later.

    Freshly written files are read from the page cache, so this costs the time of hashing them."""
    share_by_umask(folder)  # before hashing, which knows a file by its times
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [name for file in files if (name := file.relative_to(folder).as_posix()) not in {SUMS, *but}]
    _write(folder, dict(zip(names, _hash_all(folder, names), strict=True)))


def list_again(folder: Path, name: str) -> None:
    """Lists one file of a folder with checksums as it is now."""
    if has_checksums(folder):
        _write(folder, {**_read(folder), name: file_sha256(folder / name)})


def drop_checksums(folder: Path, dropped: Callable[[str], bool]) -> None:
    """Removes files from the list, before they are removed themselves. A damaged list stays as it is."""
    if has_checksums(folder):
        with suppress(SleuthError):
            _write(folder, {name: digest for name, digest in _read(folder).items() if not dropped(name)})


def has_checksums(folder: Path) -> bool:
    """Whether the folder has a list of checksums; checkpoints of earlier versions have none."""
    return os.path.lexists(folder / SUMS)


def listed_files(folder: Path) -> list[str]:
    """The names in the list of a folder; none if it has no list. Raises SleuthError if that is damaged."""
    return [*_read(folder)] if has_checksums(folder) else []


def unlisted_files(folder: Path) -> list[str]:
    """The files that would be loaded and are not in the list of a folder that has one. Raises SleuthError for what is
    in place of a file that would be loaded."""
    loaded = loaded_files(folder)
    return [name for name in loaded if has_checksums(folder) and not lists(folder, name)]


def lists(folder: Path, name: str) -> bool:
    """Whether the checksum of `name` is listed. False, too, if the list is damaged."""
    try:
        return has_checksums(folder) and name in _read(folder)
    except SleuthError:
        return False


def weights_sha256(model: str | Path, *, read: bool = True) -> str | None:
    """The digest of the weights in a model's folder: as its list of checksums has them, else `read` once in a process.
    Of several files it is that of their digests, in the order of their names. None for what is no folder with weights.
    """
    folder = Path(model)
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    try:
        listed = _read(folder) if has_checksums(folder) else {}
    except SleuthError:  # damaged: whoever loads the model says so
        listed = {}
    if not read and not all(file.name in listed for file in files):
        return None
    digests = [listed.get(file.name) or file_sha256(file) for file in files]
    if len(digests) > 1:
        return hashlib.sha256("".join(digests).encode()).hexdigest()
    return digests[0] if digests else None


def damage(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> str | None:
    """What is wrong with the wanted files, in words, or None: also where there is no list of checksums.

    Each file is read once in a process, however often it is checked."""
    if not has_checksums(folder):
        return None
    try:
        listed = {name: digest for name, digest in _read(folder).items() if wanted(name)}
    except SleuthError as error:
        return str(error)
    missing = [
        f"{name} is {not_a_file(folder / name) or 'missing'}" for name in listed if not (folder / name).is_file()
    ]
    there = [name for name in listed if (folder / name).is_file()]
    try:
        digests = dict(zip(there, _hash_all(folder, there), strict=True))
    except OSError as error:
        return f"{Path(str(error.filename)).name} cannot be read: {error.strerror}"
    changed = [f"{name} is not what was written" for name, digest in digests.items() if digest != listed[name]]
    return " and ".join(missing + changed) or None


def require_intact(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> None:
    """Raises SleuthError if a wanted file is missing or differs from its checksum, and for one that is not in the list
    of a folder that has one, but would be loaded. What is in place of a file is refused in any folder."""
    extra = [name for name in unlisted_files(folder) if wanted(name)]
    if (problem := damage(folder, wanted)) is not None:
        raise SleuthError(
            f"{folder}: damaged: {problem}, by its {SUMS}; take another checkpoint or copy this one again. If the "
            f"change is meant, remove {SUMS} from the folder"
        )
    if extra:
        others = f" and {len(extra) - 1} more" if extra[1:] else ""
        raise SleuthError(
            f"{folder}: {extra[0]}{others} would be loaded, but not as written: not in its {SUMS}; remove what was "
            f"added or copy the folder again. If the change is meant, remove {SUMS} from the folder"
        )


def _read(folder: Path) -> dict[str, str]:
    """Digest by name. Raises SleuthError if it is no list of checksums."""
    if (problem := not_a_file(folder / SUMS)) is not None:
        raise SleuthError(f"{SUMS} is {problem}")
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise SleuthError(f"{SUMS} cannot be read: {error.strerror}") from None
    matches = [_LINE.fullmatch(line) for line in lines]
    if not matches or not all(matches):
        raise SleuthError(f"{SUMS} is not a list of checksums")
    return {match[2]: match[1] for match in matches if match}


def _write(folder: Path, digests: Mapping[str, str]) -> None:
    write_text(folder / SUMS, "".join(f"{digest}  {name}\n" for name, digest in digests.items()))


def _hash_all(folder: Path, names: Collection[str]) -> list[str]:
    with ThreadPoolExecutor(AT_ONCE) as pool:  # hashing releases the interpreter's lock
        return list(pool.map(lambda name: file_sha256(folder / name), names))


def of_model(name: str) -> bool:
    """Whether a file of a checkpoint is read to load its model."""
    return not name.startswith("state/")


def beside_weights(name: str) -> bool:
    """Whether it is read to load its model, and is small."""
    return of_model(name) and not name.endswith(".safetensors")
