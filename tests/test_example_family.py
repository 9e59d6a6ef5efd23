"""examples/own_family: a family with a stage, an environment, a dialect, a reward, a judge, a figure and a verb, named
by a recipe and installed from its wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from installed import ROOT

EXAMPLE = ROOT / "examples" / "own_family"
OF_A_CHECKPOINT = """
from pathlib import Path
from sleuth.episodes.protocol import ProtocolCard
from sleuth.recipe.envs import environment_of
print(environment_of(ProtocolCard.read(Path("run/checkpoints/step-000003")).dialect).__name__)
"""
Sleuth = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def sleuth(tmp_path: Path) -> Sleuth:
    """Runs a verb in an empty folder, with these folders of packages."""
    (tmp_path / "models").symlink_to(ROOT / "models")

    def run(*words: object, site: Path | None = None, status: int = 0) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(map(str, [*([site] if site else []), *sys.path]))
        done = subprocess.run(
            [sys.executable, "-m", "sleuth", *map(str, words)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done

    return run


def test_a_family_beside_its_recipe_trains_resumes_and_is_recorded(sleuth: Sleuth, tmp_path: Path) -> None:
    for file in EXAMPLE.glob("spelling*"):
        shutil.copy(file, tmp_path)
    spell(sleuth, tmp_path)
    sleuth("train", "spelling.toml", "--run", "again", "--set", "stage.1.stop_after=1")
    hashes = json.loads((tmp_path / "run" / "manifest.json").read_text())["sources"]["grpo"]
    assert hashes.keys() == {"spelling.py", "spelling_env.py"}
    place = tmp_path / "spelling_env.py"
    place.write_text(place.read_text().replace("zip(ended, verdicts", "zip(ended, [*verdicts]"))
    changed = sleuth("train", "spelling.toml", "--run", "again", status=2)
    assert "spelling_env.py changed after it was saved; start a new run" in changed.stderr.splitlines()[-1]
    (tmp_path / "reward.toml").write_text('families = ["spelling:FAMILY"]\n[[reward]]\nkind = "spelled"\n')
    again = json.loads(sleuth("rescore", "run", "--reward", "reward.toml", "--json").stdout)
    assert again["stages"][0]["episodes"] == 48
    figures = [
        json.loads(sleuth("compare", "run", "again", "--json", *allowed).stdout)["figures"]
        for allowed in ((), ("--allow-code",))
    ]
    assert ["letters" in one for one in figures] == [False, True]
    alone = sleuth("eval", "run/checkpoints/step-000003", "--questions", "words.jsonl", "--limit", 1)
    assert "its dialect 'spelling' is of no family that is installed here" in alone.stderr


def test_a_family_from_a_wheel_is_as_good_as_ours(sleuth: Sleuth, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="`make test` installs what builds a wheel")
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "-q"]
    subprocess.run([*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", wheels, EXAMPLE], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", site, *wheels.glob("*.whl")], check=True)
    recipe = (EXAMPLE / "spelling.toml").read_text()
    (tmp_path / "spelling.toml").write_text(recipe.replace('families = ["spelling:FAMILY"]\n', ""))
    spell(sleuth, tmp_path, site)
    asked = ("eval", "run/checkpoints/step-000003", "--questions", "words.jsonl", "--limit", 8, "--json")
    figures = json.loads(sleuth(*asked, site=site).stdout)
    assert figures["letters"]["n"] == 8
    assert figures["missing"]["value"] == 0.0
    path = os.pathsep.join([str(site), *sys.path])
    found = subprocess.run(
        [sys.executable, "-c", OF_A_CHECKPOINT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "SpellEnvRecipe\n"
    assert "loss as recorded" in sleuth("replay", "run", 1, site=site).stdout
    (tmp_path / "reward.toml").write_text('[[reward]]\nkind = "spelled"\n')
    again = json.loads(sleuth("rescore", "run", "--reward", "reward.toml", "--json", site=site).stdout)
    assert again["stages"][0]["episodes"] == 48


def spell(sleuth: Sleuth, folder: Path, site: Path | None = None) -> None:
    """Checks and plans the recipe, trains it with a stop in between, and looks for its figure in the report."""
    run = ("train", "spelling.toml", "--run", "run")
    assert sleuth("check", "recipe", "spelling.toml", site=site, status=2).stderr.count("no such file") == 3
    if site is not None:
        sleuth("words", "words.jsonl", "--count", 24, site=site)
    else:
        rows = [{"id": str(at), "question": f"t{at}", "golden_answers": [f"{at}t"]} for at in range(24)]
        (folder / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "ok: 3 stages, 3 steps" in sleuth("check", "recipe", "spelling.toml", site=site).stdout
    planned = json.loads(sleuth("plan", "spelling.toml", "--json", site=site).stdout)
    assert (planned["fits"], planned["steps"], planned["episodes"]) == (True, 3, 64)
    sleuth(*run, "--set", "stage.1.stop_after=2", site=site)
    assert "continuing at step 2 of 3" in sleuth(*run, site=site).stderr
    measured = json.loads((folder / "run" / "eval" / "trained.json").read_text())
    assert (measured["letters"]["n"], measured["missing"]["value"]) == (16, 0.0)
    sleuth("report", "run", site=site)
    shown = "Letters in place" if site is not None else "Letters"
    assert shown in (folder / "run" / "report.html").read_text()
