"""`make gpu`: checks one card in at most eight minutes, prints a table of bars held and missed, and writes
`benchmarks/results/gpu-NAME.json`. Exit status 1: a bar was missed; 2: there is no card, or no torch
for it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
SECONDS = 480
"""All checks together end within this time."""
STOPPING = 5
"""Seconds to print and to write in, of these."""


def main() -> int:
    """Runs the checks, each in a process of its own; the exit status."""
    options = read_options()
    problem = missing(options.device)
    if problem:
        print(problem, file=sys.stderr)
        return 2
    if options.child:
        return run_child(options)
    from benchmarks.gpu.checks import CHECKS

    chosen = options.only or list(CHECKS)
    unknown = [name for name in chosen if name not in CHECKS]
    if unknown:
        print(f"--only {unknown[0]}: no check has this name; there are {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    return run_checks(chosen, options)


def missing(device: str) -> str | None:
    """What this Python lacks for the check, in a line; None if nothing."""
    here = sys.executable
    other = "; name another Python: make PYTHON=/path/to/python3 gpu"
    if sys.version_info < (3, 11):  # noqa: UP036 - make runs whatever python3 is there
        return f"{here} is Python {sys.version_info[0]}.{sys.version_info[1]}, and Sleuth needs 3.11 or newer{other}"
    for package in ("torch", "transformers", "pydantic", "jinja2"):
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
    parser.add_argument("--only", action="append", metavar="CHECK", help="this check alone; may be repeated")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tests the check itself")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes; what a CPU takes")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the JSON goes; with --only or --tiny, nowhere")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="N", help=f"time for all checks ({SECONDS})")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_child(options: argparse.Namespace) -> int:
    """Runs one check in this process; its records go to its folder."""
    import torch

    from benchmarks.gpu.checks import CHECKS, Check
    from benchmarks.gpu.scales import REAL, TINY

    check = Check(
        name=options.child,
        device=torch.device("cuda:0" if options.device == "cuda" else "cpu"),
        scale=TINY if options.tiny else REAL,
        folder=options.folder / "files",
        records=options.folder / "records.jsonl",
    )
    check.folder.mkdir(parents=True)
    return int(not check.run(lambda running: CHECKS[options.child].load()(running)))


def run_checks(names: list[str], options: argparse.Namespace) -> int:
    """Runs the checks one after another, prints and writes what they found; the exit status."""
    from benchmarks.gpu.checks import CHECKS
    from benchmarks.gpu.figures import Outcome, results, table

    end = time.monotonic() + options.seconds - STOPPING
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="sleuth-gpu-") as folder:
        for name in names:
            limit = min(CHECKS[name].limit, end - time.monotonic())
            print(f"{name}: at most {max(0, limit):.0f} s", file=sys.stderr, flush=True)
            outcome = Outcome(check=name, message="no time was left")
            if limit > 0:
                outcome = run_check(name, Path(folder) / name, limit, options)
            outcomes.append(outcome)
    found = results(outcomes, facts(options))
    out = options.out
    if out is None and not options.only and not options.tiny and options.device == "cuda":
        out = RESULTS / f"gpu-{found['card']['file_name']}.json"
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found, indent=2) + "\n")
    if options.json:
        print(json.dumps(found))
    else:
        print(table(outcomes))
        print(summary(found, out))
    return int(found["missed"] > 0)


def summary(found: dict, out: Path | None) -> str:
    """The last line: `H100: 31 bars held, 2 missed, 402 s; written to FILE`."""
    where = f"; written to {out}" if out is not None else ""
    return (
        f"{found['card']['name']}: {found['held']} bars held, {found['missed']} missed, {found['seconds']:.0f} s{where}"
    )


def run_check(name: str, folder: Path, limit: float, options: argparse.Namespace):
    """The outcome of one check in a new process, which ends, with all that it started, after `limit` seconds."""
    from benchmarks.fresh import QUIET
    from benchmarks.gpu.figures import Figure, Outcome

    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.gpu", "--child", name, "--folder", str(folder)]
    command += ["--device", options.device, *(["--tiny"] if options.tiny else [])]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    started = time.monotonic()
    outcome = Outcome(check=name, status="failed")
    log = folder / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=os.environ | QUIET | {"PYTHONPATH": path}, start_new_session=True
        )
        try:
            status = process.wait(timeout=limit)
            outcome.message = f"ended by {signal.Signals(-status).name}" if status < 0 else last_line(log)
        except subprocess.TimeoutExpired:
            outcome.status, outcome.message = "timed out", f"not done after {limit:.0f} s"
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


def facts(options: argparse.Namespace) -> dict:
    """What was measured, where, with which versions and at which commit."""
    import torch

    from benchmarks.gpu.card import describe, file_name, peak_flops
    from benchmarks.machine import machine, versions

    card = describe(torch.device(options.device))
    peak = peak_flops(card["name"])
    return {
        "card": card | {"file_name": file_name(card["name"]), "peak_flops": peak, "cuda": torch.version.cuda},
        "scale": "tiny" if options.tiny else "real",
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "versions": versions(),
        "machine": machine(),
    }


def commit() -> str | None:
    """The commit of this checkout, with a + if files have changed; None without git."""
    try:
        name, changed = (
            subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for arguments in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return name + ("+" if changed else "")


if __name__ == "__main__":
    sys.exit(main())
