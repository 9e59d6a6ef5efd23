"""The commands of README.md and docs/ do what the pages say, in a folder of small things that have the names there."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from forked import program

from tools.code_blocks import DIARY, NEEDS, ROOT, Block, blocks, pages

SHIM = Path(__file__).parent / "small_sleuth.py"
SMALL = {"limit": 4, "prompts_per_step": 2, "samples_per_prompt": 4, "rows_per_step": 2, "people": 200}
"""What makes a recipe one of seconds, wherever it has these keys; the models are tiny already."""
MINE = """
name = "mine"
model = "models/tiny-base"
[[stage]]
kind = "grpo"
steps = 2
prompts_per_step = 2
samples_per_prompt = 4
learning_rate = 5e-4
context = 512
probe_prompts = 0
data = { questions = "questions.jsonl" }
env = { kind = "search", dialect = "sleuth", prompt = "plain", index = "indexes/mine", turn_tokens = 32 }
reward = [{ kind = "answer" }]
"""
RUNNABLE = [block for page in pages() for block in blocks(page) if block.language == "sh" and not block.needs]


@pytest.fixture(scope="session")
def furnished(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages take for granted: a world, an index, a trained demo, recipes, and files of a
    reader's own."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(world, folder / "runs/world")
    for name in ("models", "examples"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    for recipe in folder.glob("recipes/**/*.toml"):
        recipe.write_text(tomli_w.dumps(smaller(tomllib.loads(recipe.read_text()))))
    with_programs(folder)
    corpus = (world / "corpus.jsonl").read_bytes()
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus))
    (folder / "more.jsonl").write_text('{"id": "more", "contents": "A new passage."}\n')
    (folder / "gone.txt").write_text("more\n")
    for name, of_world in {"questions": "qa_train", "train": "qa_train", "test": "qa_test"}.items():
        rows = (world / f"{of_world}.jsonl").read_text().splitlines(keepends=True)
        (folder / f"{name}.jsonl").write_text("".join(rows[:40]))
    for name in ("DIR", "INDEX", "indexes/mine"):
        shutil.copytree(world / "index", folder / name)
    for name in ("mine.toml", "recipe.toml"):
        (folder / name).write_text(MINE)
    (folder / "papers").mkdir()
    (folder / "papers/voss.md").write_text("# Ada Voss\n\nAda Voss was born in Tarn, a town by a lake.\n")
    (folder / "judge.toml").write_text('[judge]\nkind = "lexical"\n')
    (folder / "NEW.toml").write_text('[[reward]]\nkind = "token_f1"\n')
    shell(folder, "sleuth train recipes/demo.toml --run runs/demo")
    (folder / "RUN").symlink_to("runs/demo")
    for name in ("AGENT", "CHECKPOINT", "MODEL"):
        (folder / name).symlink_to("runs/demo/checkpoints/step-000220")
    return folder


def smaller(table: dict[str, Any]) -> dict[str, Any]:
    """A recipe of a few steps, and a sweep of two arms and two seeds."""
    found = table | {key: min(table[key], most) for key, most in SMALL.items() if key in table}
    if "steps" in table:
        found["stop_after"] = 2
    if "seeds" in table:
        arms = [arm for arm in table["arm"] if arm["name"] in ("shown", "paid")]
        found |= {"seeds": [0, 1][: len(table["seeds"])], "arm": arms or table["arm"]}
    for key, value in table.items():
        if isinstance(value, dict):
            found[key] = smaller(value)
        elif isinstance(value, list) and value and isinstance(value[0], dict) and key != "arm":
            found[key] = [smaller(one) for one in value]
    return found


def with_programs(folder: Path) -> None:
    """Puts a `sleuth` into the folder, for scripts that `shell` runs there."""
    for place in ("bin", ".venv/bin"):
        (folder / place).mkdir(parents=True)
        program = folder / place / "sleuth"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SHIM}" "$@"\n')
        program.chmod(0o755)


def shell(folder: Path, script: str) -> str:
    """What a script prints, of whose every line has to succeed. What it leaves in the background is ended."""
    search = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    source = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    here = os.environ | {"PATH": search, "OMP_NUM_THREADS": "1", "PYTHONPATH": source, "SERVED_ON": str("&" in script)}
    here["FORKED"] = json.dumps(program())
    with (folder / "said.txt").open("w") as said:  # a pipe would be held open by what runs in the background
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=here,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=1500)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    printed = (folder / "said.txt").read_text()
    assert status == 0, f"{script}\n{printed}"
    return printed


def needs_make(block: Block) -> bool:
    """A target of make installs; .ci/run runs them."""
    return all(line.startswith(("make ", "#")) for line in block.text.splitlines() if line)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=block.where, marks=[pytest.mark.slow] if block.slow else [])
        for block in RUNNABLE
        if not needs_make(block)
    ],
)
def test_a_block_of_commands_runs(block: Block, furnished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    shutil.copytree(furnished, folder, symlinks=True)
    if "sleuth demo" in block.text:  # begins with nothing
        shutil.rmtree(folder / "runs")
    if "REFINER" in block.text:  # one whose answers are well formed takes longer
        taught = "--set stage.0.stop_after=80 --set stage.0.rows_per_step=16"
        shell(folder, f"sleuth train recipes/tiny/refiner.toml --run runs/refiner {taught}")
        (folder / "REFINER").symlink_to("runs/refiner/checkpoints/step-000082")
    shell(folder, block.text)


def test_every_block_of_commands_is_run_or_says_what_it_needs() -> None:
    """Needs are a card, a cluster, a hub, a network or a server; a block of another language begins with no program."""
    program = re.compile(r"(?:\$ |[A-Z_]+=\S+ )*(?:curl|hf|llama-server|make|pip|python|sleuth|torchrun|uv|vllm) \S")
    written = [block for page in pages() if page != DIARY for block in blocks(page)]
    assert [block.where for block in written if block.needs not in ("", *NEEDS)] == []
    others = [block for block in written if block.language != "sh"]
    assert [block.where for block in others if any(map(program.match, block.text.splitlines()))] == []


@pytest.mark.slow
def test_the_notebook_runs_the_demo_and_shows_its_report(tmp_path: Path) -> None:
    with_programs(tmp_path)
    (tmp_path / "IPython").mkdir()
    (tmp_path / "IPython/display.py").write_text(
        "def IFrame(page, **size):\n    assert open(page).read(15) == '<!doctype html>'\n"
    )
    cells = json.loads((ROOT / "examples/demo.ipynb").read_text())["cells"]
    lines = [line.rstrip("\n") for cell in cells if cell["cell_type"] == "code" for line in (*cell["source"], "")]
    script = [f"subprocess.run({line[1:]!r}, shell=True, check=True)" if line[:1] == "!" else line for line in lines]
    (tmp_path / "cells.py").write_text("\n".join(["import subprocess", *script]))
    printed = shell(tmp_path, "python cells.py")
    assert "trained      exact match" in printed
    assert "   policy | " in printed
