"""Texts of files that people write: plain text, markdown, HTML and PDF, and how they are split into passages.

Nothing in a file is executed, followed or downloaded: a page is its text. The extra `documents` has the libraries.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sleuth.data.hub import local_file
from sleuth.data.layouts import renamed
from sleuth.data.rows import FORMATS, Row, rows_and_faults
from sleuth.host.variables import ROW
from sleuth.types import SleuthError

PAGES = (".txt", ".md", ".html", ".htm", ".pdf")
KINDS = (*PAGES, *FORMATS)
MAX_DEPTH = 16
"""Folders within folders that are read."""
MAX_PDF_PAGES = 10_000
MAX_TAGS = 1_000_000
FEW = 5_000
"""Tags that any arrangement leaves readable within seconds; pages with more are read by a process with limits."""
SECONDS, BYTES_PER_SECOND, MEMORY = 20, 100_000, 24
"""What reading a page may take: seconds, and one more for so many bytes; and times the bound of a row."""
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
    """The text of a file: `Page(title="Ada Voss", text="Ada Voss was born in Tarn.")`; without a title of its own, the
    file's name is its title."""

    title: str
    text: str


def files_below(folder: Path) -> list[Path]:
    """The pages and files of rows of a folder and the folders in it, in the order of their paths. Hidden files and
    links are left out. Raises SleuthError for a folder without any, and for one that is too deep."""
    found = sorted(_walk(folder, MAX_DEPTH))
    if not found:
        raise SleuthError(f"{folder}: nothing to read in this folder: no file in it ends in {', '.join(KINDS)}")
    return found


def pages_and_rows(path: Path, names: Mapping[str, str]) -> Iterator[tuple[str, str, Page | Row | SleuthError]]:
    """(place, name, what is there) for each page and each row of a file, local or on the hub, or of a folder. The name
    of a page is its path in the folder, and of a row what its id begins with. `names` adds names of columns."""
    if not path.is_dir():
        yield from _of_file(local_file(path), name_as_text(path.name), "", names)
        return
    for file in files_below(path):
        name = name_as_text(file.relative_to(path).as_posix())
        yield from _of_file(file, name, f"{name}:", names)


def name_as_text(name: str) -> str:
    """The name of a file with its bytes that are no UTF-8 escaped, for ids are text: `caf\\xe9.txt`."""
    return os.fsencode(name).decode(errors="backslashreplace")


def is_of_pages(path: Path) -> bool:
    """Whether it is a page or a folder, and not a file of rows."""
    return path.is_dir() or path.name.lower().endswith(PAGES)


def read_page(file: Path) -> Page:
    """The text of one file. Raises SleuthError with the file's name if it cannot be read, or has no text."""
    if not file.is_file():
        raise SleuthError(f"{file}: no such file")
    try:
        if file.stat().st_size > ROW.bytes:
            raise SleuthError(f"{file}: {ROW.exceeded()}")
        content = file.read_bytes()
    except OSError as error:
        raise SleuthError(f"{file}: cannot be read: {error.strerror or error}") from None
    try:
        is_hard = file.suffix.lower() == ".pdf" or (
            READERS.get(file.suffix.lower()) is _html and content.count(b"<") > FEW
        )
        title, text = (_read_apart if is_hard else _read)(content, file)
    except ImportError as error:
        raise SleuthError(f'{file}: needs the package {error.name}: pip install "sleuth[documents]"') from None
    text = "\n".join(" ".join(line.split()) for line in text.splitlines())
    text = re.sub(r"\n{3,}", "\n\n", text).strip()
    if not text:
        reason = "; a scan has pictures of it, and needs OCR first" if file.suffix.lower() == ".pdf" else ""
        raise SleuthError(f"{file}: has no text{reason}")
    if len(text) > ROW.bytes:
        raise SleuthError(f"{file}: its text is {ROW.exceeded()}")
    return Page(title=" ".join(title.split()) or name_as_text(file.stem), text=text)


def _read(content: bytes, file: Path) -> tuple[str, str]:
    """(title, text), as of each of `READERS`."""
    return READERS.get(file.suffix.lower(), _plain)(content, file)


def _read_apart(content: bytes, file: Path) -> tuple[str, str]:
    """`_read` by a process with limits: a few kilobytes of PDF or of unclosed tags can take the libraries hours."""
    seconds = SECONDS + len(content) // BYTES_PER_SECOND
    if file.suffix.lower() == ".pdf":
        import pypdf  # noqa: F401  # pyright: ignore[reportMissingImports]
    else:
        import bs4  # noqa: F401  # pyright: ignore[reportMissingImports]
    command = [sys.executable, "-P", "-m", "sleuth.data.pages", str(file), str(seconds)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=2 * seconds, check=False)
        answer = json.loads(done.stdout or "null")
    except (subprocess.TimeoutExpired, ValueError):
        answer = None
    if answer is None:
        bound = f"more than {seconds} s or {MEMORY * ROW.megabytes:,} MB"
        raise SleuthError(f"{file}: reading its text takes {bound}; split it, or convert it to plain text")
    if isinstance(answer, str):
        raise SleuthError(answer)
    title, text = answer
    return title, text


def main() -> None:
    """Prints the title and the text of the file that the first argument names, in JSON, or what is wrong with it."""
    file = Path(sys.argv[1])
    _limit(MEMORY * ROW.bytes, int(sys.argv[2]))
    try:
        title, text = _read(file.read_bytes(), file)
        answer = f"{file}: its text is {ROW.exceeded()}" if len(text) > ROW.bytes else [title, text]
    except SleuthError as error:
        answer = str(error)
    print(json.dumps(answer))


def _limit(memory: int, seconds: int) -> None:
    """From here on: so many bytes more, so many seconds of the processor, and no core file of what crashes."""
    with suppress(OSError, ValueError):  # no /proc: other systems do not bound addresses either
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + memory, taken + memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


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


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    if not depth:
        raise SleuthError(f"{folder}: more than {MAX_DEPTH} folders within folders; name the one that holds the texts")
    with os.scandir(folder) as entries:
        for entry in entries:
            path = folder / entry.name
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if entry.is_dir():
                yield from _walk(path, depth - 1)
            elif entry.is_file() and entry.name.lower().endswith(KINDS):
                yield path


def _of_file(
    file: Path, name: str, prefix: str, names: Mapping[str, str]
) -> Iterator[tuple[str, str, Page | Row | SleuthError]]:
    if file.is_file() and not file.name.lower().endswith(KINDS):
        raise SleuthError(f"{file}: unknown kind of file; its name should end in one of {', '.join(KINDS)}")
    if not file.name.lower().endswith(PAGES):
        yield from ((where, prefix, row) for where, row in renamed(rows_and_faults(file), names))
        return
    try:
        yield str(file), name, read_page(file)
    except SleuthError as error:
        yield str(file), name, error


def _plain(content: bytes, file: Path) -> tuple[str, str]:
    try:
        return "", content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SleuthError(f"{file}: not UTF-8 text") from None


def _markdown(content: bytes, file: Path) -> tuple[str, str]:
    """The first heading is the title; the marks of markdown stay."""
    _, text = _plain(content, file)
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return (heading[1].strip("# ") if heading else ""), text


def _html(content: bytes, file: Path) -> tuple[str, str]:
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
    return title, "".join(parts)


def _pdf(content: bytes, file: Path) -> tuple[str, str]:
    """The text of each page."""
    import logging
    from io import BytesIO

    import pypdf  # pyright: ignore[reportMissingImports]
    from pypdf.errors import PyPdfError  # pyright: ignore[reportMissingImports]

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it prints a line for each flaw that it mends
    try:
        document = pypdf.PdfReader(BytesIO(content))
        if document.is_encrypted and not document.decrypt(""):
            raise SleuthError(f"{file}: has a password; save a copy without one")
        if len(document.pages) > MAX_PDF_PAGES:
            raise SleuthError(f"{file}: has {len(document.pages):,} pages, more than {MAX_PDF_PAGES:,}; split it")
        title = document.metadata.title if document.metadata is not None else None
        return title if isinstance(title, str) else "", "\n\n".join(page.extract_text() for page in document.pages)
    except SleuthError:
        raise
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OSError) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise SleuthError(f"{file}: a damaged PDF, or no PDF ({reason})") from None


READERS = {".pdf": _pdf, ".html": _html, ".htm": _html, ".md": _markdown}

if __name__ == "__main__":
    main()
