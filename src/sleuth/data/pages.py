"""Texts of files that people write, and how they are split into passages: plain text, markdown, HTML, PDF, Word, slides
and, in a folder, tables.

Nothing in a file is executed, followed or downloaded: a page is its text. The extra `documents` has the libraries.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import resource
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

from sleuth.data.hub import local_file
from sleuth.data.layouts import TEXTS, first_column, renamed
from sleuth.data.parquet_worker import limit
from sleuth.data.rows import FORMATS, Row, rows_and_faults
from sleuth.host.escapes import one_line
from sleuth.host.variables import ROW
from sleuth.types import SleuthError

NUMBERED = (".pdf", ".pptx")
"""Files that have pages."""
PAGES = (".txt", ".md", ".html", ".htm", ".docx", *NUMBERED)
KINDS = (*PAGES, *FORMATS)
TABLES = (".csv", ".tsv")
MAX_DEPTH = 16
"""Folders within folders that are read."""
MAX_PDF_PAGES = 10_000
MAX_TAGS = 1_000_000
NEEDS = {".pdf": "pypdf", ".html": "bs4", ".htm": "bs4", ".docx": "docx", ".pptx": "pptx"}
"""The package that reads a kind of file."""
OLD_OFFICE = b"\xd0\xcf\x11\xe0"
"""What a Word file or slides begin with if they have a password, or are older than 2007."""
FEW = 5_000
"""Tags that any arrangement leaves readable within seconds; pages with more are read by a process with limits."""
SECONDS, BYTES_PER_SECOND, MEMORY = 20, 100_000, 24
"""What reading a page may take: seconds, and one more for so many bytes; and times the bound of a row."""
READ_BY_ONE = 200
"""Files that one process reads, so that none has the memory of thousands."""
SEARCHED_PARENTS = 32
"""Tags around a text among which its paragraph is looked for, so that no nesting makes reading slow."""
BLOCKS = ("p", "div", "li", "td", "th", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "blockquote", "pre")
"""Tags of HTML that begin and end a paragraph."""
PASSAGE_WORDS = 100
"""Words of a passage; wiki-18, on which Search-R1 trains, has as many."""
LONG_WORD = 400
"""Characters after which a text without spaces is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The text of a file: `Page(title="Ada Voss", parts=("Ada Voss was born in Tarn.",))`; without a title of its own,
    the file's name is its title. The parts are its pages, empty ones too, if they are `numbered`; else there is one."""

    title: str
    parts: tuple[str, ...]
    numbered: bool = False

    @property
    def text(self) -> str:
        return "\n\n".join(part for part in self.parts if part)


def files_below(folder: Path, but: Path | None = None, depth: int = MAX_DEPTH) -> Iterator[tuple[Path, str]]:
    """(file, why it is left out) of a folder and the folders in it, in the order of their paths; "" if it is read.
    Hidden files and the folder `but` are passed over, and links are not followed."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        yield folder, f"cannot be read: {error.strerror or error}"
        return
    for entry in entries:
        path = folder / entry.name
        if entry.name.startswith(".") or path == but:
            continue
        if entry.is_symlink():
            yield path, "a link, which is not followed"
        elif entry.is_dir():
            deep = f"more than {MAX_DEPTH} folders within folders"
            yield from files_below(path, but, depth - 1) if depth > 1 else [(path, deep)]
        elif not entry.is_file():
            yield path, "no ordinary file"
        else:
            yield path, "" if entry.name.lower().endswith(KINDS) else "no kind of document that is read"


def pages_and_rows(path: Path, names: Mapping[str, str]) -> Iterator[tuple[str, Page | Row | SleuthError]]:
    """(place, what is there) of a page or of each row of a file, local or on the hub. `names` adds names of columns."""
    return _of_file(local_file(path), names)


def document(file: Path, names: Mapping[str, str]) -> Iterator[tuple[str, Page | Row]]:
    """(place, what is there) of one file of a folder: its page, or its rows. A row of a table without a column of texts
    becomes the text `town: Tarn; people: 300`. Raises SleuthError where it cannot be read."""
    plain = False
    for at, (where, found) in enumerate(_of_file(file, names)):
        if isinstance(found, SleuthError):
            raise found
        if not isinstance(found, Page) and file.name.lower().endswith(TABLES):
            plain = plain or (at == 0 and first_column(found, TEXTS) is None)
            cells = (f"{name}: {', '.join(cell) if isinstance(cell, list) else cell}" for name, cell in found.items())
            found = {"text": "; ".join(cells)} if plain else found
        yield where, found


def name_as_text(name: str) -> str:
    """The name of a file with escapes for bytes that are no UTF-8 and for control characters, as ids are shown:
    `caf\\xe9.txt`."""
    return one_line(os.fsencode(name).decode(errors="backslashreplace"))


def is_of_pages(path: Path) -> bool:
    """Whether it is a page or a folder, and not a file of rows."""
    return path.is_dir() or path.name.lower().endswith(PAGES)


def read_page(file: Path) -> Page:
    """The text of one file. Raises SleuthError with the file's name if it cannot be read, or has no text."""
    kind = file.suffix.lower()
    if not file.is_file():
        raise SleuthError(f"{file}: no such file")
    try:
        if file.stat().st_size > ROW.bytes:
            raise SleuthError(f"{file}: {ROW.exceeded()}")
        content = file.read_bytes()
    except OSError as error:
        raise SleuthError(f"{file}: cannot be read: {error.strerror or error}") from None
    if kind in NEEDS and find_spec(NEEDS[kind]) is None:
        raise SleuthError(f'{file}: needs the package {NEEDS[kind]}: pip install "sleuth[documents]"')
    is_hard = kind in (".docx", *NUMBERED) or (READERS.get(kind) is _html and content.count(b"<") > FEW)
    title, parts = _APART.read(file, len(content)) if is_hard else _read(content, file)
    parts = [
        re.sub(r"\n{3,}", "\n\n", "\n".join(" ".join(x.split()) for x in part.splitlines())).strip() for part in parts
    ]
    if not any(parts):
        raise SleuthError(f"{file}: has no text{': a scan? it needs OCR first' if kind == '.pdf' else ''}")
    if sum(map(len, parts)) > ROW.bytes:
        raise SleuthError(f"{file}: its text is {ROW.exceeded()}")
    return Page(title=" ".join(title.split()) or name_as_text(file.stem), parts=tuple(parts), numbered=kind in NUMBERED)


def _read(content: bytes, file: Path) -> tuple[str, list[str]]:
    """(title, parts), as of each of `READERS`."""
    return READERS.get(file.suffix.lower(), _plain)(content, file)


class _Apart:
    """Reads pages by a process with limits: a few kilobytes of PDF or of unclosed tags can take the libraries hours."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._left = 0
        atexit.register(self.close)

    def read(self, file: Path, size: int) -> tuple[str, list[str]]:
        """See `_read`. Raises SleuthError for what is wrong with the file, and if the limits end the process."""
        seconds = SECONDS + size // BYTES_PER_SECOND
        answer = self._ask(file, seconds)
        if answer is None:
            bound = f"more than {seconds} s or {MEMORY * ROW.megabytes:,} MB"
            raise SleuthError(f"{file}: reading its text takes {bound}; split it, or convert it to plain text")
        if isinstance(answer, str):
            raise SleuthError(answer)
        return answer[0], answer[1]

    def _ask(self, file: Path, seconds: int) -> Any:
        """The answer in JSON; None if there is none in time."""
        if not self._left:
            self.close()
        if self._process is None:
            command = [sys.executable, "-P", "-m", "sleuth.data.pages"]
            pipe, self._left = subprocess.PIPE, READ_BY_ONE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self._left -= 1
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([str(file), seconds]).encode() + b"\n")
            self._process.stdin.flush()
            if select.select([self._process.stdout], [], [], 2 * seconds)[0]:
                return json.loads(self._process.stdout.readline())
        except (OSError, ValueError):  # it has ended
            pass
        except BaseException:  # Ctrl-C: its answer would be taken for the next file's
            self.close()
            raise
        self.close()
        return None

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


_APART = _Apart()


def main() -> None:
    """Answers a line `[file, seconds]` with the title and the parts of the file, or what is wrong with it, in JSON."""
    answers, sys.stdout = sys.stdout, sys.stderr  # the libraries may print
    limit(MEMORY * ROW.bytes, None)
    for line in sys.stdin:
        name, seconds = json.loads(line)
        file, used = Path(name), resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime) + 1 + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        try:
            title, parts = _read(file.read_bytes(), file)
            answer = f"{file}: its text is {ROW.exceeded()}" if sum(map(len, parts)) > ROW.bytes else [title, parts]
        except SleuthError as error:
            answer = str(error)
        except OSError as error:
            answer = f"{file}: cannot be read: {error.strerror or error}"
        print(json.dumps(answer), file=answers, flush=True)


def split_text(text: str, most: int = PASSAGE_WORDS) -> Iterator[str]:
    """Pieces of at most `most` words, which end where a sentence or a paragraph does, if one is short enough."""
    piece: list[str] = []
    for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n", text):
        words = [word[at : at + LONG_WORD] for word in sentence.split() for at in range(0, len(word), LONG_WORD)]
        if piece and len(piece) + len(words) > most:
            yield " ".join(piece)
            piece = []
        piece += words
        while len(piece) > most:
            yield " ".join(piece[:most])
            piece = piece[most:]
    if piece:
        yield " ".join(piece)


def _of_file(file: Path, names: Mapping[str, str]) -> Iterator[tuple[str, Page | Row | SleuthError]]:
    if file.is_file() and not file.name.lower().endswith(KINDS):
        raise SleuthError(f"{file}: unknown kind of file; its name should end in one of {', '.join(KINDS)}")
    if not file.name.lower().endswith(PAGES):
        yield from renamed(rows_and_faults(file), names)
        return
    try:
        yield str(file), read_page(file)
    except SleuthError as error:
        yield str(file), error


def _plain(content: bytes, file: Path) -> tuple[str, list[str]]:
    try:
        return "", [content.decode("utf-8-sig")]
    except UnicodeDecodeError:
        raise SleuthError(f"{file}: not UTF-8 text") from None


def _markdown(content: bytes, file: Path) -> tuple[str, list[str]]:
    """The first heading is the title; the marks of markdown stay."""
    _, [text] = _plain(content, file)
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return (heading[1].strip("# ") if heading else ""), [text]


def _html(content: bytes, file: Path) -> tuple[str, list[str]]:
    """What a reader sees, without scripts and styles, a paragraph for each block."""
    from bs4 import BeautifulSoup  # pyright: ignore[reportMissingImports]
    from bs4.element import NavigableString  # pyright: ignore[reportMissingImports]

    if content.count(b"<") > MAX_TAGS:
        raise SleuthError(f"{file}: has more than {MAX_TAGS:,} tags; split it")
    page = BeautifulSoup(content, "html.parser")
    title, parts, before = "", [], None
    for text in page.descendants:
        if type(text) is not NavigableString:  # its subclasses are comments, scripts and styles
            continue
        if getattr(text.parent, "name", None) == "title":
            title = title or str(text)
            continue
        block = next((one for one in islice(text.parents, SEARCHED_PARENTS) if one.name in BLOCKS), None)
        same = "\n" if getattr(text.previous_element, "name", None) == "br" else ""
        parts += [same if block is before else "\n\n", str(text)]
        before = block
    return title, ["".join(parts)]


def _pdf(content: bytes, file: Path) -> tuple[str, list[str]]:
    """The text of each page."""
    import logging

    import pypdf  # pyright: ignore[reportMissingImports]

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it prints a line for each flaw that it mends
    document = pypdf.PdfReader(BytesIO(content))
    if document.is_encrypted and not document.decrypt(""):
        raise SleuthError(f"{file}: has a password; save a copy without one")
    if len(document.pages) > MAX_PDF_PAGES:
        raise SleuthError(f"{file}: has {len(document.pages):,} pages, more than {MAX_PDF_PAGES:,}; split it")
    title = document.metadata.title if document.metadata is not None else None
    return title if isinstance(title, str) else "", [page.extract_text() for page in document.pages]


def _docx(content: bytes, file: Path) -> tuple[str, list[str]]:
    """Paragraphs and tables in their order; the first heading is the title."""
    import docx  # pyright: ignore[reportMissingImports]

    _require_small(content, file)
    document: Any = docx.Document(BytesIO(content))
    title, parts = "", []
    for block in document.iter_inner_content():
        if hasattr(block, "rows"):
            parts += [" | ".join(dict.fromkeys(cell.text for cell in row.cells)) for row in block.rows]
            continue
        parts.append(block.text)
        if not title and str(block.style.name).startswith(("Title", "Heading")):
            title = block.text
    return title or document.core_properties.title or "", ["\n\n".join(parts)]


def _pptx(content: bytes, file: Path) -> tuple[str, list[str]]:
    """The texts, tables and notes of each slide; the title is that of the first that has one."""
    import pptx  # pyright: ignore[reportMissingImports]

    def texts(shapes: Any) -> Iterator[str]:
        for shape in shapes:
            if hasattr(shape, "shapes"):  # a group
                yield from texts(shape.shapes)
            elif shape.has_text_frame:
                yield shape.text_frame.text
            elif shape.has_table:
                yield from (" | ".join(cell.text for cell in row.cells) for row in shape.table.rows)

    _require_small(content, file)
    title, parts = "", []
    for slide in pptx.Presentation(BytesIO(content)).slides:
        title = title or (slide.shapes.title.text_frame.text if slide.shapes.title is not None else "")
        notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
        parts.append("\n\n".join([*texts(slide.shapes), notes.text if notes is not None else ""]))
    return title, parts


def _require_small(content: bytes, file: Path) -> None:
    """Raises SleuthError for a file that unpacks to much more than text and pictures."""
    from zipfile import ZipFile

    if content.startswith(OLD_OFFICE):
        raise SleuthError(f"{file}: has a password, or is of before 2007; save it anew, without a password")
    with ZipFile(BytesIO(content)) as packed:
        if sum(one.file_size for one in packed.infolist()) > ROW.bytes + len(content):  # pictures do not shrink
            raise SleuthError(f"{file}: unpacked it is {ROW.exceeded()}")


def _whole(read: Callable[[bytes, Path], tuple[str, list[str]]]) -> Callable[[bytes, Path], tuple[str, list[str]]]:
    """A reader that raises SleuthError for whatever its library raises: none says what a damaged file may raise."""

    def checked(content: bytes, file: Path) -> tuple[str, list[str]]:
        try:
            return read(content, file)
        except SleuthError:
            raise
        except MemoryError:
            os._exit(1)  # the limit of `_Apart`, which says so
        except Exception as error:
            kind, reason = file.suffix.lower()[1:], " ".join(str(error).split())[:120] or type(error).__name__
            raise SleuthError(f"{file}: a damaged {kind}, or none ({reason})") from None

    return checked


READERS = {
    ".pdf": _whole(_pdf),
    ".docx": _whole(_docx),
    ".pptx": _whole(_pptx),
    ".html": _html,
    ".htm": _html,
    ".md": _markdown,
}

if __name__ == "__main__":
    main()
