"""`sleuth demo` in a folder that holds nothing, from the checkout and from the wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from installed import build_wheel, install
from verb import sleuth

ROOT = Path(__file__).parents[2]
SMALL = [
    f"--set={key}"
    for key in (
        "stage.0.data.limit=4",
        "stage.1.steps=2",
        "stage.1.warmup_steps=0",
        "stage.1.prompts_per_step=2",
        "stage.1.samples_per_prompt=4",
        "stage.1.probe_prompts=0",
        "stage.2.data.limit=4",
    )
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.sentinel
def test_the_demo_runs_in_an_empty_folder_and_prints_the_next_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = sleuth("demo", "--run", "runs/mine", "--quiet", *SMALL)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (tmp_path / "runs/mine/report.html").stat().st_size > 10_000
    for evaluation in ("base", "base_forced", "trained"):
        assert json.loads((tmp_path / f"runs/mine/eval/{evaluation}.json").read_text())["em"]["n"] == 4
    last = "runs/mine/checkpoints/step-000002"
    assert f"sleuth serve {last} --index runs/world/index" in result.stdout
    ask = f"sleuth eval {last} --questions runs/world/qa_test.jsonl --index runs/world/index"
    assert ask in result.stdout
    assert sleuth(*ask.split()[1:], "--limit", 2).exit_code == 0


def test_the_wheel_contains_the_recipes_the_tiny_models_and_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    files = [file for file in (ROOT / "src/sleuth").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    ours = {str(file.relative_to(ROOT / "src")): file for file in files}
    toml = (file for folder in ("recipes", "published") for file in (ROOT / folder).rglob("*.toml"))
    for file in (*toml, *(ROOT / "models").glob("tiny-*/*")):
        ours[f"sleuth/shipped/{file.relative_to(ROOT)}"] = file
    assert {name for name in held if name.startswith("sleuth/")} == ours.keys()
    assert [name for name, file in ours.items() if held[name] != file.read_bytes()] == []


def test_a_wheel_finds_every_recipe_and_its_model_by_name(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = """
from pathlib import Path
from sleuth.recipe.load import list_recipes, load_recipe
for found in list_recipes():
    model = "" if found.is_sweep else load_recipe(found.name).model
    print(found.name, found.file.is_file(), "tiny" not in model or Path(model, "config.json").is_file(), sep=",")
"""
    path = os.pathsep.join([str(tmp_path / "site"), sysconfig.get_path("purelib")])
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], cwd=tmp_path, env={"PYTHONPATH": path}, capture_output=True, text=True
    )
    names = {str(file.relative_to(ROOT / "recipes").with_suffix("")) for file in (ROOT / "recipes").rglob("*.toml")}
    assert set(done.stdout.split()) == {f"{name},True,True" for name in names}, done.stderr


@pytest.mark.slow
def test_the_wheel_in_an_environment_of_its_own_trains_the_same_weights(wheel: Path, tmp_path: Path) -> None:
    fresh, empty = install(wheel, tmp_path / "venv"), tmp_path / "empty"
    empty.mkdir()
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=empty, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = "import sleuth; print(sleuth.__file__)"
    assert run(fresh / "python", "-c", where).startswith(str(fresh.parent))
    run(fresh / "sleuth", "demo", "--run", "runs/first", *SMALL)  # compiles what later processes load
    run(fresh / "sleuth", "demo", *SMALL)
    assert (empty / "runs/demo/report.html").exists()
    run(fresh / "sleuth", "train", "demo", "--run", "runs/again", *SMALL)
    weights = [empty / f"runs/{name}/checkpoints/step-000002/model.safetensors" for name in ("demo", "again")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
