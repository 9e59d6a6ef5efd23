"""Uploads a checkpoint to the hub, without the state that only resuming needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sleuth.types import SleuthError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

NOT_UPLOADED = ["state/*"]
"""Optimiser state and counters: several times the size of the weights, and of no use to others."""


def require_push(repository: str) -> None:
    """Creates the private model repository `repository` ("owner/name") if it does not exist; called before a run.

    Raises SleuthError if nothing could be uploaded to it."""
    owner, _, name = repository.partition("/")
    if not owner or not name or "/" in name:
        raise SleuthError(f"--push {repository}: should be OWNER/NAME, a model repository on the hub")
    with _hub(repository) as hub:
        hub.create_repo(repository, private=True, exist_ok=True)


def push(checkpoint: Path, repository: str) -> None:
    """Uploads a checkpoint with its card and its protocol. Raises SleuthError if the hub refuses it."""
    with _hub(repository) as hub:
        hub.upload_folder(
            repo_id=repository,
            folder_path=checkpoint,
            ignore_patterns=NOT_UPLOADED,
            commit_message=f"Sleuth checkpoint {checkpoint.name}",
        )


@contextmanager
def _hub(repository: str) -> Iterator[HfApi]:
    """The hub's client. Its errors become one line: not logged in, hub not reachable, or upload refused."""
    from huggingface_hub import HfApi

    try:
        yield HfApi()
    except Exception as error:  # errors of the hub and of its HTTP client, which differ by version
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise SleuthError(
            f"--push {repository}: the upload failed: {reason}; `hf auth login` logs in, and the same command "
            "with --push uploads the checkpoint later without training again"
        ) from error
