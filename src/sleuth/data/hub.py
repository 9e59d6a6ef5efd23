"""Downloads data set files from the hub, by the path `hf://OWNER/NAME/FILE`.

Questions are kept in the hub's cache; a corpus, which may be many gigabytes, in a folder of the caller's choice.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Self

from sleuth.data.rows import ENDINGS
from sleuth.host.cards import Repository, fetch_card
from sleuth.host.disk import free_bytes, shown
from sleuth.host.threads import to_stderr
from sleuth.types import SleuthError

SCHEME = "hf:"
"""The first part of such a path. A `Path` folds the two slashes after it into one; both spellings are read."""

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HubLocation:
    """`hf://RUC-NLPIR/FlashRAG_datasets@main/nq/test.jsonl`: a data set, its revision, and a path in it."""

    repository: str
    revision: str | None
    path: str

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The location of a path on the hub; None for other paths. Raises SleuthError for a malformed one."""
        if path.parts[:1] != (SCHEME,):
            return None
        if len(path.parts) < 3:
            raise SleuthError(f"{path}: should be hf://OWNER/NAME/FILE, a file of a data set on the hub")
        name, _, revision = path.parts[2].partition("@")
        return cls(repository=f"{path.parts[1]}/{name}", revision=revision or None, path="/".join(path.parts[3:]))

    def require_file(self) -> None:
        """Raises SleuthError if it is a whole data set."""
        if not self.path:
            raise SleuthError(f"{self}: names no file; should be hf://OWNER/NAME/FILE")

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://{self.repository}{revision}{'/' if self.path else ''}{self.path}"


def local_file(path: Path, log: Log = to_stderr) -> Path:
    """`path` itself or, for a file on the hub, its copy in the hub's cache; `hf://OWNER/NAME/train` is the one file of
    that split. The size of a download is logged first. The card of its data set is fetched too."""
    location = HubLocation.read(path)
    if location is None:
        return path
    location.require_file()
    if not Path(location.path).suffix:
        location = _file_of_split(location)
    with _hub_errors(location):
        from huggingface_hub import hf_hub_download

        file = hf_hub_download(
            location.repository, location.path, repo_type="dataset", revision=location.revision, dry_run=True
        )
        if file.will_download:
            size = "unknown size" if file.file_size is None else shown(file.file_size)
            log(f"{location}: {size} to download")
        found = hf_hub_download(location.repository, location.path, repo_type="dataset", revision=file.commit_hash)
    fetch_card(location.repository, "dataset", log)
    return Path(found)


def files_of_split(split: HubLocation) -> list[HubLocation]:
    """The files of rows that a data set has of a split, `hf://OWNER/NAME/train`: `train.jsonl`, all in `train/`, or
    `train-00000-of-00002.parquet` and its like, also below `data/`."""
    endings = "|".join(map(re.escape, ENDINGS))
    named = re.compile(rf"(?:data/)?{re.escape(split.path)}(?:/.+|-\d+-of-\d+|)(?:{endings})")
    return [replace(split, path=file) for file in files_below(replace(split, path="")) if named.fullmatch(file)]


def _file_of_split(split: HubLocation) -> HubLocation:
    files = files_of_split(split)
    if len(files) != 1:
        found = f"names {', '.join(map(str, files))}" if files else "has no file of rows of this name"
        raise SleuthError(f"{split}: {found}; should be one file, hf://OWNER/NAME/FILE")
    return files[0]


def download_from_hub(location: HubLocation, folder: Path, watch: ProgressBar, log: Log = to_stderr) -> Path:
    """A large file of the hub, downloaded into `folder` or resumed there. Its size is logged first."""
    location.require_file()
    file = remote_file(location)
    log(f"{location}: {shown(file.size)}, into {folder}")
    return download(file, folder, watch)


def remote_file(location: HubLocation) -> RemoteFile:
    """The file at its current commit, so that its size and its contents belong together."""
    with _hub_errors(location):
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        where = {"repo_id": location.repository, "repo_type": "dataset", "filename": location.path}
        headers = build_hf_headers()
        metadata = get_hf_file_metadata(hf_hub_url(**where, revision=location.revision), headers=headers)
        if metadata.size is None:
            raise ValueError("it does not report the file's size")
        return RemoteFile(
            url=hf_hub_url(**where, revision=metadata.commit_hash or location.revision),
            name=Path(location.path).name,
            size=metadata.size,
            version=metadata.etag or metadata.commit_hash or "",
            shown=str(location),
            headers=headers,
        )


def files_below(location: HubLocation) -> list[str]:
    """The paths of a data set's files below `location`, relative to it."""
    with _hub_errors(location):
        from huggingface_hub import HfApi

        files = HfApi().list_repo_files(location.repository, repo_type="dataset", revision=location.revision)
    prefix = f"{location.path}/" if location.path else ""
    return [file.removeprefix(prefix) for file in files if file.startswith(prefix)]


@cache
def repository_files(repository: str, kind: Repository) -> tuple[dict[str, int], str]:
    """The bytes of each file of a repository, and the licence that its card states. Raises SleuthError where the hub
    does not answer or has no such repository."""
    with _hub_errors(repository):
        from huggingface_hub import HfApi

        hub = HfApi()
        info = (hub.model_info if kind == "model" else hub.dataset_info)(repository, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        return sizes, str((info.card_data or {}).get("license") or "not stated")


def is_cached(repository: str, kind: Repository, path: str) -> bool:
    """Whether a file of a repository was downloaded before."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(repository, path, repo_type=kind), str)


@contextmanager
def _hub_errors(location: HubLocation | str) -> Iterator[None]:
    """Turns errors of the hub and of the connection into a SleuthError of one line."""
    try:
        yield
    except ImportError as error:
        raise SleuthError(f'{location}: needs the package {error.name}: pip install "sleuth[hub]"') from None
    except Exception as error:  # the hub's own errors and those of its web client, which differ by version
        reason = " ".join(str(error).split())[:200]
        if type(error).__name__ == "GatedRepoError":
            repository = location if isinstance(location, str) else location.repository
            page = f"https://huggingface.co/datasets/{repository}"
            reason = f"its terms have to be accepted at {page} by the account whose token is in HF_TOKEN"
        raise SleuthError(f"{location}: cannot be downloaded from the hub: {reason}") from error


ATTEMPTS = 5  # in a row without progress
PAUSE = 1.0  # seconds before the second attempt, doubled for each further one
SILENCE_SECONDS = 30.0  # until a silent connection is closed
BLOCK = 2**20
MEGABYTE = 10**6
RETRIED_STATUS = (408, 416, 429, 500, 502, 503, 504)
PART = ".part"

ProgressBar = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""Shows progress in megabytes: `with watch("download") as progress: progress(done, total)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file on a server, of a known size in bytes.

    `version` identifies its contents: a sha256 (64 digits) or git blob id (40 digits) is verified, anything else only
    distinguishes versions. `shown` is its name in messages.
    """

    url: str
    name: str
    size: int
    version: str
    shown: str
    headers: Mapping[str, str] = field(default_factory=dict)


def download(file: RemoteFile, folder: Path, watch: ProgressBar) -> Path:
    """`file` in `folder`, complete and verified; skips the download if it is there already.

    It is written to a file that ends in `.part`, which an interrupted download resumes, and renamed when complete.
    Raises SleuthError if the server refuses, the disk is too small, the connection keeps breaking, or the checksum
    differs.
    """
    target = folder / file.name
    if target.exists() and target.stat().st_size == file.size and _is_valid(target, file, watch):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{file.name}.{re.sub('[^0-9A-Za-z]', '', file.version)[:12]}{PART}"
    needed, free = file.size - _size(part), free_bytes(folder)
    if needed > free:
        raise SleuthError(
            f"{file.shown}: needs {shown(needed)} and {folder} has {shown(free)} free; name a DIR on a larger disk"
        )
    with watch("download (MB)") as progress:
        _fill(part, file, progress)
    if part.stat().st_size != file.size or not _is_valid(part, file, watch):
        part.unlink()
        raise SleuthError(
            f"{file.shown}: the download has a wrong checksum and was removed; run the same command again"
        )
    os.replace(part, target)
    return target


def _fill(part: Path, file: RemoteFile, progress: Callable[[int, int], None]) -> None:
    """Appends to `part` until it is as long as the file."""
    idle, reason = 0, ""
    while (start := _size(part)) < file.size:
        if idle == ATTEMPTS:
            raise SleuthError(
                f"{file.shown}: the download stopped at {shown(start)} of {shown(file.size)} ({reason}); "
                "run the same command again to resume it"
            )
        if idle:
            time.sleep(PAUSE * 2 ** (idle - 1))
        try:
            _append(part, file, start, progress)
        except (SleuthError, OSError):  # refused, or a full disk
            raise
        except Exception as error:  # of the hub's web client, whose errors differ by version
            reason = " ".join(str(error).split()) or type(error).__name__
        idle = idle + 1 if _size(part) <= start else 0


def _append(part: Path, file: RemoteFile, start: int, progress: Callable[[int, int], None]) -> None:
    """Appends what one connection sends from byte `start` on; starts over if the server does not support ranges.

    The client is the hub's own, but not its download: that one starts from zero when it is called again, and compares
    no checksum."""
    from huggingface_hub.utils import get_session

    headers = {**file.headers, "Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with get_session().stream("GET", file.url, headers=headers, timeout=SILENCE_SECONDS) as response:
        if response.is_error and response.status_code not in RETRIED_STATUS:
            raise SleuthError(f"{file.shown}: the server answers {response.status_code} {response.reason_phrase}")
        response.raise_for_status()
        resumed = response.status_code == HTTPStatus.PARTIAL_CONTENT
        if resumed and not response.headers.get("content-range", "").startswith(f"bytes {start}-"):
            raise ValueError("the server sent another range than requested")
        with part.open("ab" if resumed else "wb") as content:
            for block in response.iter_raw():  # unbuffered, so that a broken connection loses nothing
                content.write(block)
                progress(content.tell() // MEGABYTE, file.size // MEGABYTE)


def _is_valid(path: Path, file: RemoteFile, watch: ProgressBar) -> bool:
    """Whether the contents match the checksum, if there is one."""
    if not re.fullmatch("[0-9a-f]{64}|[0-9a-f]{40}", file.version):
        return True
    git_blob = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    digest = hashlib.sha256() if len(file.version) == 64 else git_blob
    with watch("checksum (MB)") as progress, path.open("rb") as content:
        while block := content.read(BLOCK):
            digest.update(block)
            progress(content.tell() // MEGABYTE, file.size // MEGABYTE)
    return digest.hexdigest() == file.version


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
