"""Fixtures of all tests: a small generated world, a recipe of a few steps in it on the tiny base model, and its runs.

Being in this folder, it lets tests import shared modules such as `chat_server`; it adds the root for `benchmarks`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from costs import CostRecorder, Costs
from filelock import FileLock

from sleuth.host.threads import prepare_waiting, usable_cores
from sleuth.recipe import load_recipe
from sleuth.retrieval.bm25 import build_index
from sleuth.runs.metrics import meaning_of
from sleuth.runs.run_folder import RunFolder
from sleuth.world.write_world import write_world

prepare_waiting()  # nothing above loads torch
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script's background: the tests' processes would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("SSL_CERT_DIR", str(Path(__file__).parent))  # no authorities: to read all takes 25 ms a client
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

RECIPE = """
name = "small"
model = "{model}"
seed = 4

[[stage]]
kind = "evaluate"
name = "base"
data = {{ questions = "{world}/qa_test.jsonl", limit = 4 }}

[[stage]]
kind = "grpo"
steps = 4
prompts_per_step = 4
samples_per_prompt = 8
learning_rate = 1e-3
slots = 32
context = 400
save_every = 2
probe_prompts = 0
data = {{ questions = "{world}/qa_train.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", index = "{world}/index", turn_tokens = 14 }}
reward = [{{ kind = "answer" }}]

[[stage]]
kind = "evaluate"
name = "trained"
data = {{ questions = "{world}/qa_test.jsonl", limit = 4 }}
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-costs", action="store_true", help="write what each test costs to tests/costs.json")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-costs"):
        config.pluginmanager.register(CostRecorder(), "costs")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than cores, because tests also wait for processes, servers and timers; at most 8."""
    return min(8, usable_cores() + 1)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest):
    began = time.perf_counter()
    try:
        return (yield)
    finally:
        recorder = request.config.pluginmanager.get_plugin("costs")
        if recorder and fixturedef.scope != "function":
            recorder.add_fixture(f"{fixturedef.baseid}::{fixturedef.argname}", time.perf_counter() - began)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    costs = Costs()
    for item in items:
        if costs.is_quick(item.nodeid, getattr(item, "fixturenames", ())):
            item.add_marker("quick")
        if costs.is_long(item.nodeid):
            item.add_marker("long")


Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """`once(name, make)`: the folder `name`, which `make` fills in whichever worker of the session asks first; the
    others wait for it. Tests must leave it as it is, or copy it."""
    root = tmp_path_factory.getbasetemp()
    shared = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "once"
    shared.mkdir(exist_ok=True)

    def once(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = shared / name, shared / f"{name}.done"
        with FileLock(shared / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a worker in which `make` failed
                make(folder)
                done.touch()
        return folder

    return once


@pytest.fixture(scope="session")
def world(once: Once) -> Path:
    def make(folder: Path) -> None:
        write_world(folder, seed=0, people=200)
        build_index(folder / "corpus.jsonl", folder / "index")

    return once("world", make)


def write_small_recipe(folder: Path, world: Path) -> Path:
    file = folder / "small.toml"
    file.write_text(RECIPE.format(world=world, model=ROOT / "models" / "tiny-base"))
    return file


@pytest.fixture
def recipe_file(world: Path, tmp_path: Path) -> Path:
    return write_small_recipe(tmp_path, world)


@pytest.fixture
def run() -> Callable[..., Path]:
    """Runs a recipe, with overrides, in a folder; returns the last checkpoint."""
    from sleuth.cli.pipeline import run_recipe  # loads torch, which reads the environment once

    def run_it(recipe: Path, folder: Path, *overrides: str) -> Path:
        resolved = load_recipe(recipe, overrides)
        with RunFolder.open(folder, resolved) as place:
            return run_recipe(resolved, place)

    return run_it


@pytest.fixture(scope="session")
def finished(world: Path, once: Once) -> Callable[..., Path]:
    """`finished(*overrides)`: the last checkpoint of a run of `recipe_file` that nothing disturbed, made once for all
    tests. Ask for it before anything is patched; read it, or copy its folder, which is `parents[1]`."""
    from sleuth.cli.pipeline import run_recipe

    def last(*overrides: str) -> Path:
        def make(folder: Path) -> None:
            resolved = load_recipe(recipe, overrides)
            with RunFolder.open(folder, resolved) as place:
                run_recipe(resolved, place)

        name = hashlib.sha256("\n".join(overrides).encode()).hexdigest()[:12]
        return max((once(f"run-{name}", make) / "checkpoints").glob("step-*"))

    recipe = write_small_recipe(once("recipe", Path.mkdir), world)
    return last


@pytest.fixture(autouse=True)
def every_figure_is_in_the_glossary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test whose run writes a figure that docs/reference/metrics does not explain."""
    write = RunFolder.write_metrics

    def checked(self: RunFolder, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        unknown = [name for name in figures if meaning_of(name) is None]
        assert not unknown, f"the table of figures has no {unknown}"
        write(self, stage, step, figures)

    monkeypatch.setattr(RunFolder, "write_metrics", checked)


@pytest.fixture
def short_of_memory() -> Callable[[int], AbstractContextManager[list[int]]]:
    """`with short_of_memory(600) as refused:` a model that reads more than 600 tokens at once runs out of memory, as on
    a card; `refused` lists how many it was given."""

    @contextmanager
    def short(most: int) -> Iterator[list[int]]:
        import torch

        refused: list[int] = []

        def refuse(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            if isinstance(module, torch.nn.Embedding) and inputs[0].numel() > most:
                refused.append(inputs[0].numel())
                raise torch.OutOfMemoryError("CUDA out of memory.")

        hook = torch.nn.modules.module.register_module_forward_pre_hook(refuse)
        try:
            yield refused
        finally:
            hook.remove()

    return short
