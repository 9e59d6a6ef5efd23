from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from sleuth.retrieval.corpus import corpus_file, corpus_hash, parse_contents, read_corpus
from sleuth.types import Passage, SleuthError

ADA = {"id": "17", "contents": '"Ada Voss"\nAda Voss was born in Tarn.\nShe wrote.'}
TARN = {"id": "4", "contents": '"Tarn"\nTarn is a town.'}


def written(path: Path, *rows: Mapping[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ('""Heroes" (song)"\nA song.', '"Heroes" (song)', "A song."),
        ("Tarn\nA town.", "Tarn", "A town."),
        ('"Tarn"', "Tarn", ""),
        ("A lone line of text.", "", "A lone line of text."),
        ('"\nA lone quote.', '"', "A lone quote."),
    ],
)
def test_unusual_contents_are_split_without_loss(contents: str, title: str, text: str) -> None:
    assert parse_contents("1", contents) == Passage(id="1", title=title, text=text)


BEIR = (
    {"_id": "17", "title": "Ada Voss", "text": "Ada Voss was born in Tarn.\nShe wrote.", "metadata": {"url": "a"}},
    {"_id": "4", "title": "Tarn", "text": "Tarn is a town."},
)


def test_a_corpus_in_the_layout_of_beir_is_the_same_corpus(tmp_path: Path) -> None:
    ours = list(read_corpus(written(tmp_path / "c.jsonl", ADA, TARN)))
    assert list(read_corpus(written(tmp_path / "corpus.jsonl", *BEIR))) == ours
    table = pyarrow.Table.from_pylist(list(BEIR))
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet")
    assert list(read_corpus(tmp_path / "c.parquet")) == ours
    assert corpus_file(tmp_path) == tmp_path / "corpus.jsonl"
    assert corpus_file(tmp_path / "texts") == tmp_path / "texts"
    assert corpus_file(tmp_path / "c.jsonl") == tmp_path / "c.jsonl"


def test_titles_of_beir_may_be_missing_and_texts_blank_and_a_title_is_one_line(tmp_path: Path) -> None:
    rows = (
        {"_id": "1", "text": "a"},
        {"_id": "2", "title": None, "text": " "},
        {"_id": "3", "title": "b\nc", "text": ""},
    )
    assert list(read_corpus(written(tmp_path / "c.jsonl", *rows))) == [
        Passage(id="1", title="", text="a"),
        Passage(id="2", title="", text=""),
        Passage(id="3", title="b c", text=""),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "5"}, "no `contents`; the row has id"),
        ({"id": "5", "contents": ["x"]}, "`contents` should be a string, found list"),
        ({"id": "5", "contents": ""}, "`contents` is empty"),
        ({"id": "17", "contents": "x"}, "id '17' was used by an earlier passage; ids should be unique"),
        ({"_id": "5"}, "no `text`; the row has _id"),
        ({"_id": "5", "title": 1, "text": "x"}, "`title` should be a string, found int"),
        ({"_id": "5", "title": "x", "text": None}, "`text` should be a string, found NoneType"),
        ({"_id": "5", "text": "\udcff"}, "`text` holds an unpaired surrogate, which is not text"),
    ],
)
def test_a_malformed_passage_is_named_by_file_and_line(tmp_path: Path, row: dict[str, object], message: str) -> None:
    path = written(tmp_path / "c.jsonl", ADA, TARN, row)
    with pytest.raises(SleuthError) as caught:
        list(read_corpus(path))
    assert str(caught.value) == f"{path}:3: {message}"


def test_a_corpus_is_streamed(tmp_path: Path) -> None:
    first = next(read_corpus(written(tmp_path / "c.jsonl", ADA, {"id": "broken"})))
    assert first.id == "17"


def test_the_hash_is_of_the_passages_and_not_of_the_file_format(tmp_path: Path) -> None:
    plain = written(tmp_path / "c.jsonl", ADA, TARN)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([ADA, TARN]), tmp_path / "c.parquet")
    assert corpus_hash(read_corpus(plain)) == corpus_hash(read_corpus(tmp_path / "c.parquet"))
    swapped = written(tmp_path / "swapped.jsonl", TARN, ADA)
    assert corpus_hash(read_corpus(plain)) != corpus_hash(read_corpus(swapped))
