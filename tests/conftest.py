"""By being here it lets every test import what several of them share, such as `chat_server`; and the benchmarks, which
lie beside the package, from the root of the checkout. It holds the small world that recipes are run in."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sleuth.retrieval.bm25 import build_index
from sleuth.runs.metrics import meaning_of
from sleuth.runs.run_folder import RunFolder
from sleuth.world.write_world import write_world

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(folder / "world", seed=0, people=200)
    build_index(folder / "world" / "corpus.jsonl", folder / "world" / "index")
    return folder / "world"


@pytest.fixture(autouse=True)
def every_figure_is_in_the_glossary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever run a test makes, a figure that it writes and that docs/reference/metrics cannot explain fails it."""
    write = RunFolder.write_metrics

    def checked(self: RunFolder, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        unknown = [name for name in figures if meaning_of(name) is None]
        assert not unknown, f"sleuth.runs.metrics.GLOSSARY has no {unknown}"
        write(self, stage, step, figures)

    monkeypatch.setattr(RunFolder, "write_metrics", checked)
