"""Texts of every layout become documents, and no origin is on both sides of a split."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest

from sleuth.data.documents import PARTS, document_of, files_in, part_of, read_documents
from sleuth.types import Document, SleuthError, Thought

FINEWEB = {
    "text": "Rain falls on hills.",
    "id": "<urn:uuid:0d8a309d>",
    "dump": "CC-MAIN-2013-20",
    "url": "http://example.org/rain/",
    "language_score": 0.97,
    "token_count": 6,
    "int_score": 4,
}
REAL_DATA = Path(__file__).parents[2] / ".." / "shared" / "data"


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_row_with_a_text_is_a_document_and_its_id_is_its_origin(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", {"id": "d1", "text": "One. ", "source": "wiki"}, {"text": "Two."})
    assert list(read_documents(path)) == [
        Document(id="d1", text="One. ", origin="d1", source="wiki"),
        Document(id="row_2", text="Two.", origin="row_2"),
    ]


def test_the_layout_of_fineweb_edu_is_read_and_pages_of_one_address_have_one_origin(tmp_path: Path) -> None:
    again = FINEWEB | {"id": "2", "text": "Rain fell on hills.", "url": "https://example.org/rain", "dump": "2014-01"}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([FINEWEB, again]), tmp_path / "000_00000.parquet")
    one, other = read_documents(tmp_path / "000_00000.parquet")
    assert (one.id, one.text) == (FINEWEB["id"], FINEWEB["text"])
    assert one.origin == other.origin == "example.org/rain"


def test_a_folder_on_the_hub_is_downloaded_file_by_file_as_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sample/a.jsonl", "sample/b.jsonl", "README.md"):
        file = tmp_path / "owner" / "texts" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        written(file, {"text": name})
    asked: list[str] = []

    def download(repository: str, file: str, *, dry_run: bool = False, **_: Any) -> Any:
        asked.append(file)
        path = str(tmp_path / repository / file)
        return SimpleNamespace(commit_hash="c", file_size=1, will_download=False) if dry_run else path

    below = tmp_path / "owner" / "texts"
    names = [str(file.relative_to(below)) for file in sorted(below.rglob("*.*"))]
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(list_repo_files=lambda *_, **__: names))
    place = Path("hf://owner/texts/sample")
    assert files_in(place) == [place / "a.jsonl", place / "b.jsonl"]
    documents = read_documents(place)
    assert next(documents).id == "a.jsonl:1"
    assert set(asked) == {"README.md", "sample/a.jsonl"}, "the card of the data, and what is read of it"
    assert next(documents).id == "b.jsonl:1"


def test_every_origin_is_for_one_thing_and_the_shares_are_kept() -> None:
    counts = Counter(part_of(f"origin {number}") for number in range(20_000))
    for part, share in PARTS.items():
        assert counts[part] / 20_000 == pytest.approx(share / 1000, abs=0.012)
    assert [part_of(f"d{number}") for number in range(6)] == ["sft", "rl", "rl", "rl", "rl", "rl"]


def test_where_to_cut_what_the_ending_names_and_thoughts_are_read() -> None:
    row = {"id": "w", "text": "Ada lives in Tarn. So Ada lives in Osmark.", "cut": 35, "golden_answers": ["Osmark"]}
    thoughts = [{"at": 18, "text": "Tarn is in Osmark."}]
    document = document_of(row | {"thoughts": thoughts, "type": "one_inference"}, "t:1")
    assert (document.text[document.cut :], document.golden_answers) == ("Osmark.", ("Osmark",))
    assert document.thoughts == (Thought(at=18, text="Tarn is in Osmark."),)
    assert document.kind == "one_inference"


@pytest.mark.parametrize(
    ("augmented", "text", "thoughts", "altered"),
    [
        ("Rain falls.<think>so wet</think> Go.", "Rain falls. Go.", (Thought(at=11, text="so wet"),), False),
        ("Rain  falls. Go.<think>home</think>\n", "Rain  falls. Go.\n", (Thought(at=16, text="home"),), False),
        ("Rain falls.<think> </think> Go.", "Rain falls. Go.", (), False),
        ("Rain fell.<think>so wet</think> Go.", "Rain falls. Go.", (), True),
        ("Rain falls.<think>so wet Go.", "Rain falls. Go.", (), True),
    ],
)
def test_thoughts_in_a_copy_of_the_text_are_taken_out_of_it_where_it_is_a_copy(
    augmented: str, text: str, thoughts: tuple[Thought, ...], altered: bool
) -> None:
    """As published sets have them; white space alone is no other text."""
    document = document_of({"raw_text": "Rain falls. Go.", "augmented_text": augmented}, "t:1")
    assert (document.text, document.thoughts, document.altered) == (text, thoughts, altered)


def test_a_copy_with_other_white_space_cannot_be_cut_where_the_text_is() -> None:
    row = {"raw_text": "Rain falls. Go.", "augmented_text": "Rain  falls.<think>so wet</think> Go.", "cut": 11}
    document = document_of(row, "t:1")
    assert (document.text[: document.cut], document.thoughts, document.altered) == ("Rain falls.", (), True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": " "}, "`text` is empty"),
        ({"cut": 7}, "`cut` should be a number of characters inside the text, found 7"),
        ({"thoughts": [{"at": 9, "text": "x"}]}, "`thoughts.0.at` should be a number of characters from 0 to"),
        ({"thoughts": [{"at": 4, "text": "x"}, {"at": 2, "text": "x"}]}, "`thoughts.1.at` should be a number"),
        ({"thoughts": [{"at": 4, "text": ""}]}, "`thoughts.0.text` is empty"),
        ({"thoughts": "none"}, "`thoughts` should be a list"),
        ({"id": "d1"}, "id 'd1' was used by an earlier document; ids should be unique"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = written(tmp_path / "t.jsonl", {"id": "d1", "text": "First."}, {"id": "d2", "text": "Second."[:7]} | change)
    with pytest.raises(SleuthError) as caught:
        list(read_documents(path))
    assert str(caught.value).startswith(f"{path}:2: {message}")


def test_what_holds_no_text_is_told_what_would(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / "a.csv"):
        with pytest.raises(SleuthError, match=r"no texts there; name a file that ends in \.txt, .* or \.parquet"):
            files_in(place)
    (tmp_path / "broken.txt").write_bytes(b"\xff")
    with pytest.raises(SleuthError, match=r"broken\.txt: not UTF-8 text"):
        list(read_documents(tmp_path / "broken.txt"))


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs the real data beside the checkout")
def test_real_texts_load_whole_and_no_part_shares_one() -> None:
    documents = list(read_documents(REAL_DATA / "midtrain_text.jsonl.gz"))
    assert len(documents) == 1180
    parts = Counter(part_of(document.origin) for document in documents)
    assert parts == {"sft": 587, "rl": 524, "held_out": 69}
