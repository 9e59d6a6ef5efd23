"""By being here it lets every test import what several of them share, such as `chat_server`; and the benchmarks, which
lie beside the package, from the root of the checkout. It holds the small world that recipes are run in."""

import sys
from pathlib import Path

import pytest

from sleuth.retrieval.bm25 import build_index
from sleuth.threads import prepare_waiting
from sleuth.world.write_world import write_world

prepare_waiting()  # nothing above loads torch
sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(folder / "world", seed=0, people=200)
    build_index(folder / "world" / "corpus.jsonl", folder / "world" / "index")
    return folder / "world"
