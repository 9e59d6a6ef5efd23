"""`chain.jsonl`: the size and sha256 of each file of a run, in lines that each follow from the one before.

A line is written before a file changes, without a sha256, and one with it when the file is finished; a kill in between
leaves a file that is accepted as it is. `metrics.jsonl` has a line a row, with the sha256 of all rows up to it, written
before the row. A checkpoint is named by its `SHA256SUMS`. The first line has the id of the run, which its manifest has
too. Only files that a line promises are compared: logs, verdicts and pages have none.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from sleuth.host.atomic import write_text
from sleuth.host.checksums import SUMS, damage, has_checksums, listed_files, unlisted_files
from sleuth.host.model_path import not_a_file
from sleuth.types import SleuthError

CHAIN = "chain.jsonl"
METRICS = "metrics.jsonl"
MANIFEST = "manifest.json"
STEPS = "steps"
"""In `eval`: the evaluations of single steps."""
NAMED = {
    **{"rollouts": r".+\.parquet", "eval": r".+\.json", f"eval/{STEPS}": r".+\.json"},
    **{"checkpoints": r"step-\d{6,}"},
}
"""What is named in each folder of a run."""
READ = ("recipe.toml", MANIFEST, METRICS, CHAIN, "log.txt", "lock", "verdicts.sqlite", "cards.json", "report.html")
WEIGHTS_HASHED = 2**28
"""Bytes of checkpoints that a check reads, the newest first. Of the others it compares sizes; whoever loads a model
verifies all of it."""
_DATA = re.compile(r".+\.(json|jsonl|parquet|toml|txt|sqlite|html|safetensors|pt)|lock|" + SUMS)
_TAIL = 2**14
LOOKS = 5
"""How often files are compared while another process writes them."""

Digest = tuple[int, str]
"""The bytes of a file and their sha256; of a checkpoint, the bytes of its files and the sha256 of its SHA256SUMS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What is wrong with the files of a run: `broken` are files that the run did not write, `lost` those that are
    missing, cut or damaged in a way that a resumed run repairs or goes on without. `rows_end` are the bytes of
    `metrics.jsonl` that the run wrote, where more follow."""

    broken: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    rows_end: int | None = None

    def line(self, folder: Path) -> str | None:
        """All of it in one line; None if nothing is wrong."""
        problems = [*self.broken, *self.lost]
        more = f", and {len(problems) - 1} more such problems" if len(problems) > 1 else ""
        return f"{folder}: {problems[0]}{more}" if problems else None


@dataclass(slots=True)
class _Chain:
    """The contents of a chain: the last digest of each file, or None while it is written or removed."""

    run: str = ""
    files: dict[str, Digest | None] = field(default_factory=dict)
    rows: list[Digest] = field(default_factory=list)  # of metrics.jsonl, since it was rewritten
    saved: int = 0  # how many of `rows` had been named when the last checkpoint was
    last: str = ""
    problem: str | None = None


def step_name(step: int) -> str:
    """`step-000100`: the name of step 100's checkpoint and the stem of its rollout file."""
    return f"step-{step:06d}"


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    return int(checkpoint.name.removeprefix("step-"))


def begin_chain(folder: Path, run: str) -> None:
    """Writes a new chain that names the files of the folder as they are. `run` is the id in its manifest."""
    lines, link = [], ""
    for entry in ({"run": run}, *(_entry(name, _digest(folder / name)) for name in _names_in(folder))):
        link = _link(link, entry)
        lines.append(json.dumps(entry | {"link": link}) + "\n")
    write_text(folder / CHAIN, "".join(lines))


def run_id(folder: Path) -> str:
    """The id of the run that the chain belongs to; empty without a chain."""
    return _read(folder).run if (folder / CHAIN).is_file() else ""


@contextmanager
def recorded(place: Path) -> Iterator[None]:
    """Names a file or checkpoint of a run in its chain when the block has written it. Does nothing elsewhere, and in
    run folders without a chain."""
    forget(place)
    yield
    if (folder := _run_of(place)) is not None:
        _append(folder, _entry(place.relative_to(folder).as_posix(), _digest(place)))


def forget(place: Path) -> None:
    """Removes a file or checkpoint of a run from its chain, before it is written again or removed."""
    if (folder := _run_of(place)) is not None:
        _append(folder, _entry(place.relative_to(folder).as_posix(), None), synced=True)


def record_rows(metrics: Path, size: int, sha256: str) -> None:
    """Names the rows of `metrics.jsonl` up to one that is about to be written."""
    if (folder := _run_of(metrics)) is not None:
        _append(folder, _entry(metrics.name, (size, sha256)))


def check(folder: Path) -> Findings:
    """Compares the files of a run with its chain; nothing is wrong without one. Another process may write the run."""
    require_regular(folder)
    chain, findings = folder / CHAIN, Findings()
    for _ in range(LOOKS if chain.exists() else 0):
        size = chain.stat().st_size
        findings = _check(folder)
        if not findings.line(folder) or size == chain.stat().st_size:
            break
    return findings


def require_unbroken(folder: Path) -> Findings:
    """`check`, as a run needs it to continue. Raises SleuthError if a file is not what the run wrote."""
    findings = check(folder)
    if findings.broken:
        broken = Findings(broken=findings.broken)
        raise SleuthError(
            f"{broken.line(folder)}; put back what the run wrote, or remove {CHAIN} from the folder if the change is "
            "meant: its files are then accepted as they are"
        )
    return findings


def settle(folder: Path, findings: Findings) -> None:
    """Makes the chain agree with what `check` accepted, before the run continues."""
    files = _read(folder).files
    if files.get(METRICS) and (folder / METRICS).exists():
        content = (folder / METRICS).read_bytes()
        end = content.rfind(b"\n") + 1 if findings.rows_end is None else findings.rows_end
        os.truncate(folder / METRICS, end)
        if (end, sha256 := hashlib.sha256(content[:end]).hexdigest()) != files[METRICS]:
            _append(folder, _entry(METRICS, (end, sha256)))
    for name, digest in files.items():
        if (digest is None) == (folder / name).exists():
            _append(folder, _entry(name, _digest(folder / name) if digest is None else None))


def warning(folder: Path) -> str | None:
    """The line that `report` and `compare` print first: what is wrong with the files of a run, or that it has no chain;
    None for a run that is as it was written, and for a folder that holds none."""
    if not (folder / "recipe.toml").exists():
        return None
    line = check(folder).line(folder)
    if line is None and not (folder / CHAIN).exists():
        return f"note: {folder} has no {CHAIN}, as runs of earlier versions: changed files would go unnoticed"
    return line and f"warning: {line}"


def require_regular(folder: Path) -> None:
    """Raises SleuthError if something else is in place of a file of the run, which would be waited for, or never end:
    a FIFO, a socket, a device, a circle of links, a folder."""
    places = [folder / name for name in (*READ, *NAMED)]
    for name in NAMED:
        places += [Path(root) / one for root, inner, files in os.walk(folder / name) for one in (*inner, *files)]
    for place in places:
        try:
            if place.parent == folder and place.name in NAMED:
                wrong = (
                    os.path.lexists(place) and not place.is_dir() and f"{not_a_file(place) or 'a file'}, not a folder"
                )
            else:
                wrong = (not place.is_dir() or _DATA.fullmatch(place.name)) and not_a_file(place)
        except OSError as error:
            raise SleuthError(f"{place}: cannot be read: {error.strerror}") from None
        if wrong:
            raise SleuthError(f"{place}: is {wrong}; put back what the run wrote")


def _check(folder: Path) -> Findings:
    chain = _read(folder)
    if (problem := chain.problem or _foreign(folder / MANIFEST, chain.run)) is not None:
        return Findings(broken=[problem])
    broken, lost, rows_end, budget = list[str](), list[str](), None, WEIGHTS_HASHED
    missing: defaultdict[str, list[str]] = defaultdict(list)
    names = _names_in(folder)
    for name in sorted({*chain.files, *names}, reverse=True):  # the newest checkpoint first
        place, digest = folder / name, chain.files.get(name)
        if name not in chain.files:
            broken.append(f"{name} is not of this run: {CHAIN} does not name it")
        elif digest is None:
            continue
        elif name not in names:
            missing[str(Path(name).parent)].append(name)
        elif name == METRICS:
            rows = _compare_rows(place, chain)
            broken, lost, rows_end = [*broken, *rows.broken], [*lost, *rows.lost], rows.rows_end
        else:
            if place.is_dir():
                compared = _compare_checkpoint(place, digest, read=digest[0] <= budget)
                budget -= digest[0]
            else:
                compared = _compare(place, digest)
            if compared is not None:
                (lost if compared[1] else broken).append(f"{name} {compared[0]}")
    for inner, gone in missing.items():
        at = f" in {inner}" if inner != "." else ""
        several = f"{len(gone)} files{at} are missing: {min(gone)}, ..."
        lost.append(f"{gone[0]} is missing" if len(gone) == 1 else several)
    return Findings(broken=broken[::-1], lost=lost[::-1], rows_end=rows_end)


Problem = tuple[str, bool] | None
"""What is wrong with a file, and whether a resumed run repairs it."""


def _compare(file: Path, digest: Digest) -> Problem:
    try:
        if (size := file.stat().st_size) != digest[0]:
            problem = f"is not what the run wrote: it has {size:,} bytes, and had {digest[0]:,}"
        elif _digest(file) == digest:
            return None
        else:
            problem = f"is not what the run wrote, by its sha256 in {CHAIN}"
        return problem, file.parent.name in ("eval", STEPS) and not is_object(file)  # measured again
    except OSError as error:
        return f"cannot be read: {error.strerror}", file.parent.name in ("eval", STEPS)


def _compare_checkpoint(place: Path, digest: Digest, *, read: bool) -> Problem:
    """Damage is repaired, another content is not."""
    try:
        if not has_checksums(place):
            return (f"has no {SUMS} any more: damage would go unnoticed", True) if digest[1] else None
        size, sums = _digest(place) or (0, "")
        if sums == digest[1] and (extra := unlisted_files(place)):
            return f"has {extra[0]}, which the run did not write", False
        if (size, sums) == digest and not read:
            return None
        if (problem := damage(place)) is not None:
            return f"is damaged: {problem}", True
    except OSError as error:
        return f"cannot be read: {error.strerror}", True
    if sums != digest[1]:
        return f"is not the checkpoint that the run wrote, by its {SUMS}", False
    return None if size == digest[0] else (f"has files of {size:,} bytes, and had {digest[0]:,}", False)


def _compare_rows(file: Path, chain: _Chain) -> Findings:
    """What is wrong with `metrics.jsonl`. Rows after the last save may be lost: the run computes them again."""
    try:
        content = file.read_bytes()
    except OSError as error:
        return Findings(broken=[f"{METRICS} cannot be read: {error.strerror}"])
    whole, content = len(content), content[: content.rfind(b"\n") + 1]
    hashed, at = hashlib.sha256(), 0
    for number, (size, sha256) in enumerate(chain.rows):
        lacking = len(chain.rows) - number
        if size > len(content):
            if len(content) != at or number < chain.saved:
                has = f"it has {len(content):,} bytes in whole lines, and had {chain.rows[-1][0]:,} bytes"
                return Findings(broken=[f"{METRICS} is not what the run wrote: {has}"])
            before_row = lacking == 1 and chain.last == METRICS  # when a kill came
            return Findings(lost=[] if before_row else [f"{METRICS} lacks {lacking} rows after the last save"])
        hashed.update(content[at:size])
        at = size
        if hashed.hexdigest() != sha256:
            line = content[:size].count(b"\n")
            changed = f"line {line} or one before it was changed"
            return Findings(broken=[f"{METRICS} is not what the run wrote: {changed}"])
    if whole == at:
        return Findings()
    rows = content[at:].count(b"\n")
    more = f"{rows} rows" if rows else "part of a row"
    return Findings(lost=[f"{METRICS} has {more} at its end that the run did not write"], rows_end=at)


def _foreign(manifest: Path, run: str) -> str | None:
    try:
        named = json.loads(manifest.read_bytes())["run"]
    except (OSError, ValueError, RecursionError, LookupError, TypeError):  # its sha256 says what is wrong
        return None
    return None if named == run else f"{CHAIN} is of another run than {MANIFEST}: {run[:8]}, not {str(named)[:8]}"


def is_object(file: Path) -> bool:
    """Whether a file holds a JSON object. Raises OSError if it cannot be read: what it holds is not known then."""
    try:
        return isinstance(json.loads(file.read_bytes()), dict)
    except (ValueError, RecursionError):
        return False


def _names_in(folder: Path) -> list[str]:
    """The files and checkpoints of a run folder that a chain names."""
    names = [name for name in ("recipe.toml", MANIFEST, METRICS) if (folder / name).exists()]
    for name, pattern in NAMED.items():
        if (folder / name).is_dir():
            inner = sorted(place.name for place in (folder / name).iterdir() if re.fullmatch(pattern, place.name))
            names += [f"{name}/{one}" for one in inner]
    return names


def _run_of(place: Path) -> Path | None:
    return next((folder for folder in [*place.parents][:3] if (folder / CHAIN).is_file()), None)


def _digest(place: Path) -> Digest | None:
    """The digest of what is there; None if it is missing."""
    if place.is_dir():
        sums = _digest(place / SUMS)
        return sum(file.stat().st_size for file in _files_of(place)), sums[1] if sums else ""
    try:
        with open(place, "rb") as file:
            return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def _files_of(checkpoint: Path) -> list[Path]:
    """The files that its list names, or all but the card where it has none: notes may lie beside those of a run."""
    try:
        files = [checkpoint / name for name in listed_files(checkpoint)]
    except SleuthError:  # a damaged list
        files = []
    every = files if has_checksums(checkpoint) else checkpoint.rglob("*")
    return [file for file in every if file.is_file() and file.name != "README.md"]


def _entry(name: str, digest: Digest | None) -> dict[str, Any]:
    size, sha256 = digest or (None, None)
    return {"file": name, "bytes": size, "sha256": sha256}


def _link(before: str, entry: dict[str, Any]) -> str:
    return hashlib.sha256((before + json.dumps(entry)).encode()).hexdigest()[:32]


def _append(folder: Path, entry: dict[str, Any], *, synced: bool = False) -> None:
    with open(folder / CHAIN, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # `sleuth eval` may write into the folder of a run that trains
        end, link = _end(file)
        file.truncate(end)  # removes a line that a kill cut off
        file.seek(end)
        try:
            file.write(json.dumps(entry | {"link": _link(link, entry)}).encode() + b"\n")
            file.flush()
        except OSError:  # the disk is full
            os.truncate(folder / CHAIN, end)
            raise
        if synced:
            os.fsync(file.fileno())


def _end(file: BinaryIO) -> tuple[int, str]:
    """Where the last whole line ends, and its link."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    tail = file.read()
    whole = tail[: tail.rfind(b"\n") + 1]
    try:
        link = str(json.loads(whole.splitlines()[-1])["link"])
    except (ValueError, LookupError, TypeError):  # the chain is broken, and stays so
        link = ""
    return size - len(tail) + len(whole), link


def _read(folder: Path) -> _Chain:
    chain, link = _Chain(), ""
    try:
        content = (folder / CHAIN).read_bytes()
    except OSError as error:
        return _Chain(problem=f"{CHAIN} cannot be read: {error.strerror}")
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            link, claimed = _link(link, {key: entry[key] for key in entry if key != "link"}), entry["link"]
            if link != claimed:
                raise ValueError
            if number == 1:
                chain.run = entry["run"]
            else:
                _take(chain, entry["file"], None if entry["sha256"] is None else (entry["bytes"], entry["sha256"]))
        except (ValueError, LookupError, TypeError, RecursionError):
            chain.problem = f"{CHAIN} is damaged: line {number} does not follow from the one before"
            return chain
    if not chain.run:
        chain.problem = f"{CHAIN} is damaged: it has no whole line"
    return chain


def _take(chain: _Chain, name: str, digest: Digest | None) -> None:
    rewritten = name in chain.files and chain.files[name] is None
    chain.files[name], chain.last = digest, name
    if name == METRICS:
        if digest is None:
            chain.rows, chain.saved = [], 0
        else:
            while chain.rows and chain.rows[-1][0] >= digest[0]:  # rows that were not written after all
                chain.rows.pop()
            chain.saved = min(chain.saved, len(chain.rows))
            chain.rows.append(digest)
            chain.saved += rewritten
    elif name.startswith("checkpoints/") and digest is not None:
        chain.saved = len(chain.rows)
