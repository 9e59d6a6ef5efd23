"""Every file of a run and of its checkpoint, damaged in five ways: repaired with a line, refused in one line, or
without effect; never another result in silence, and never a traceback."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from test_damaged_run import flip
from verb import sleuth

from sleuth.runs.rollouts import read_rollouts
from sleuth.types import SleuthError

pytestmark = pytest.mark.slow
LAST = "checkpoints/step-000004"
OF_A_RUN = (
    "recipe.toml", "manifest.json", "metrics.jsonl", "log.txt", "eval/base.json", "eval/trained.json",
    "rollouts/step-000002.parquet", "rollouts/step-000004.parquet",
    *(f"{LAST}/{name}" for name in (
        "model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "protocol.json", "README.md", "SHA256SUMS", "state/state.pt",
    )),
)  # fmt: skip


def scrambled(file: Path) -> None:
    file.write_bytes(random.Random(0).randbytes(file.stat().st_size))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "flipped": flip,
    "scrambled": scrambled,
}


def results_of(folder: Path) -> dict[str, Any]:
    """What a run leaves for its user: weights, figures without timings, answers of evaluations."""
    metrics = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    return {
        "weights": (folder / LAST / "model.safetensors").read_bytes(),
        "rows": [{name: value for name, value in row.items() if not name.startswith("seconds")} for row in rows],
        "answers": {file.name: json.loads(file.read_text())["em"] for file in sorted((folder / "eval").glob("*.json"))},
        "rollouts": {file.name: file.read_bytes() for file in sorted((folder / "rollouts").iterdir())},
    }


def is_one_line(result: Result) -> bool:
    """Whether it failed as a command should."""
    last = result.stderr.strip().splitlines()[-1] if result.stderr.strip() else ""
    ended = isinstance(result.exception, SystemExit)
    return ended and result.exit_code in (1, 2) and last.startswith("error: ") and "Traceback" not in result.output


def read_fails(file: Path) -> bool:
    try:
        read_rollouts(file)
    except SleuthError as error:
        return str(file) in str(error)
    return False


@pytest.mark.parametrize("name", OF_A_RUN)
def test_a_damaged_file_of_a_run_never_changes_its_results_in_silence(
    finished: Callable[..., Path], recipe_file: Path, tmp_path: Path, name: str
) -> None:
    whole = finished().parents[1]
    expected = results_of(whole)
    assert (whole / name).is_file(), "the table names a file that a run no longer has"
    said = sleuth("train", recipe_file, "--run", shutil.copytree(whole, tmp_path / "untouched")).stderr
    for damage, act in DAMAGES.items():
        folder = Path(shutil.copytree(whole, tmp_path / damage))
        act(folder / name)
        for command in (("train", recipe_file, "--run", folder), ("report", folder)):
            result = sleuth(*command)
            where = (damage, command[0], result.exit_code, result.stderr)
            if result.exit_code:
                assert is_one_line(result), where
            elif command[0] == "train" and results_of(folder) != expected:
                if name.startswith("rollouts") and read_fails(folder / name):
                    continue  # resuming reads none; whoever reads it is told
                told = set(result.stderr.splitlines()) - set(said.splitlines())
                assert any(Path(name).name in line or Path(name).parent.name in line for line in told), where
