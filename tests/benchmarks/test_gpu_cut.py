"""The self-check of a card when it is cut: what is kept, what goes on, and that nothing is left running. Its checks are
scripted here, so that no card is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.figures import Figure, Kept, Outcome

ROOT = Path(__file__).parents[2]
SCRIPTED = """
import subprocess, sys, time
from pathlib import Path
from benchmarks.gpu.checks import Planned

HERE = Path(__file__).parent
CHECKS = {name: Planned(work=f"scripted:{name}", limit=60) for name in ("quick", "slow", "last")}

def quick(check):
    with (HERE / "ran").open("a") as file:
        file.write(check.name + " ")
    check.found("tokens", 3, at_least=1)

def slow(check):
    quick(check)
    if (HERE / "hold").exists():
        (check.folder / "model").write_text("weights")
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (HERE / "started").write_text(str(started.pid))
        time.sleep(600)

last = quick
"""


@pytest.fixture
def scripted(tmp_path, monkeypatch) -> Path:
    (tmp_path / "scripted.py").write_text(SCRIPTED)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'src'}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "scripted", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def options_of(folder: Path, **changes) -> Namespace:
    options = {"device": "cpu", "tiny": True, "only": None, "json": False, "seconds": 600, "checks": "scripted:CHECKS"}
    return Namespace(**options | {"out": folder / "kept.json"} | changes)


def held(folder: Path) -> int:
    """The process that the slow check has started, once it runs."""
    end = time.monotonic() + 300
    while not (folder / "started").exists() or not (folder / "started").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    return int((folder / "started").read_text())


def wait_for_the_end_of(pid: int) -> None:
    end = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < end, "a process of the check is still there"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kept_checks(folder: Path) -> dict[str, str]:
    return {made["check"]: made["status"] for made in json.loads((folder / "kept.json").read_text())["checks"]}


def test_a_killed_run_keeps_what_it_found_leaves_nothing_running_and_is_continued(scripted, capsys):
    (scripted / "hold").touch()
    arguments = ["--device", "cpu", "--tiny", "--checks", "scripted:CHECKS", "--out", str(scripted / "kept.json")]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    grandchild = held(scripted)
    process.kill()
    printed, _ = process.communicate()
    assert "quick      tokens" in printed
    assert kept_checks(scripted) == {"quick": "done"}
    wait_for_the_end_of(grandchild)
    assert list(scripted.glob("sleuth-gpu-*/*")) == []

    (scripted / "hold").unlink()
    assert command.run_checks(["quick", "slow"], options_of(scripted)) == 0
    assert (scripted / "ran").read_text().split() == ["quick", "slow", "slow"]
    assert kept_checks(scripted) == {"quick": "done", "slow": "done"}
    assert "2 bars held, 0 missed" in (printed := capsys.readouterr().out)
    assert "measured before: quick; kept in" in printed


# -- the file ------------------------------------------------------------------------------------------------------


def outcome(check: str, commit: str = "a1", value: float = 1.0, torch: str = "2.11", **more) -> Outcome:
    figure = Figure(check=check, name="speed", value=value, at_least=0.5)
    facts = {"commit": commit, "versions": {"torch": torch}}
    return Outcome(**{"check": check, "status": "done", "figures": [figure], "facts": facts, **more})


@pytest.fixture
def kept(tmp_path) -> Kept:
    return Kept(path=tmp_path / "results" / "gpu-x.json", card={"name": "NVIDIA X"}, scale="real")


def test_only_checks_that_ended_well_at_this_commit_with_this_torch_are_not_run_again(kept):
    others = outcome("step", status="timed out"), outcome("even", "b2"), outcome("tools", torch="2.12")
    for made in (outcome("card"), *others):
        kept.add(made)
    assert list(kept.done(outcome("card").facts)) == ["card"]


# -- a Python with torch and transformers alone ----------------------------------------------------------------------

ALONE = """
import importlib.util, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

ABSENT = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Absent())
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *of: None if name.split(".")[0] in ABSENT else find_spec(name, *of)
import torch
from pathlib import Path
from benchmarks.gpu.checks import CHECKS, Check
from benchmarks.gpu.scales import TINY
for name, planned in CHECKS.items():
    planned.load()
folder = Path(sys.argv.pop(1))
check = Check(name="step", device=torch.device("cpu"), scale=TINY, folder=folder, records=folder / "records.jsonl")
sys.exit(not check.run(CHECKS["step"].load()))
"""
ABSENT = "pydantic,pydantic_core,tantivy,pyarrow,aiohttp,starlette,uvicorn,mcp,numba,rich"


def test_a_python_with_torch_and_transformers_alone_runs_the_step_and_says_what_is_left_out(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ALONE, ABSENT, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    skipped = [record["skipped"] for record in records if "skipped" in record]
    assert skipped[0].startswith("the recipe's own trainer: no pydantic and no tantivy")
    assert skipped[1] == "peak memory beside the plan's: no pydantic"
    names = [record["figure"]["name"] for record in records if "figure" in record]
    assert names[:3] == ["model opened", "the first step, compiling included", "4 episodes, context 2,048"]
