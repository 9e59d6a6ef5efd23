"""An index after additions and removals is the one that would be built of the changed corpus."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path

import corpora
import pytest
from corpora import PASSAGES, KilledError, WriteCorpus

from sleuth.retrieval import bm25, updating
from sleuth.retrieval.bm25 import Bm25, Bm25Writer, build_index
from sleuth.retrieval.dense import DenseWriter, adopt_vectors, build_dense
from sleuth.retrieval.encoder import Encoder, encoder_card
from sleuth.retrieval.hybrid import build_hybrid
from sleuth.retrieval.index_card import EncoderCard, IndexCard, read_card
from sleuth.retrieval.open_index import open_index
from sleuth.retrieval.updating import add_passages, remove_passages
from sleuth.types import Passage, SleuthError

QUERIES = ["town 5", "near 30", "lies", "96 near 3", "no such words", "town 96 lies near 30"]


towns = partial(corpora.towns, prefix="t")


@pytest.fixture(scope="session")
def card(encoder_folder: Path) -> EncoderCard:
    return encoder_card(str(encoder_folder))


@pytest.fixture
def in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """All writers take part, though the corpora are small."""
    monkeypatch.setattr(bm25, "ALONE", 20)
    monkeypatch.setattr(bm25, "BLOCK", 7)


def answers(folder: Path, k: int = 10) -> list[list[Passage]]:
    return asyncio.run(open_index(folder).search(QUERIES, k))


def require_same_answers(folder: Path, whole: Path) -> None:
    """Ids in order, and scores to the rounding of a vector that was encoded in another batch."""
    for ours, theirs in zip(answers(folder), answers(whole), strict=True):
        assert [passage.score for passage in ours] == pytest.approx([passage.score for passage in theirs], abs=1e-6)
        if all(abs(a.score - b.score) > 1e-5 for a, b in pairwise(theirs)):
            assert [passage.id for passage in ours] == [passage.id for passage in theirs]


def changed(rng: random.Random, corpus: Mapping[str, str], number: int) -> tuple[dict[str, str], list[str]]:
    """Passages to add and ids to remove; one of the two is empty."""
    if rng.random() < 0.5:
        return towns(range(1000 * number, 1000 * number + rng.randint(1, 60))), []
    return {}, rng.sample(sorted(corpus), rng.randint(1, len(corpus) // 3))


@pytest.mark.usefixtures("in_turns")
@pytest.mark.parametrize("seed", range(3))
def test_bm25_after_random_additions_and_removals_is_the_index_built_whole(
    write_corpus: WriteCorpus, tmp_path: Path, seed: int
) -> None:
    rng, corpus, index = random.Random(seed), towns(range(100)), tmp_path / "index"
    build_index(write_corpus(corpus), index)
    for number in range(1, 6):
        added, removed = changed(rng, corpus, number)
        corpus = {name: text for name, text in corpus.items() if name not in removed} | added
        made = add_passages(index, write_corpus(added, "a.jsonl")) if added else remove_passages(index, removed)
        assert made == build_index(write_corpus(corpus, "whole.jsonl"), tmp_path / "whole") == read_card(index)
        assert answers(index) == answers(tmp_path / "whole")
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("index")] == ["index"]


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_vectors_after_random_additions_and_removals_are_those_of_an_index_built_whole(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path, kind: str
) -> None:
    build = build_dense if kind == "dense" else build_hybrid
    rng, corpus, index = random.Random(kind), towns(range(60)), tmp_path / "index"
    build(write_corpus(corpus), index, card)
    for number in range(1, 5):
        added, removed = changed(rng, corpus, number)
        corpus = {name: text for name, text in corpus.items() if name not in removed} | added
        made = add_passages(index, write_corpus(added, "a.jsonl")) if added else remove_passages(index, removed)
        assert made == build(write_corpus(corpus, "whole.jsonl"), tmp_path / "whole", card)
        require_same_answers(index, tmp_path / "whole")


def test_only_added_passages_are_encoded(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_dense(write_corpus(towns(range(300))), tmp_path / "index", card)
    encoded, encode = list[int](), Encoder.passages
    monkeypatch.setattr(Encoder, "passages", lambda self, these: encoded.append(len(these)) or encode(self, these))
    remove_passages(tmp_path / "index", ["t4", "t200"])
    assert sum(encoded) == 0
    add_passages(tmp_path / "index", write_corpus(towns(range(300, 310)), "added.jsonl"))
    assert sum(encoded) == 8 + 10  # 8 to compare with the vectors that are there


@pytest.mark.parametrize("storage", ["ivf-sq8", "ivf-pq"])
def test_quantised_vectors_keep_their_lists_so_that_adding_and_removing_the_same_changes_no_bit(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path, storage: str
) -> None:
    corpus, more = towns(range(400)), towns(range(400, 440))
    index = tmp_path / "index"
    built = build_dense(write_corpus(corpus), index, card, storage)  # pyright: ignore[reportArgumentType]
    before, vectors = answers(index), (index / "vectors.faiss").read_bytes()
    added = add_passages(index, write_corpus(more, "more.jsonl"))
    assert (added.count, added.storage, added.flat_recall) == (440, storage, None)  # not measured again
    build_dense(write_corpus(corpus | more), tmp_path / "flat", card)
    found = [{p.id for p in hits} for hits in answers(index)]
    exact = [{p.id for p in hits} for hits in answers(tmp_path / "flat")]
    assert sum(len(a & b) for a, b in zip(found, exact, strict=True)) > 0.5 * sum(map(len, exact))
    [everything] = asyncio.run(open_index(index).search(["Quay"], 440))
    assert {passage.id for passage in everything} == {*corpus, *more}
    removed = remove_passages(index, list(more))
    assert removed.corpus_sha256 == built.corpus_sha256
    assert answers(index) == before
    assert (index / "vectors.faiss").read_bytes() == vectors


@pytest.mark.parametrize("adding", [True, False])
def test_a_killed_update_leaves_the_old_index_and_goes_on_with_the_same_command(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adding: bool
) -> None:
    monkeypatch.setattr(Bm25Writer, "every", 500)
    monkeypatch.setattr(DenseWriter, "every", 500)
    corpus, more = towns(range(1200)), write_corpus(towns(range(1200, 2400)), "more.jsonl")
    build_hybrid(write_corpus(corpus), tmp_path / "index", card)
    before, old = answers(tmp_path / "index"), read_card(tmp_path / "index")

    def update(stop_at: int = 0) -> IndexCard:
        def progress(done: int) -> None:
            if done == stop_at:
                raise KilledError

        if adding:
            return add_passages(tmp_path / "index", more, progress)
        return remove_passages(tmp_path / "index", ["t3", "t700"], progress)

    for stop_at in (250, 750, 1750 if adding else 1000):
        with pytest.raises(KilledError):
            update(stop_at)
        assert (answers(tmp_path / "index"), read_card(tmp_path / "index")) == (before, old)
    assert update().count == (2400 if adding else 1198)
    kept = corpus | towns(range(1200, 2400)) if adding else {k: v for k, v in corpus.items() if k not in ("t3", "t700")}
    build_hybrid(write_corpus(kept), tmp_path / "whole", card)
    require_same_answers(tmp_path / "index", tmp_path / "whole")
    assert not (tmp_path / "index.partial").exists()


def test_a_kill_between_the_two_renames_loses_no_index(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(write_corpus(), tmp_path / "index")
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if path.name == "index.partial":
            raise KilledError
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KilledError):
        remove_passages(tmp_path / "index", ["4"])
    monkeypatch.undo()
    with pytest.raises(SleuthError, match=r"index: a killed build left its index as .*index\.old; rename that to"):
        Bm25(tmp_path / "index")
    assert remove_passages(tmp_path / "index", ["4"]).count == len(PASSAGES) - 1
    assert not (tmp_path / "index.old").exists()


def test_wrong_updates_are_one_line_and_change_nothing(
    card: EncoderCard, encoder_folder: Path, write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, more = tmp_path / "index", write_corpus({"99": "new"}, "more.jsonl")
    corpus = write_corpus()
    build_dense(corpus, index, card)
    adopt_vectors(corpus, tmp_path / "adopted", card, index / "vectors.faiss")
    before = {path.name: path.read_bytes() for path in index.iterdir()}

    def refused(words: str, folder: Path = index, add: Path | None = None, remove: tuple[str, ...] = ()) -> None:
        with pytest.raises(SleuthError, match=words) as caught:
            add_passages(folder, add) if add else remove_passages(folder, remove)
        assert "\n" not in str(caught.value)
        assert {path.name: path.read_bytes() for path in index.iterdir()} == before
        assert not (tmp_path / "index.partial").exists()

    refused(r"twice.jsonl: id '4' is in .*index already; remove that", add=write_corpus({"4": "x"}, "twice.jsonl"))
    refused(r"same.jsonl:2: id '7' was used by an earlier", add=_rows(tmp_path / "same.jsonl", ["7", "7"]))
    refused(r"index: no passage with the id '5' \(and 1 more\); nothing was removed", remove=("4", "5", "6"))
    refused("no passage would be left", remove=tuple(PASSAGES))
    refused("files of another tool .* which are not changed", folder=tmp_path / "adopted", add=more)
    refused("no index here", folder=tmp_path / "none", add=more)
    monkeypatch.setattr(updating, "free_bytes", lambda folder: 100)
    refused("not enough disk: .* needs [0-9.]+ kB, and 100 bytes are free", add=more)
    monkeypatch.undo()
    _other_weights(encoder_folder, tmp_path / "other")
    (index / "card.json").write_text(before["card.json"].decode().replace(str(encoder_folder), str(tmp_path / "other")))
    (index / "SHA256SUMS").unlink()  # the card was changed on purpose
    before = {path.name: path.read_bytes() for path in index.iterdir()}
    refused("other: weights [0-9a-f]{12}, and the vectors were made with [0-9a-f]{12}: ", add=more)
    fields = json.loads((index / "card.json").read_text())
    del fields["encoder"]["weights_sha256"]  # as in cards of earlier versions
    (index / "card.json").write_text(json.dumps(fields))
    before = {path.name: path.read_bytes() for path in index.iterdir()}
    refused("of the first 5 passages, .* are nearest to their own vectors: these were made by another model", add=more)


def _rows(path: Path, ids: list[str]) -> Path:
    path.write_text("".join(f'{{"id": "{name}", "contents": "a"}}\n' for name in ids))
    return path


def _other_weights(encoder: Path, folder: Path) -> None:
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(encoder))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight))
    model.save(str(folder))
