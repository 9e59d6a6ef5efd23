"""Files of data sets on the hub, by the path `hf://OWNER/NAME/FILE`. The one file that needs the extra `hub`.

Questions lie in the hub's cache; a corpus, which may be many gigabytes, where it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.data.download import RemoteFile, Watch

SCHEME = "hf:"
"""How such a path begins. A `Path` folds the two slashes behind it into one; both ways of writing are read."""

Say = Callable[[str], None]


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPlace:
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
    place = HubPlace.read(path)
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


def downloaded(place: HubPlace, folder: Path, watch: Watch, say: Say = _to_stderr) -> Path:
    """A large file of the hub in `folder`, where an earlier call may have left a part of it. Its size is said first."""
    if not place.path:
        raise SleuthError(f"{place}: names no file; should be hf://OWNER/NAME/FILE")
    from sleuth.data.download import download

    file = _remote_file(place)
    say(f"{place}: {_megabytes(file.size)}, into {folder}")
    return download(file, folder, watch)


def _remote_file(place: HubPlace) -> RemoteFile:
    """The file as the hub has it now: of the very commit that its size was told of."""
    with _hub_errors(place):
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        from sleuth.data.download import RemoteFile

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


def files_below(place: HubPlace) -> list[str]:
    """The paths of a data set's files below `place`, relative to it."""
    with _hub_errors(place):
        from huggingface_hub import HfApi

        files = HfApi().list_repo_files(place.repository, repo_type="dataset", revision=place.revision)
    above = f"{place.path}/" if place.path else ""
    return [file.removeprefix(above) for file in files if file.startswith(above)]


@contextmanager
def _hub_errors(place: HubPlace) -> Iterator[None]:
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
