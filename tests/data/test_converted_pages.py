"""Pages that people write become texts, of bounded size, and nothing in them is more than text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pdfs import page_of

from sleuth.data.documents import read_documents
from sleuth.data.pages import MAX_DEPTH, Page, files_below, pages_and_rows, read_page, split_text
from sleuth.types import SleuthError

HTML = (
    "<html><head><title>Towns </title><style>p{}</style></head><body><!-- hidden --><h1>Towns</h1>"
    "<p>Tarn <b>t</b>oo.<script>alert(1)</script><p>a<br>b<div>Cells<table><tr><td>x<td>y</table>end</div></body>"
)


def refusal(file: Path) -> str:
    with pytest.raises(SleuthError) as caught:
        read_page(file)
    return str(caught.value).removeprefix(f"{file}: ")


def written(file: Path, content: str | bytes) -> Path:
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def test_text_and_markdown_are_their_text(tmp_path: Path) -> None:
    page = read_page(written(tmp_path / "a.md", "\ufeffintro\n\n# Ada Voss #\n\n\n\nborn   in *Tarn*\n"))
    assert (page.title, page.text) == ("Ada Voss", "intro\n\n# Ada Voss #\n\nborn in *Tarn*")
    assert read_page(written(tmp_path / "b.TXT", "x")).title == "b"
    assert refusal(written(tmp_path / "c.txt", b"\xff\xfe")) == "not UTF-8 text"
    assert refusal(written(tmp_path / "d.txt", " \n")) == "has no text"


def test_html_is_what_a_reader_sees(tmp_path: Path) -> None:
    pytest.importorskip("bs4")
    page = read_page(written(tmp_path / "a.html", HTML))
    assert page.title == "Towns"
    assert page.text.split("\n\n") == ["Towns", "Tarn too.", "a\nb", "Cells", "x", "y", "end"]
    assert read_page(written(tmp_path / "deep.html", "<div>" * 5_000 + "x")).text == "x"


def test_a_pdf_is_its_text_and_one_without_or_with_a_password_is_refused(tmp_path: Path) -> None:
    pypdf = pytest.importorskip("pypdf")
    plain = written(tmp_path / "a.pdf", page_of("Ada Voss was born in Tarn."))
    assert read_page(plain).text == "Ada Voss was born in Tarn."
    writer = pypdf.PdfWriter(clone_from=plain)
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(tmp_path / "locked.pdf")
    assert refusal(tmp_path / "locked.pdf") == "has a password; save a copy without one"
    assert refusal(written(tmp_path / "scan.pdf", page_of(""))) == "has no text: a scan? it needs OCR first"
    assert refusal(written(tmp_path / "cut.pdf", page_of("x")[:200])).startswith("a damaged pdf, or none (")


@pytest.mark.parametrize(("name", "package"), [("a.html", "bs4"), ("a.pdf", "pypdf")])
def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    said = refusal(written(tmp_path / name, "x"))
    assert said.endswith('pip install "sleuth[documents]"')
    assert package in said


def test_sizes_and_depths_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEUTH_MAX_ROW_MB", "1")
    assert refusal(written(tmp_path / "big.txt", "x" * 1_000_001)).startswith("larger than 1 MB; SLEUTH_MAX_ROW_MB")
    deep = tmp_path.joinpath(*["d"] * (MAX_DEPTH + 1))
    deep.mkdir(parents=True)
    reasons = [reason for _, reason in files_below(tmp_path)]
    assert reasons == ["", f"more than {MAX_DEPTH} folders within folders"]


def test_bytes_of_a_name_that_are_no_text_are_escaped(tmp_path: Path) -> None:
    for name in (b"caf\xe9.txt", b"caf\xe8.txt"):
        (Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))).write_text(f"Tarn has a cafe, {name!r}.")
    found = [one for file, _ in files_below(tmp_path) for one in pages_and_rows(file, {})]
    assert [page.title for _, page in found if isinstance(page, Page)] == ["caf\\xe8", "caf\\xe9"]
    assert {document.id for document in read_documents(tmp_path)} == {"caf\\xe8.txt", "caf\\xe9.txt"}


def test_links_and_hidden_files_are_left_out(tmp_path: Path) -> None:
    for name in ("b.txt", ".hidden.txt", "a/c.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "link.txt").symlink_to(tmp_path / "b.txt")
    (tmp_path / "circle").symlink_to(tmp_path)
    assert [file for file, reason in files_below(tmp_path) if not reason] == [tmp_path / "a/c.md", tmp_path / "b.txt"]


def test_passages_end_with_sentences_and_none_is_too_long() -> None:
    text = "One two three. Four five.\n\nSix seven eight nine ten eleven twelve."
    assert list(split_text(text, most=5)) == ["One two three. Four five.", "Six seven eight nine ten", "eleven twelve."]
    assert max(map(len, split_text("x" * 100_000, most=5))) < 3_000
    assert " ".join(split_text(text, most=4)).split() == text.split()
