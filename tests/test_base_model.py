"""The tiny base model in the repository reads search results, and is small."""

from __future__ import annotations

from pathlib import Path

import pytest
from reading import share_read

from sleuth.retrieval.bm25 import Bm25, build_index
from sleuth.world.write_world import write_world

BASE = Path(__file__).parents[1] / "models" / "tiny-base"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Bm25:
    folder = tmp_path_factory.mktemp("base") / "world"
    write_world(folder, seed=0, people=2000)
    build_index(folder / "corpus.jsonl", folder / "index")
    return Bm25(folder / "index")


def test_the_base_reads_search_results_about_held_out_names(index: Bm25) -> None:
    assert share_read(str(BASE), index) >= 0.9


def test_the_base_takes_at_most_two_megabytes() -> None:
    assert sum(file.stat().st_size for file in BASE.iterdir()) <= 2_000_000
