"""`python -m benchmarks.killed`: runs of four recipes, killed (SIGKILL) at random moments and inside saves.

Each recipe is run once without a kill. Then it is killed and started again, a few times a run, until it was killed as
often as asked. Every other kill is aimed: at a fraction of an evaluation, a save or a hand-over of weights to a server,
whichever was hit least. What a kill fell into is read afterwards, from the notes that the run wrote when it entered and
left these; a kill that came too late counts as one anywhere. In the end the files of the run are compared with those of
the run without kills: checkpoints, rollouts, evaluations, and figures other than seconds.

`--only server` is a run whose episodes a server writes (an emulated vLLM), with kills in hand-overs of weights. Its
bytes are not promised: the last bits of a log-probability depend on which request reached the server first, and two
runs without kills differ in these. Compared is what is promised: the same files, every episode once and with the same
tokens, the same answers and counts, and figures, log-probabilities and weights that agree up to `TOLERANCE`.
"""

from __future__ import annotations

import argparse
import functools
import gc
import io
import json
import math
import operator
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import safetensors
import safetensors.torch
from pyarrow import parquet
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.ranks_killed import written
from benchmarks.tiny_run import BASE

HEAD = 'name = "killed"\nmodel = "{base}"\nseed = 4\n'
TRAINED = """
[[stage]]
kind = "grpo"
steps = 3
prompts_per_step = 2
samples_per_prompt = 4
learning_rate = 1e-3
context = {context}
save_every = 1
keep = 2
probe_prompts = 2
"""
ASKED = """
[[stage]]
kind = "evaluate"
name = "{name}"
data = {{ questions = "{questions}", limit = 4 }}
"""
SEARCH = """
data = {{ questions = "{world}/qa_train.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", index = "{world}/index", turn_tokens = 20 }}
reward = [{{ kind = "answer" }}, {{ kind = "format", weight = 0.2 }}]
"""
REFINE = """
data = {{ questions = "{world}/refiner_train.jsonl" }}
env = {{ kind = "refine", prompt = "bare", turn_tokens = 24 }}
reward = [{{ kind = "citation" }}, {{ kind = "format", weight = 0.1 }}]
"""
THINK = """
data = {{ kind = "places", texts = "{world}/text_train.jsonl", part = "rl", suffix_tokens = 8, limit = 20 }}
env = {{ kind = "thought", thought_tokens = 16 }}
reward = [{{ kind = "gain", clip = 5.0 }}]
loss = {{ setting = "dr_grpo", constant = 16, old_logprobs = "learner" }}
"""
STAGES = {
    "search": (400, SEARCH, "qa_test.jsonl"),
    "refiner": (1024, REFINE, "refiner_test.jsonl"),
    "thinking": (400, THINK, None),
}
"""The context of each recipe, the rest of its stage, and the questions of its evaluations."""
RUNS = {"search": "search", "refiner": "refiner", "thinking": "thinking", "two ranks": "search", "server": "search"}
"""The recipe of each row."""
HEAVY = ("transformers.models.qwen3.modeling_qwen3", "sleuth.learn.shards", "sleuth.cli.pipeline", "pandas", "peft")
TOLERANCE = 1e-4
"""Of figures and log-probabilities of runs on a server, absolute or relative."""
WEIGHT_TOLERANCE = 1e-3
"""Of their weights: the learning rate. A gradient near 0 may have either sign in its last bit, and an optimiser that
divides by its size then steps the other way."""
INSIDES = ("evaluation", "save", "hand-over")
TIMEOUT = 600.0
LOOK = 0.0005


@dataclass(kw_only=True)
class Killed:
    """A row: the kills by what they fell into, and the files that differ in the end."""

    inside: Counter[str] = field(default_factory=Counter)
    partial: int = 0
    """Kills that left a folder or file half written."""
    runs: int = 0
    files: int = 0
    differ: set[str] = field(default_factory=set)

    @property
    def kills(self) -> int:
        return self.inside.total()


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Starts a recipe as `world` processes, with options of `sleuth train`."""

    recipe: Path
    world: int = 1
    options: tuple[str, ...] = ()
    exact: bool = True
    """Whether every byte has to be equal; see the module's docstring."""

    @contextmanager
    def started(self, folder: Path) -> Iterator[list[int]]:
        """The process ids; they are killed in the end if they still run."""
        arguments = ("train", str(self.recipe), "--run", str(folder), "--quiet", *self.options)
        port = _free_port()
        pids = [
            _fork(functools.partial(_train, arguments, rank, self.world, port, folder)) for rank in range(self.world)
        ]
        try:
            yield pids
        finally:
            for pid in pids:
                _end(pid)

    def finish(self, folder: Path) -> float:
        """The seconds that the run took to its end after it had opened its folder."""
        with self.started(folder) as pids:
            _until(lambda: (folder / "manifest.json").exists() or not all(map(_alive, pids)))
            began = time.monotonic()
            _until(lambda: not any(map(_alive, pids)))
            status = [_STATUS[pid] for pid in pids]
        if any(status):
            raise RuntimeError(f"the run did not end well:\n{_said(folder).read_text()[-2000:]}")
        return time.monotonic() - began

    def kill(self, folder: Path, due: Callable[[Path], bool], late: float, rank: int) -> bool:
        """Kills one process `late` seconds after `due`, and the others with it; whether it still ran."""
        with self.started(folder) as pids:
            _until(lambda: due(folder) or not all(map(_alive, pids)))
            time.sleep(late)
            running = all(map(_alive, pids))
            _end(pids[rank])
        return running


def main() -> int:
    """Print a table, or one JSON object; exit status 0 if all bytes are equal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.killed", description=__doc__)
    parser.add_argument("--kills", type=int, default=60, help="of all recipes together (60)")
    parser.add_argument("--a-run", type=int, default=3, help="kills of one run before it may end (3)")
    parser.add_argument("--only", choices=RUNS, action="append", help="one of them alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    chosen = options.only or [row for row in RUNS if row != "server"]
    found: dict[str, Killed] = {}
    with tempfile.TemporaryDirectory(prefix="sleuth-bench-") as name:
        recipes = write_recipes(Path(name))
        for number, row in enumerate(chosen):
            kills = options.kills * (number + 1) // len(chosen) - options.kills * number // len(chosen)
            with runner_of(row, recipes, Path(name)) as runner:
                place = Path(name) / row.replace(" ", "-")
                found[row] = survived(runner, place, kills, options.a_run, options.seed)
    if options.json:
        print(json.dumps({row: {**vars(one), "differ": sorted(one.differ)} for row, one in found.items()}))
    else:
        show(found)
    return int(any(one.differ for one in found.values()))


def write_recipes(folder: Path) -> dict[str, Path]:
    """The recipes by name, in a world of 200 people. A process of its own makes the world: threads are not forked."""
    world = folder / "world"
    _await(_fork(functools.partial(_write_world, world)))
    recipes = {}
    for name, (context, stage, questions) in STAGES.items():
        text = HEAD.format(base=BASE)
        trained = (TRAINED + stage.lstrip()).format(context=context, world=world)
        asked = [ASKED.format(name=at, questions=world / questions) if questions else "" for at in ("base", "trained")]
        recipes[name] = folder / f"{name}.toml"
        recipes[name].write_text(text + asked[0] + trained + asked[1])
    return recipes


@contextmanager
def runner_of(row: str, recipes: dict[str, Path], folder: Path) -> Iterator[Runner]:
    """The row's processes, with a server that emulates vLLM if it has one."""
    recipe = recipes[RUNS[row]]
    if row != "server":
        yield Runner(recipe=recipe, world=2 if row == "two ranks" else 1)
        return
    from benchmarks.served import emulated

    with emulated("vllm", BASE, "--slots", "1", context=400) as (url, _):
        yield Runner(recipe=recipe, options=("--set", f'stage.1.engine={{ urls = ["{url}"] }}'), exact=False)


def survived(runner: Runner, place: Path, kills: int, a_run: int, seed: int) -> Killed:
    """Kills runs until they were killed so often, and compares each with the run without kills."""
    draw, found = random.Random(seed), Killed()
    lasted = runner.finish(place / "whole")
    spans, expected = spans_in(place / "whole"), outcome(place / "whole")
    found.files = len(expected)
    print(f"{place.name}: {lasted:.1f} s, {spans}", file=sys.stderr)
    while found.kills < kills:
        found.runs += 1
        folder = place / f"killed-{found.runs}"
        for _ in range(min(a_run, kills - found.kills)):
            if not _kill_somewhere(runner, folder, found, spans, lasted, draw):
                break  # it was through before
        runner.finish(folder)
        actual = outcome(folder)
        same = operator.eq if runner.exact else alike
        differ = {
            name
            for name in expected | actual
            if name not in expected or name not in actual or not same(expected[name], actual[name])
        }
        found.differ |= {f"{folder.name}/{name}" for name in differ}
        print(f"{place.name}: {found.kills} of {kills} kills: {dict(found.inside)}", file=sys.stderr, flush=True)
    return found


def _kill_somewhere(
    runner: Runner,
    folder: Path,
    found: Killed,
    spans: dict[str, list[float]],
    lasted: float,
    draw: random.Random,
) -> bool:
    """One kill, aimed every other time; whether it came before the end."""
    _notes(folder).unlink(missing_ok=True)  # of the process before
    rank = draw.randrange(runner.world)
    if found.kills % 2 and spans:
        aim = min(spans, key=lambda inside: (found.inside[inside], inside))
        at = draw.randrange(len(spans[aim]))
        due, late = functools.partial(_entered, inside=aim, times=at + 1), draw.uniform(0, spans[aim][at])
    else:
        due, late = (lambda folder: (folder / "manifest.json").exists()), draw.uniform(0, lasted)
    if not runner.kill(folder, due, late, rank):
        return False
    found.inside[inside_of(folder) or "anywhere"] += 1
    found.partial += any(folder.rglob("*.partial"))
    return True


def outcome(folder: Path) -> dict[str, bytes]:
    """The files that must be the same: the outputs of training, and every evaluation, but for the folder's name."""
    evaluations = {f"eval/{file.name}": file.read_bytes() for file in (folder / "eval").glob("*.json")}
    return written(folder) | {name: text.replace(bytes(folder), b"RUN") for name, text in evaluations.items()}


def alike(one: bytes, other: bytes) -> bool:
    """Whether two files of runs on a server say the same: tokens and words equal, numbers up to `TOLERANCE`. Of files
    that are neither weights, tables nor JSON (optimiser states and checksums) it is enough that both are there."""
    if one == other:
        return True
    if one.startswith(b"PAR1"):
        return _close(
            *(parquet.read_table(io.BytesIO(content), use_threads=False).to_pylist() for content in (one, other))
        )
    try:
        weights = [safetensors.torch.load(content) for content in (one, other)]
    except safetensors.SafetensorError:
        try:
            return _close(json.loads(one), json.loads(other))
        except ValueError:
            return True
    return weights[0].keys() == weights[1].keys() and all(
        (weight - weights[1][name]).abs().max().item() <= WEIGHT_TOLERANCE for name, weight in weights[0].items()
    )


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_close(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_close, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return one == other


# -- notes of a run on what it is doing -------------------------------------------------------------------------------


def spans_in(folder: Path) -> dict[str, list[float]]:
    """How many seconds the run spent in each evaluation, save and hand-over, in order."""
    began: dict[str, float] = {}
    spans: dict[str, list[float]] = {}
    for mark, inside, moment in _read_notes(folder):
        if mark == "+":
            began[inside] = moment
        else:
            spans.setdefault(inside, []).append(moment - began[inside])
    return spans


def inside_of(folder: Path) -> str | None:
    """What the run had entered and not left when it was killed."""
    entered = [""]
    for mark, inside, _ in _read_notes(folder):
        if mark == "+":
            entered.append(inside)
        else:
            entered.pop()
    return entered[-1] or None


def _entered(folder: Path, *, inside: str, times: int) -> bool:
    return sum(mark == "+" and name == inside for mark, name, _ in _read_notes(folder)) >= times


def _read_notes(folder: Path) -> list[tuple[str, str, float]]:
    """(+ or -, what, moment) of each note that is complete."""
    notes = _notes(folder)
    lines = notes.read_text().splitlines(keepends=True) if notes.exists() else []
    told = [line.split() for line in lines if line.endswith("\n")]
    return [(mark, inside, float(moment)) for mark, inside, moment in told]


def _notes(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.notes")


def _said(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.txt")


def _noting(work: Callable[..., Any], inside: str, notes: int) -> Callable[..., Any]:
    """`work`, with a note before and after it."""

    @functools.wraps(work)
    def noted(*arguments: Any, **named: Any) -> Any:
        os.write(notes, f"+ {inside} {time.monotonic()}\n".encode())
        try:
            return work(*arguments, **named)
        finally:
            os.write(notes, f"- {inside} {time.monotonic()}\n".encode())

    return noted


# -- processes --------------------------------------------------------------------------------------------------------

_STATUS: dict[int, int] = {}
"""Exit status of each process that has ended."""


def _fork(work: Callable[[], object]) -> int:
    """A process that does this and ends. Everything heavy is imported before, once; this process starts no threads."""
    _preload()
    pid = os.fork()
    return pid or _child(work)


def _child(work: Callable[[], object]) -> NoReturn:
    status = 1
    try:
        work()
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # pyright: ignore
    finally:
        os._exit(status)


@functools.cache
def _preload() -> None:
    """As tests/preloaded.py does for the processes of tests."""
    from sleuth.host.threads import prepare_waiting

    prepare_waiting()
    for name in HEAVY:
        import_module(name)
    import numpy as np

    from sleuth.kernels.compiled import greatest

    greatest(np.zeros(1, dtype=np.float32))  # a loop that starts no threads: numba prepares what all its loops need
    gc.freeze()


def _write_world(world: Path) -> None:
    from sleuth.retrieval.bm25 import build_index
    from sleuth.world.write_world import write_world

    write_world(world, seed=0, people=200)
    build_index(world / "corpus.jsonl", world / "index")


def _train(arguments: Sequence[str], rank: int, world: int, port: int, folder: Path) -> None:
    """`sleuth` with these arguments as one of the ranks; the first one notes what it is doing."""
    folder.parent.mkdir(exist_ok=True)
    said = os.open(_said(folder), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(said, stream)
    if world > 1:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()})
    from sleuth.cli import main as sleuth
    from sleuth.engines.remote.pool import PoolEngine
    from sleuth.evaluation.eval_session import EvalSession
    from sleuth.runs.stage_checkpoints import StageCheckpoints
    from sleuth.training.rollout_worker import RolloutWorker

    sys.argv = ["sleuth", *arguments]
    with ExitStack() as noted:
        if rank == 0:
            notes = os.open(_notes(folder), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            methods = (
                *((EvalSession, "ask", "evaluation"), (RolloutWorker, "probe", "evaluation")),
                *((StageCheckpoints, "save", "save"), (PoolEngine, "publish", "hand-over")),
            )
            for owner, name, inside in methods:
                noted.enter_context(patch.object(owner, name, _noting(getattr(owner, name), inside, notes)))
        sleuth()


def _until(true: Callable[[], bool]) -> None:
    due = time.monotonic() + TIMEOUT
    while not true():
        if time.monotonic() > due:
            raise RuntimeError(f"nothing happened within {TIMEOUT:.0f} s")
        time.sleep(LOOK)


def _alive(pid: int) -> bool:
    if pid not in _STATUS:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _STATUS[pid] = os.waitstatus_to_exitcode(status)
    return pid not in _STATUS


def _await(pid: int) -> None:
    _until(lambda: not _alive(pid))
    if _STATUS[pid]:
        raise RuntimeError(f"a process ended with {_STATUS[pid]}")


def _end(pid: int) -> None:
    """Kills a process that still runs, and waits until it is gone."""
    if _alive(pid):
        os.kill(pid, signal.SIGKILL)
        _until(lambda: not _alive(pid))


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def show(found: dict[str, Killed]) -> None:
    """A row for each recipe, and one of all."""
    columns = ("recipe", "kills", *(f"in {inside}s" for inside in INSIDES), "elsewhere", "left half-written", "runs")
    table = Table(*columns, "files", "differ", box=box.SIMPLE_HEAD)
    for row, one in found.items():
        fell = [one.inside[inside] for inside in (*INSIDES, "anywhere")]
        table.add_row(row, *map(str, (one.kills, *fell, one.partial, one.runs, one.files, len(one.differ))))
    total = sum((one.inside for one in found.values()), Counter())
    fell = [total[inside] for inside in (*INSIDES, "anywhere")]
    table.add_row("all", *map(str, (total.total(), *fell, sum(one.partial for one in found.values()))))
    console = Console()
    console.print(table)
    for name in sorted({name for one in found.values() for name in one.differ}):
        console.print(f"differs: {name}")


if __name__ == "__main__":
    sys.exit(main())
