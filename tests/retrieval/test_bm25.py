from __future__ import annotations

import asyncio
import json
import math
import random
import time
from pathlib import Path

import pytest
from corpora import PASSAGES
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.data.questions import load_questions
from sleuth.retrieval.bm25 import Bm25, build_index
from sleuth.search.figures import recall
from sleuth.types import Passage, Retriever, SleuthError

REAL_DATA = Path(__file__).parents[2] / ".." / "shared" / "data"


def corpus(path: Path, passages: dict[str, str]) -> Path:
    path.write_text("".join(json.dumps({"id": i, "contents": text}) + "\n" for i, text in passages.items()))
    return path


def opened(tmp_path: Path, passages: dict[str, str]) -> Bm25:
    build_index(corpus(tmp_path / "corpus.jsonl", passages), tmp_path / "index")
    return Bm25(tmp_path / "index")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Bm25:
    return opened(tmp_path_factory.mktemp("small"), PASSAGES)


def found(retriever: Retriever, query: str, k: int = 3) -> list[Passage]:
    return asyncio.run(retriever.search([query], k))[0]


def ids(retriever: Retriever, query: str, k: int = 3) -> list[str]:
    return [passage.id for passage in found(retriever, query, k)]


def test_passages_come_back_whole_and_best_first(small: Bm25) -> None:
    best = found(small, "where was Ada Voss born?")[0]
    assert (best.id, best.title, best.text) == ("17", "Ada Voss", "Ada Voss was born in Tarn and wrote novels.")
    scores = [passage.score for passage in found(small, "the town of Tarn")]
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] > 0


def test_titles_accents_and_word_endings_do_not_hide_a_passage(small: Bm25) -> None:
    assert ids(small, "novel's") == ["13", "17"]
    assert ids(small, "RAMIREZ composers") == ["9"]


def test_stop_words_count_only_where_there_is_nothing_else(small: Bm25) -> None:
    assert ids(small, "to be or not to be")[0] == "12"
    assert ids(small, "to a composer") == ["9"]


def test_scores_are_bm25_with_the_constants_on_the_card(tmp_path: Path) -> None:
    retriever = opened(tmp_path, {"a": '"Tarn"\nstone', "b": '"Wick"\nstone stone sea', "c": '"Moor"\ngrass'})
    # Words, titles twice: a = tarn tarn stone, b = wick wick stone stone sea, c = moor moor grass.
    k1, b, count, mean_length = retriever.card.k1, retriever.card.b, 3, 11 / 3
    idf = math.log(1 + (count - 2 + 0.5) / (2 + 0.5))

    def bm25(times: int, length: int) -> float:
        return idf * times * (k1 + 1) / (times + k1 * (1 - b + b * length / mean_length))

    expected = {"b": bm25(2, 5), "a": bm25(1, 3)}
    assert {p.id: p.score for p in found(retriever, "stone")} == pytest.approx(expected, rel=1e-5)


def test_ties_are_broken_by_id_whatever_the_order_of_the_corpus(tmp_path: Path) -> None:
    twins = {f"{i:03d}": '"Town"\na town' for i in range(100)}
    shuffled = list(twins.items())
    random.Random(0).shuffle(shuffled)
    for name, passages in (("sorted", twins), ("backwards", dict(reversed(twins.items()))), ("mixed", dict(shuffled))):
        build_index(corpus(tmp_path / f"{name}.jsonl", passages), tmp_path / name)
        assert ids(Bm25(tmp_path / name), "town") == ["000", "001", "002"]
        assert ids(Bm25(tmp_path / name), "town", k=1000) == sorted(twins)


HOSTILE = ['title:Tarn AND "born OR NOT (', "+Tarn -Ada ^2 ~", "\x00\udcff Tarn", "[a TO z]", "é" * 10_000, "🙂 \u202e"]
NO_WORDS = ["", " \n", "?!", "。"]


@pytest.mark.parametrize("query", HOSTILE + NO_WORDS)
def test_hostile_queries_are_text(small: Bm25, query: str) -> None:
    assert set(ids(small, query, 5)) == ({"17", "4"} if "Tarn" in query else set())


@settings(max_examples=200, deadline=None)
@given(query=st.text(st.characters(), max_size=80), k=st.integers(-1, 12))
def test_no_text_and_no_k_breaks_a_search(small: Bm25, query: str, k: int) -> None:
    assert len(found(small, query, k)) <= max(k, 0)


def test_an_index_of_another_layout_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    opened(tmp_path, PASSAGES)
    card_file = tmp_path / "index" / "card.json"
    card = json.loads(card_file.read_text())
    for changed, words in (
        (json.dumps(card | {"layout": 0}).encode(), "a bm25 index of layout 0, expected bm25 of layout 2"),
        (b"{}", "not the card of an index"),
    ):
        card_file.write_bytes(changed)
        with pytest.raises(SleuthError, match=words):
            Bm25(tmp_path / "index")
    card_file.write_text(json.dumps(card))
    (tmp_path / "index" / "meta.json").unlink()
    with pytest.raises(SleuthError, match="damaged index"):
        Bm25(tmp_path / "index")


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    path = corpus(tmp_path / "corpus.jsonl", PASSAGES)
    precious = tmp_path / "thesis" / "chapter.txt"
    precious.parent.mkdir()
    precious.write_text("years of work")
    for folder in (precious.parent, precious):
        with pytest.raises(SleuthError, match="exists and is not an index"):
            build_index(path, folder)
    for folder in (precious / "index", precious / "deeper" / "index"):
        with pytest.raises(SleuthError, match="part of its path is a file"):
            build_index(path, folder)
    assert precious.read_text() == "years of work"


def test_an_index_is_replaced_and_survives_a_build_that_fails(tmp_path: Path) -> None:
    opened(tmp_path, {"1": '"Old"\nold'})
    assert ids(opened(tmp_path, PASSAGES), "sea") == ["4"]
    for broken in ({"1": ""}, {}):
        with pytest.raises(SleuthError):
            opened(tmp_path, broken)
        assert ids(Bm25(tmp_path / "index"), "sea") == ["4"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index"]


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs the real data beside the checkout")
def test_real_questions_find_a_gold_passage_among_the_first_three(tmp_path: Path) -> None:
    build_index(REAL_DATA / "corpus.jsonl.gz", tmp_path / "index")
    tasks = load_questions(REAL_DATA / "qa_test.jsonl")
    start = time.monotonic()
    found = asyncio.run(Bm25(tmp_path / "index").search([task.question for task in tasks], 3))
    measured = recall(zip(tasks, found, strict=True))
    assert measured.n == 1720
    assert measured.value is not None
    assert measured.value >= 0.89
    assert (time.monotonic() - start) / len(tasks) < 0.01
