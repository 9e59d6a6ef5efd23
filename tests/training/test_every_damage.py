"""Damages to the files of a run folder, each met by resume, report and compare: refused in one line, or repaired or
gone around with a line about it; never another result in silence, a traceback or a wait. Those to a checkpoint are in
test_damaged_run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from damages import CONTENTS, damage, no_longer_than, remove
from small_stages import BRIEF
from typer.testing import Result
from verb import sleuth

from sleuth.runs.chain import CHAIN

SET = [option for override in BRIEF for option in ("--set", override)]
SECONDS = 60
SAID: dict[str, set[str]] = {}
"""What each verb says of a folder that nothing has damaged."""
ROLLOUTS, EVAL = "rollouts/step-000002.parquet", "eval/base.json"
OWN = ("recipe.toml", "manifest.json", "metrics.jsonl", CHAIN, EVAL, "eval/trained.json", ROLLOUTS)
Act = Callable[[Path, Path], object]
"""Damages the first folder; the second is a run of another seed, which is left as it is."""


def alone(kind: str, name: str, folder: Path, other: Path) -> None:
    damage(kind, folder / name)


def exchanged(one: str, two: str, folder: Path, other: Path) -> None:
    (folder / one).rename(folder / "aside")
    (folder / two).rename(folder / one)
    (folder / "aside").rename(folder / two)


def swapped(name: str, folder: Path, other: Path) -> None:
    """Puts the other run's in place of it."""
    assert (folder / name).is_dir() or (folder / name).read_bytes() != (other / name).read_bytes()
    remove(folder / name)
    (shutil.copytree if (other / name).is_dir() else shutil.copyfile)(other / name, folder / name)


def number(name: str, key: str, folder: Path, other: Path) -> None:
    """Changes one figure, as a hand would."""
    lines = (folder / name).read_text().splitlines(keepends=True)
    if name.endswith("jsonl"):
        lines[1] = json.dumps(json.loads(lines[1]) | {key: 0.75}) + "\n"
        (folder / name).write_text("".join(lines))
    else:
        (folder / name).write_text(json.dumps(json.loads("".join(lines)) | {key: 0.75}, indent=1) + "\n")


def lines(change: Callable[[list[bytes], list[bytes]], list[bytes]], name: str, folder: Path, other: Path) -> None:
    ours, theirs = ((one / name).read_bytes().splitlines(keepends=True) for one in (folder, other))
    (folder / name).write_bytes(b"".join(change(ours, theirs)))


TABLE: dict[str, Act] = {
    f"{kind}: {name}": partial(alone, kind, name)
    for kind, names in {
        **dict.fromkeys(CONTENTS, OWN),
        "removed": ("metrics.jsonl", CHAIN, EVAL, ROLLOUTS),
        "pipe": (*OWN, "log.txt", "eval/more.json"),
        "device": ("recipe.toml", "metrics.jsonl", ROLLOUTS),
        "loop": ("manifest.json", EVAL),
        "folder": ("metrics.jsonl", EVAL),
    }.items()
    for name in names
}
TABLE |= {f"of another seed: {name}": partial(swapped, name) for name in (*OWN, "eval") if name != EVAL}
TABLE |= {
    "a changed figure of a step": partial(number, "metrics.jsonl", "reward_mean"),
    "a changed figure of an evaluation": partial(number, "eval/trained.json", "em"),
    "the last row cut": partial(lines, lambda ours, theirs: ours[:-1], "metrics.jsonl"),
    "a row twice": partial(lines, lambda ours, theirs: [*ours, ours[-1]], "metrics.jsonl"),
    "rows in another order": partial(lines, lambda ours, theirs: ours[::-1], "metrics.jsonl"),
    "rows of another run after ours": partial(lines, lambda ours, theirs: ours + theirs, "metrics.jsonl"),
    "a chain without its first line": partial(lines, lambda ours, theirs: ours[1:], CHAIN),
    "a chain without a line": partial(lines, lambda ours, theirs: ours[:9] + ours[10:], CHAIN),
    "evaluations exchanged": partial(exchanged, EVAL, "eval/trained.json"),
    "rollouts exchanged": partial(exchanged, ROLLOUTS, "rollouts/step-000004.parquet"),
    "checkpoints exchanged": partial(exchanged, "checkpoints/step-000002", "checkpoints/step-000004"),
}


def is_one_line(result: Result) -> bool:
    """Whether it failed as a command should."""
    last = result.stderr.strip().splitlines()[-1] if result.stderr.strip() else ""
    ended = isinstance(result.exception, SystemExit)
    return ended and result.exit_code in (1, 2) and last.startswith("error: ") and "Traceback" not in result.output


@pytest.fixture
def verbs(recipe_file) -> dict[str, Callable[[Path], Result]]:
    train = partial(sleuth, "train", recipe_file, *SET, "--run")
    return {"resume": train, "report": partial(sleuth, "report"), "compare": partial(sleuth, "compare")}


def said(result: Result, folder: Path) -> list[str]:
    return result.stderr.replace(str(folder), "RUN").splitlines()


def met(name: str, verb: str, run: Callable[[Path], Result], folders: tuple[Path, Path], place: Path) -> str:
    """How a damage is met: `refused`, `said`, or an error."""
    if verb not in SAID:
        SAID[verb] = {*said(run(untouched := shutil.copytree(folders[0], place / "untouched")), untouched)}
    folder = shutil.copytree(folders[0], place / "run")
    TABLE[name](folder, folders[1])
    with no_longer_than(SECONDS):
        result = run(folder)
    where = (name, verb, result.exit_code, result.stderr)
    if result.exit_code:
        assert is_one_line(result), where
        return "refused"
    told = [line for line in said(result, folder) if line not in SAID[verb]]
    assert any("RUN" in line for line in told), where
    if verb in ("report", "compare"):
        assert told[0].startswith(("warning: ", "note: ")), where
        assert said(result, folder)[0] == told[0], where
    return "said"


@pytest.fixture(scope="session")
def two_runs(finished) -> tuple[Path, Path]:
    return finished(*BRIEF).parents[1], finished(*BRIEF, "seed=5").parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["resume", "report", "compare"])
@pytest.mark.parametrize("name", TABLE)
def test_no_damage_to_a_run_is_silent(two_runs, verbs, tmp_path, name, verb):
    met(name, verb, verbs[verb], two_runs, tmp_path)


@pytest.mark.parametrize(
    "name", ["pipe: metrics.jsonl", "pipe: log.txt", "device: recipe.toml", "loop: eval/base.json"]
)
def test_what_is_no_file_is_refused_and_not_waited_for(two_runs, verbs, tmp_path, name):
    for verb in verbs:
        assert met(name, verb, verbs[verb], two_runs, tmp_path / verb) == "refused"
