"""`make gpu`: checks one card in at most eight minutes, prints a table of bars held and missed, and keeps what it found
in `benchmarks/results/gpu-NAME.json`, which is written after each check. The next run at the same commit goes on where
this one was cut or had no time left. Exit status 1: a bar was missed, or a check did not run; 2: there is no card, or
no torch for it."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.gpu.checks import Planned
    from benchmarks.gpu.figures import Kept, Outcome

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MEASURED = ("src", "benchmarks", "recipes", ":!benchmarks/results")
"""What the figures of a check depend on, as paths of git."""
SECONDS = 480
"""All checks of a run together end within this time."""
STOPPING = 5
"""Seconds to print and to write in, of these."""


class Interrupted(Exception):  # noqa: N818 - no error of the check
    """A signal that ends the run; the argument is its number."""


def main() -> int:
    """Runs the checks, each in a process of its own; the exit status."""
    started = time.monotonic()
    options = read_options()
    if options.child:
        end_with_parent(options.folder.parent)
    problem = missing(options.device)
    if problem:
        print(problem, file=sys.stderr)
        return 2
    from benchmarks.gpu.checks import groups

    checks = load_checks(options.checks)
    if options.child:
        return run_child(options, checks)
    if not options.only and options.group not in groups(checks):
        print(f"--group {options.group}: there are {', '.join(map(str, groups(checks)))}", file=sys.stderr)
        return 2
    unknown = [name for name in options.only or () if name not in checks]
    if unknown:
        print(f"--only {unknown[0]}: no check has this name; there are {', '.join(checks)}", file=sys.stderr)
        return 2
    names = options.only or [name for name, planned in checks.items() if planned.group == options.group]
    try:
        return run_checks(names, options, started)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


def load_checks(name: str) -> Mapping[str, Planned]:
    """The table of checks that `module:name` says."""
    module, _, table = name.partition(":")
    return getattr(importlib.import_module(module), table)


def end_with_parent(folder: Path) -> None:
    """Ends this process, and all that it starts, when the process that started it has ended, however that one ended.

    Its end closes the pipe that is our standard input. A process of the same group waits for that, since a thread would
    wait for calls that never return to Python. It also removes `folder`, which nobody else would.
    """
    if os.fork() == 0:
        os.read(0, 1)
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)


def missing(device: str) -> str | None:
    """What this Python lacks for the check, in a line; None if nothing."""
    here = sys.executable
    other = "; name another Python: make PYTHON=/path/to/python3 gpu"
    if sys.version_info < (3, 11):  # noqa: UP036 - make runs whatever python3 is there
        return f"{here} is Python {sys.version_info[0]}.{sys.version_info[1]}, and Sleuth needs 3.11 or newer{other}"
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            return f"{here} has no {package}{other}"
    import torch

    if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < (2, 11):
        return f"{here} has torch {torch.__version__}, and Sleuth needs 2.11 or newer{other}"
    if device == "cuda" and torch.version.cuda is None:
        return f"{here} has torch {torch.__version__}, which was built without CUDA{other}"
    if device == "cuda" and not torch.cuda.is_available():
        return f"torch {torch.__version__} of {here} finds no CUDA device: there is no card to check here"
    return None


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--only", action="append", metavar="CHECK", help="this check, again; may be repeated")
    parser.add_argument("--group", type=int, default=1, metavar="N", help="the checks of this group (1, of most value)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tests the check itself")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes; what a CPU takes")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file that keeps what was found; none with --tiny")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="N", help=f"time for all checks ({SECONDS})")
    parser.add_argument("--checks", default="benchmarks.gpu.checks:CHECKS", help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--ends", type=float, default=math.inf, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_child(options: argparse.Namespace, checks: Mapping[str, Planned]) -> int:
    """Runs one check in this process; its records go to its folder."""
    import torch

    from benchmarks.gpu.checks import Check
    from benchmarks.gpu.scales import REAL, TINY

    check = Check(
        name=options.child,
        device=torch.device("cuda:0" if options.device == "cuda" else "cpu"),
        scale=TINY if options.tiny else REAL,
        folder=options.folder / "files",
        records=options.folder / "records.jsonl",
        ends=options.ends,
    )
    check.folder.mkdir(parents=True)
    return int(not check.run(lambda running: checks[options.child].load()(running)))


def run_checks(names: list[str], options: argparse.Namespace, started: float | None = None) -> int:
    """Runs the checks that the file does not have, one after another, and prints and keeps what they found; the exit
    status. Raises ValueError if the file holds something else."""
    from benchmarks.gpu.figures import Outcome, header, results, rows

    end = (started or time.monotonic()) + options.seconds - STOPPING
    kept, now = file_of(options), facts(options.device)
    done = {} if options.only else kept.done(now)
    limits = {name: check.limit for name, check in load_checks(options.checks).items() if name in names}
    outcomes: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if not options.json:
            print(rows(outcome), flush=True)

    if not options.json:
        print(header(), flush=True)
    for name in filter(done.get, names):
        tell(done[name])
    status = 0
    pending = [name for name in names if name not in done]
    with tempfile.TemporaryDirectory(prefix="sleuth-gpu-") as folder, ended_by_signals():
        try:
            while pending:
                limit = share(limits[pending[0]], sum(limits[name] for name in pending), end - time.monotonic())
                if limit <= 0:
                    break
                name = pending.pop(0)
                print(f"{name}: at most {limit:.0f} s", file=sys.stderr, flush=True)
                outcome = run_check(name, Path(folder) / name, limit, options)
                outcome.facts = now
                kept.add(outcome)
                tell(outcome)
                if outcome.status == "interrupted":
                    raise Interrupted(outcome.signal)
        except Interrupted as signalled:
            status = 128 + signalled.args[0]
    for name in pending:
        why = "the run was ended before it" if status else "no time was left"
        tell(Outcome(check=name, message=f"{why}; the same command goes on with it"))
    found = results(outcomes, kept)
    if options.json:
        print(json.dumps(found))
    else:
        print(summary(found, kept.path, list(done)))
    return status or int(found["missed"] > 0)


def share(limit: float, limits: float, left: float) -> float:
    """The seconds that the next check may take: its limit, and what the run has beyond the `limits` of all that are to
    come; what is left, if that is less."""
    return min(left, limit + max(0.0, left - limits))


def summary(found: dict, out: Path | None, earlier: list[str]) -> str:
    """The last line: `H100: 31 bars held, 2 missed, 402 s; measured before: card; kept in FILE`."""
    before = f"; measured before: {', '.join(earlier)}" if earlier else ""
    where = f"; kept in {out}" if out is not None else ""
    counts = f"{found['held']} bars held, {found['missed']} missed, {found['seconds']:.0f} s"
    return f"{found['card']['name']}: {counts}{before}{where}"


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within this context signals that end a process raise Interrupted."""

    def interrupt(number: int, _: object) -> None:
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_check(name: str, folder: Path, limit: float, options: argparse.Namespace) -> Outcome:
    """The outcome of one check in a new process, which ends, with all that it started, after `limit` seconds."""
    from benchmarks.fresh import QUIET
    from benchmarks.gpu.figures import Figure, Outcome

    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.gpu", "--child", name, "--folder", str(folder)]
    command += ["--device", options.device, *(["--tiny"] if options.tiny else []), "--checks", options.checks]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    started = time.monotonic()
    command += ["--ends", str(started + limit)]
    outcome = Outcome(check=name, status="failed")
    log = folder / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # held open as long as this process lives
            stdout=file,
            stderr=file,
            env=os.environ | QUIET | {"PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=limit)
            outcome.message = f"ended by {signal.Signals(-status).name}" if status < 0 else last_line(log)
        except subprocess.TimeoutExpired:
            outcome.status, outcome.message = "timed out", f"not done after {limit:.0f} s"
        except Interrupted as signalled:
            outcome.status, outcome.signal = "interrupted", signalled.args[0]
            outcome.message = f"the run was ended by {signal.Signals(outcome.signal).name}"
        finally:
            _kill(process)
    outcome.seconds = round(time.monotonic() - started, 1)
    records = folder / "records.jsonl"
    for line in records.read_text().splitlines() if records.exists() else ():
        record = json.loads(line)
        if "figure" in record:
            outcome.figures.append(Figure(**record["figure"]))
        elif "skipped" in record:
            outcome.skipped.append(record["skipped"])
        else:
            ended = record["ended"]
            outcome.peak_memory_bytes = ended["peak_memory_bytes"]
            outcome.status = "failed" if ended["message"] else "done"
            outcome.message = ended["message"] or ""
    if outcome.status != "done":
        print(f"{name}: {outcome.status}\n{log.read_text()[-4000:]}", file=sys.stderr, flush=True)
    return outcome


def last_line(log: Path) -> str:
    """The last line that a process printed."""
    lines = log.read_text().strip().splitlines()
    return lines[-1] if lines else "ended without a word"


def _kill(process: subprocess.Popen) -> None:
    """Ends the process and those that it started, such as compilers."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def file_of(options: argparse.Namespace) -> Kept:
    """The file of this card and scale."""
    import torch

    from benchmarks.gpu.card import describe, file_name, peak_flops
    from benchmarks.gpu.figures import Kept

    card = describe(torch.device(options.device))
    path = options.out
    if path is None and not options.tiny and options.device == "cuda":
        path = RESULTS / f"gpu-{file_name(card['name'])}.json"
    card |= {"peak_flops": peak_flops(card["name"]), "cuda": torch.version.cuda}
    return Kept(path=path, card=card, scale="tiny" if options.tiny else "real")


def facts(device: str) -> dict[str, Any]:
    """When a check was measured, with which versions and driver, where and at which commit."""
    import torch

    from benchmarks.gpu.card import driver
    from benchmarks.machine import machine, versions

    return {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions(),
        "machine": machine(),
        "driver": driver(torch.device(device)),
    }


def commit() -> str:
    """The last commit that changed what is measured, with + and a hash of it if files have changed since; without git
    the hash alone."""
    try:
        name, changed = (
            subprocess.run([*command, *MEASURED], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for command in (("git", "log", "-1", "--format=%h", "--"), ("git", "status", "--porcelain", "--"))
        )
    except (OSError, subprocess.CalledProcessError):
        name, changed = "", "all"
    return f"{name}+{hash_of_source()}" if changed or not name else name


def hash_of_source() -> str:
    """Eight digits that change with the files of the source."""
    digest = hashlib.sha256()
    files = (file for room in ("src", "benchmarks", "recipes") for file in (ROOT / room).rglob("*"))
    for file in sorted(file for file in files if file.suffix in (".py", ".toml") and file.is_file()):
        digest.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:8]


if __name__ == "__main__":
    sys.exit(main())
