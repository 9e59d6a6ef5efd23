"""Files of every branch of a git clone, whatever is checked out.

The program `git` reads stored objects. Nothing is checked out, fetched or executed.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sleuth.types import SleuthError

MAX_BRANCHES = 200
"""Limit on branches to search, the latest first."""
SECONDS = 60
"""Timeout of one git command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchFile:
    """A file as `branch` has it. `branch` is None for the commit that is checked out."""

    branch: str | None
    path: str
    contents: bytes


def clone_of(path: Path) -> Path | None:
    """The nearest existing folder of `path` if it is in a git clone, else None. The file may be on another branch, so
    that it and its folder need not exist."""
    folder = next(place for place in (path.absolute(), *path.absolute().parents) if place.is_dir())
    try:
        _git(folder, "rev-parse", "--git-dir")
    except SleuthError:
        return None
    return folder


def files_of_branches(clone: Path, name: str, max_bytes: int) -> Iterator[BranchFile]:
    """Yields the files called `name`, in any folder, of what is checked out and then of the other branches. The same
    contents come once, and larger files than `max_bytes` not at all. Raises SleuthError if git fails."""
    seen: set[str] = set()
    for ref, branch in (("HEAD", None), *_refs_of(clone).items()):
        for blob, path in _blobs(clone, ref, name):
            if blob not in seen and int(_git(clone, "cat-file", "-s", blob)) <= max_bytes:
                yield BranchFile(branch=branch, path=path, contents=_git(clone, "cat-file", "blob", blob))
            seen.add(blob)


def branches_of(clone: Path) -> list[str]:
    """The branches of a clone and of its remotes, the latest first: `main`, `origin/dev`."""
    return list(_refs_of(clone).values())


def _refs_of(clone: Path) -> dict[str, str]:
    """Full name -> branch. Git is asked by full names, as a branch may be called like an option."""
    listed = _git(
        clone,
        *("for-each-ref", "--sort=-committerdate", f"--count={MAX_BRANCHES}"),
        *("--format=%(refname)%00%(refname:short)%00%(symref)", "refs/heads", "refs/remotes"),
    )
    rows = (line.split("\0") for line in listed.decode(errors="replace").splitlines())
    return {ref: branch for ref, branch, symref in rows if not symref}


def _blobs(clone: Path, commit: str, name: str) -> Iterator[tuple[str, str]]:
    """Yields object and path of each file called `name` of a commit; nothing if the clone has no such commit yet."""
    try:
        listed = _git(clone, "ls-tree", "-r", "-z", "--full-tree", commit)
    except SleuthError:
        if commit == "HEAD":  # a new branch without a commit is checked out
            return
        raise
    for row in filter(None, listed.decode(errors="replace").split("\0")):
        facts, path = row.split("\t", 1)
        mode, kind, blob = facts.split()
        if kind == "blob" and mode.startswith("100") and Path(path).name == name:
            yield blob, path


def _git(clone: Path, *arguments: str) -> bytes:
    """The output of a git command on this clone, which may not use the network."""
    outside = {name: value for name, value in os.environ.items() if name != "GIT_DIR"}  # set in git's hooks
    settings = {"GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-C", str(clone), *arguments],
            env=outside | settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
        )
    except FileNotFoundError:
        raise SleuthError(
            f"{clone}: reading the branches of a clone needs the program git; without it, name the file itself"
        ) from None
    except subprocess.TimeoutExpired:
        raise SleuthError(
            f"{clone}: git {arguments[0]} took more than {SECONDS} seconds; name the file itself"
        ) from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().split("\n")[0]
        raise SleuthError(f"{clone}: git {arguments[0]}: {reason}")
    return done.stdout
