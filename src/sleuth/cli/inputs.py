"""The file that a verb will write, looked at before the work."""

from __future__ import annotations

from pathlib import Path

from sleuth.types import SleuthError


def require_file(out: Path) -> None:
    """Make the folder of `--out`, now and not after an hour of answers. Raises SleuthError where no file can be."""
    if out.is_dir():
        raise SleuthError(f"--out {out}: a folder; name a file, such as {out / 'eval.json'}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise SleuthError(f"--out {out}: {error.filename} is no folder; name another place") from None
