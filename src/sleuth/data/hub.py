"""Files of data sets on the hub, by the path `hf://OWNER/NAME/FILE`. The one file that needs the extra `hub`.

Questions lie in the hub's cache; a corpus, which may be many gigabytes, where it is asked for."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import httpx

from sleuth.types import SleuthError

SCHEME = "hf:"
"""How such a path begins. A `Path` folds the two slashes behind it into one; both ways of writing are read."""

Say = Callable[[str], None]


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubLocation:
    """`hf://RUC-NLPIR/FlashRAG_datasets@main/nq/test.jsonl`: a data set, a revision of it, and a path in it."""

    repository: str
    revision: str | None
    path: str

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """None where `path` is no place on the hub."""
        if path.parts[:1] != (SCHEME,):
            return None
        if len(path.parts) < 3:
            raise SleuthError(f"{path}: should be hf://OWNER/NAME/FILE, a file of a data set on the hub")
        name, _, revision = path.parts[2].partition("@")
        return cls(repository=f"{path.parts[1]}/{name}", revision=revision or None, path="/".join(path.parts[3:]))

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://{self.repository}{revision}{'/' if self.path else ''}{self.path}"


def local_file(path: Path, say: Say = _to_stderr) -> Path:
    """`path` itself or, of a file on the hub, its copy in the hub's cache. What has to be downloaded for that is said
    first, with its size."""
    place = HubLocation.read(path)
    if place is None:
        return path
    if not place.path:
        raise SleuthError(f"{place}: names no file; should be hf://OWNER/NAME/FILE")
    with _hub_errors(place):
        from huggingface_hub import hf_hub_download

        found = hf_hub_download(
            place.repository, place.path, repo_type="dataset", revision=place.revision, dry_run=True
        )
        if found.will_download:
            say(f"{place}: {_megabytes(found.file_size)} to download")
        return Path(hf_hub_download(place.repository, place.path, repo_type="dataset", revision=found.commit_hash))


def downloaded(place: HubLocation, folder: Path, watch: Watch, say: Say = _to_stderr) -> Path:
    """A large file of the hub in `folder`, where an earlier call may have left a part of it. Its size is said first."""
    if not place.path:
        raise SleuthError(f"{place}: names no file; should be hf://OWNER/NAME/FILE")

    file = _remote_file(place)
    say(f"{place}: {_megabytes(file.size)}, into {folder}")
    return download(file, folder, watch)


def _remote_file(place: HubLocation) -> RemoteFile:
    """The file as the hub has it now: of the very commit that its size was told of."""
    with _hub_errors(place):
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        where = {"repo_type": "dataset", "filename": place.path}
        headers = build_hf_headers()
        told = get_hf_file_metadata(hf_hub_url(place.repository, **where, revision=place.revision), headers=headers)
        if told.size is None:
            raise ValueError("it does not tell how large the file is")
        return RemoteFile(
            url=hf_hub_url(place.repository, **where, revision=told.commit_hash or place.revision),
            name=Path(place.path).name,
            size=told.size,
            version=told.etag or told.commit_hash or "",
            shown=str(place),
            headers=headers,
        )


def files_below(place: HubLocation) -> list[str]:
    """The paths of a data set's files below `place`, relative to it."""
    with _hub_errors(place):
        from huggingface_hub import HfApi

        files = HfApi().list_repo_files(place.repository, repo_type="dataset", revision=place.revision)
    above = f"{place.path}/" if place.path else ""
    return [file.removeprefix(above) for file in files if file.startswith(above)]


@contextmanager
def _hub_errors(place: HubLocation) -> Iterator[None]:
    """What the hub or the way to it refuses, as one line."""
    try:
        yield
    except ImportError as error:
        raise SleuthError(f'{place}: needs the package {error.name}: pip install "sleuth[hub]"') from None
    except Exception as error:  # the hub's own and those of the web client below it, which differ by version
        reason = " ".join(str(error).split())[:200]
        raise SleuthError(f"{place}: cannot be had from the hub: {reason}") from error


def _megabytes(size: int | None) -> str:
    return "an unknown number of bytes" if size is None else f"{size / 1e6:,.1f} MB"


ATTEMPTS = 5  # in a row that bring nothing
PAUSE = 1.0  # seconds before the second attempt; each further one waits twice as long
SILENCE_SECONDS = 30.0  # after which a connection is given up
BLOCK = 2**20
MEGABYTE = 10**6
TRY_AGAIN = (408, 416, 429, 500, 502, 503, 504)
PART = ".part"

Watch = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""Makes work visible: `with watch("download") as progress: progress(done, total)`, in megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file on a server, of a known size in bytes.

    `version` names its contents: a sha256 (64 digits) or the id of a git blob (40 digits) is compared with what came,
    anything else only tells versions apart. `shown` is what messages call it.
    """

    url: str
    name: str
    size: int
    version: str
    shown: str
    headers: Mapping[str, str] = field(default_factory=dict)


def download(file: RemoteFile, folder: Path, watch: Watch) -> Path:
    """`file` in `folder`, whole and checked; nothing is downloaded if it is there already.

    It grows under another name, which ends in `.part`, and gets its own when it is whole. A part that an earlier call
    left behind is gone on with. Raises SleuthError where the server refuses, where the disk has too little room, where
    the connection breaks again and again, and where what came is not the file.
    """
    target = folder / file.name
    if target.exists() and target.stat().st_size == file.size and _is_sound(target, file, watch):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{file.name}.{re.sub('[^0-9A-Za-z]', '', file.version)[:12]}{PART}"
    _require_room(part, file)
    with watch("download (MB)") as progress:
        _fill(part, file, progress)
    if part.stat().st_size != file.size or not _is_sound(part, file, watch):
        part.unlink()
        raise SleuthError(
            f"{file.shown}: what came is not the file (its checksum is another) and was removed; run the same again"
        )
    os.replace(part, target)
    return target


def _fill(part: Path, file: RemoteFile, progress: Callable[[int, int], None]) -> None:
    """Append to `part` until it is as long as the file."""
    idle, reason = 0, ""
    timeout = httpx.Timeout(SILENCE_SECONDS)
    with httpx.Client(headers=dict(file.headers), follow_redirects=True, timeout=timeout) as client:
        while (had := _size(part)) < file.size:
            if idle == ATTEMPTS:
                raise SleuthError(
                    f"{file.shown}: broke off at {_in_mb(had)} of {_in_mb(file.size)} MB ({reason}); "
                    "run the same again to go on from there"
                )
            if idle:
                time.sleep(PAUSE * 2 ** (idle - 1))
            try:
                _append(client, part, file, had, progress)
            except httpx.HTTPError as error:
                reason = " ".join(str(error).split()) or type(error).__name__
            idle = idle + 1 if _size(part) <= had else 0


def _append(client: httpx.Client, part: Path, file: RemoteFile, had: int, progress: Callable[[int, int], None]) -> None:
    """What one connection brings. A server that knows no ranges begins anew, and so does the part."""
    asked = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={had}-"} if had else {})
    with client.stream("GET", file.url, headers=asked) as response:
        if response.is_error and response.status_code not in TRY_AGAIN:
            raise SleuthError(f"{file.shown}: the server answers {response.status_code} {response.reason_phrase}")
        response.raise_for_status()
        goes_on = response.status_code == httpx.codes.PARTIAL_CONTENT
        if goes_on and not response.headers.get("content-range", "").startswith(f"bytes {had}-"):
            raise httpx.RemoteProtocolError("another range than was asked for")
        with part.open("ab" if goes_on else "wb") as content:
            for block in response.iter_raw():  # by itself it keeps nothing back that a broken connection would lose
                content.write(block)
                progress(content.tell() // MEGABYTE, file.size // MEGABYTE)


def _is_sound(path: Path, file: RemoteFile, watch: Watch) -> bool:
    """Whether the contents have the checksum, where there is one."""
    if re.fullmatch("[0-9a-f]{64}", file.version):
        digest = hashlib.sha256()
    elif re.fullmatch("[0-9a-f]{40}", file.version):
        digest = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    else:
        return True
    with watch("checksum (MB)") as progress, path.open("rb") as content:
        while block := content.read(BLOCK):
            digest.update(block)
            progress(content.tell() // MEGABYTE, file.size // MEGABYTE)
    return digest.hexdigest() == file.version


def _require_room(part: Path, file: RemoteFile) -> None:
    needed, free = file.size - _size(part), shutil.disk_usage(part.parent).free
    if needed > free:
        raise SleuthError(
            f"{file.shown}: {_in_mb(needed)} MB are to come and {part.parent} has {_in_mb(free)} MB free; "
            "name a DIR on a larger disk"
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _in_mb(size: int) -> str:
    return f"{size / MEGABYTE:,.1f}"
