"""Small git repositories."""

from __future__ import annotations

import subprocess
from pathlib import Path


def two_branches(folder: Path, name: str, contents: str) -> Path:
    """A clone whose branch `main` is checked out and whose branch `arms` alone has `prompts/NAME`."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "README.md").write_text("Nothing here.\n")
    commit(folder)
    git(folder, "checkout", "--quiet", "-b", "arms")
    (folder / "prompts").mkdir()
    (folder / "prompts" / name).write_text(contents)
    commit(folder)
    git(folder, "checkout", "--quiet", "main")
    return folder


def commit(folder: Path) -> None:
    """Commits everything."""
    git(folder, "add", ".")
    git(folder, "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "--quiet", "-m", "Change")


def git(folder: Path, *arguments: str) -> None:
    """Runs a git command."""
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)
