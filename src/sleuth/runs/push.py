"""Uploads a checkpoint to the hub, without the state that only resuming needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from sleuth.host.checksums import SUMS, listed_files, of_model, require_intact
from sleuth.host.model_path import loaded_files, require_file
from sleuth.runs.checkpoints import CARD
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from huggingface_hub import HfApi


def require_push(repository: str) -> None:
    """Creates the private model repository `repository` ("owner/name") if it does not exist; called before a run.

    Raises SleuthError if nothing could be uploaded to it."""
    owner, _, name = repository.partition("/")
    if not owner or not name or "/" in name:
        raise SleuthError(f"--push {repository}: should be OWNER/NAME, a model repository on the hub")
    with _hub(repository) as hub:
        hub.create_repo(repository, private=True, exist_ok=True)


def push(checkpoint: Path, repository: str) -> None:
    """Uploads what a checkpoint consists of, with its card and its protocol, and nothing else of its folder. Raises
    SleuthError if it is damaged or the hub refuses it."""
    require_intact(checkpoint, of_model)
    require_file(checkpoint / CARD)
    parts = [*filter(of_model, listed_files(checkpoint) or loaded_files(checkpoint)), SUMS, CARD]
    with _hub(repository) as hub:
        hub.upload_folder(
            repo_id=repository,
            folder_path=checkpoint,
            allow_patterns=[escape(name) for name in parts],
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
