from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch
from corpora import WriteCorpus
from torch._subclasses.fake_tensor import FakeTensorMode

from sleuth.retrieval import vectors
from sleuth.retrieval.bm25 import build_index
from sleuth.retrieval.index_card import read_card, write_card
from sleuth.retrieval.quantising import quantise
from sleuth.retrieval.vectors import FlatWriter, VectorSearch, VectorsOnCards, open_search
from sleuth.serve.search_handler import IndexLoader
from sleuth.types import SleuthError

CPU = torch.device("cpu")


def drawn(seed: int, count: int, width: int = 12) -> np.ndarray:
    """Vectors of length 1, of which some are the same."""
    rows = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    rows[count // 2 : count // 2 + 30] = rows[0]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("held", [4, 2_000, 2**20])
def test_hits_are_those_of_faiss_to_the_bit(shards: int, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "SCORE_BYTES", held)
    monkeypatch.setattr(vectors, "COPIED_ROWS", 50)
    for seed, count in enumerate((5, 64, 701)):
        rows, queries = drawn(seed, count), drawn(seed + 100, 9)
        flat = faiss.IndexFlatIP(rows.shape[1])
        flat.add(rows)
        ours = VectorSearch(VectorsOnCards(rows, [CPU] * shards), rows)
        theirs = VectorSearch(flat, rows)
        for k in (1, 3, 20):
            found = zip(ours.search(queries, k), theirs.search(queries, k), strict=True)
            for one, other in found:
                assert best(one, k) == best(other, k)


def best(hits: list[tuple[int, float]], k: int) -> list[tuple[int, float]]:
    return sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:k]


def test_what_is_computed_on_a_card_stays_there() -> None:
    with FakeTensorMode():
        rows, queries = torch.empty(701, 12, device="cuda"), torch.empty(9, 12, device="cuda")
        scores, numbers = vectors._best(rows, 5, queries, 20)
    assert (scores.device.type, numbers.device.type) == ("cuda", "cuda")
    assert scores.shape == numbers.shape == (9, 20)


def test_a_card_that_is_too_small_is_one_line_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (24 * 10**9, 80 * 10**9))
    rows = np.broadcast_to(np.float32(0), (21_000_000, 768))
    with pytest.raises(
        SleuthError, match=r"^cuda:0: 24\.0 GB free, and its share of the vectors, 1 of 2, takes 33\.3 GB"
    ):
        VectorsOnCards(rows, [torch.device("cuda", 0), torch.device("cuda", 1)])


def test_what_has_no_vectors_for_a_card_is_one_line(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(write_corpus(), tmp_path / "words")
    with pytest.raises(SleuthError, match="of kind 'bm25' has no vectors for a card; leave --device out"):
        IndexLoader(tmp_path / "words", "cuda")  # before it listens
    card = replace(read_card(tmp_path / "words"), kind="dense", storage="ivf-sq8")
    (tmp_path / "quantised").mkdir()
    write_card(card, tmp_path / "quantised")
    with pytest.raises(SleuthError, match="vectors of ivf-sq8 are searched on the CPU; leave --device out"):
        IndexLoader(tmp_path / "quantised", "cuda")
    flat = FlatWriter(tmp_path / "flat.faiss", 12)
    flat.append(drawn(0, 3_000))
    flat.close()
    quantise(tmp_path / "flat.faiss", tmp_path / "small.faiss", "ivf-sq8")
    with pytest.raises(SleuthError, match="quantised vectors are searched on the CPU"):
        open_search(tmp_path / "small.faiss", "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SleuthError, match="shows no CUDA device"):
        open_search(tmp_path / "flat.faiss", "cuda")


def test_all_visible_cards_share_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "cuda_devices", lambda: [CPU, CPU])
    rows = drawn(1, 300)
    flat = FlatWriter(tmp_path / "flat.faiss", 12)
    flat.append(rows)
    flat.close()
    search = open_search(tmp_path / "flat.faiss", "cuda")
    assert isinstance(search._index, VectorsOnCards)
    assert [len(part) for _, part in search._index._shards] == [150, 150]
    assert best(search.search(rows[7:8], 1)[0], 1) == [(7, pytest.approx(1.0))]
