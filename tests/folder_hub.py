"""A folder in the hub's place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest


class FolderHub:
    """A folder that answers as the hub does: `OWNER/NAME/FILE` below it. What was asked for is in `asked`."""

    def __init__(self, folder: Path, cached: bool = False) -> None:
        self.folder = folder
        self.cached = cached
        self.asked: list[tuple[str, str | None, bool]] = []
        self.cards: list[str] = []

    def download(
        self, repository: str, file: str, *, repo_type: str, revision: str | None = None, dry_run: bool = False
    ) -> Any:
        assert repo_type == "dataset"
        if file == "README.md":
            self.cards.append(repository)
        else:
            self.asked.append((file, revision, dry_run))
        path = self.folder / repository / file
        if not path.is_file():
            raise huggingface_hub.errors.LocalEntryNotFoundError(f"no {file}\nin {repository}")
        found = SimpleNamespace(commit_hash="c0ffee", file_size=2_500_000, will_download=not self.cached)
        return found if dry_run else str(path)

    def files(self, repository: str, *, repo_type: str, revision: str | None) -> list[str]:
        assert repo_type == "dataset"
        below = self.folder / repository
        return [str(file.relative_to(below)) for file in sorted(below.rglob("*")) if file.is_file()]

    def put(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In the hub's place."""
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.download)
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(list_repo_files=self.files))
