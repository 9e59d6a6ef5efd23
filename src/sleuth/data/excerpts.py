"""Cuts documents by the tokens of a model into tasks of continuing them.

Encoding some ten thousand long documents takes minutes, so tokens are kept between starts of a run: a file holds what
one reading of texts encoded with one tokenizer, by the hash of each text, so that changed texts are encoded again. A
damaged file is ignored and written anew, and the oldest files go when all are larger than `SLEUTH_KEPT_TOKENS_MB`.
"""

from __future__ import annotations

import hashlib
import os
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerFast

from sleuth.data.documents import part_of, read_documents
from sleuth.host.variables import KEPT_TOKENS
from sleuth.recipe.data import TextRecipe
from sleuth.recipe.strict import StrictModel
from sleuth.render import CHARACTER_TOKENS, UNFINISHED, Renderer, decode
from sleuth.types import Continuation, Document, Piece, Segment, SleuthError, Task

CHARACTERS_A_TOKEN = 12
"""Characters of a long document that are encoded for each token that is needed; English has about four a token."""
WORTH_SECONDS = 5.0
"""Seconds of encoding from which tokens are kept."""
SURE = 16
"""Tokens at the end of a piece of text that the text after it could change."""


@dataclass(slots=True, kw_only=True)
class Excerpts:
    """The tasks cut from documents, and how many documents were `read`; of those, how many are for `another` part,
    `repeated` an earlier one or were too `short`."""

    tasks: list[Task]
    read: int = 0
    another: int = 0
    repeated: int = 0
    short: int = 0

    def __str__(self) -> str:
        left_out = {"for another part": self.another, "repeated": self.repeated, "too short": self.short}
        counts = [f"{count:,} {why}" for why, count in left_out.items() if count]
        details = f" ({', '.join(counts)})" if counts else ""
        return f"{len(self.tasks):,} prefixes with their suffixes, from {self.read:,} documents{details}"


def excerpts_of(data: TextRecipe, tokenizer: PreTrainedTokenizerFast) -> Excerpts:
    """The first `data.limit` tasks of the documents; reads no further than needed.

    Of documents with the same first prefix only the first one is used, whichever part it is for: a prefix that one part
    trains on would otherwise be evaluated in another. Raises SleuthError for a malformed row, and if there is no task.
    """
    found = Excerpts(tasks=[])
    with keeping_tokens(tokenizer, data) as renderer:
        found.tasks = [_task(*window) for window in islice(_windows(data, renderer, found), data.limit)]
    if not found.tasks:
        raise SleuthError(f"{data.texts}: nothing to continue: {found}")
    return found


def chunks_of(data: TextRecipe, tokenizer: PreTrainedTokenizerFast) -> list[Document]:
    """The same windows as documents, whose text is prefix and suffix together."""
    found = _windows(data, Renderer(tokenizer), Excerpts(tasks=[]))
    chunks = [
        replace(document, id=_name(document, number), text=window.prefix.text + window.suffix.text, cut=None)
        for document, number, window in islice(found, data.limit)
    ]
    if not chunks:
        raise SleuthError(f"{data.texts}: no document has {data.prefix_tokens + data.suffix_tokens} tokens")
    return chunks


def _windows(data: TextRecipe, renderer: Renderer, found: Excerpts) -> Iterator[tuple[Document, int, Continuation]]:
    """Each window with its document and its number there; counts the documents in `found`."""

    def repeated() -> None:
        found.read, found.repeated = found.read + 1, found.repeated + 1

    prefixes: set[tuple[int, ...]] = set()
    for document in read_documents(data.texts, repeated):
        windows = list(islice(continuations(document, data, renderer), data.windows))
        prefix = windows[0].prefix.tokens if windows else ()
        if prefix in prefixes:
            repeated()
            continue
        found.read += 1
        if data.part is not None and part_of(document.origin) != data.part:
            found.another += 1
        elif not windows:
            found.short += 1
        else:
            yield from ((document, number, window) for number, window in enumerate(windows))
        if windows:
            prefixes.add(prefix)


def continuations(document: Document, data: TextRecipe, renderer: Renderer) -> Iterator[Continuation]:
    """The windows of a document, one after the other: a prefix of exactly `prefix_tokens` and a suffix of exactly
    `suffix_tokens` each; or, if the document says where to cut, one window of at most so many.

    The name of a control token in a document is encoded as plain text. No cut splits a character: if one would, the
    window starts up to three tokens later.
    """
    if document.cut is not None:
        prefix = plain_tokens(renderer, document.text[: document.cut])[-data.prefix_tokens :]
        suffix = plain_tokens(renderer, document.text[document.cut :])[: data.suffix_tokens]
        yield _continuation(document, renderer, prefix, suffix)
        return
    window = data.prefix_tokens + data.suffix_tokens
    tokens = _first_tokens(
        renderer, document.text, max(data.windows * (window + CHARACTER_TOKENS), data.least_tokens or 0)
    )
    if len(tokens) < (data.least_tokens or 0):
        return
    start = 0
    while start + window <= len(tokens):
        for begin in range(start, min(start + CHARACTER_TOKENS, len(tokens) - window) + 1):
            cut = begin + data.prefix_tokens
            found = _continuation(document, renderer, tokens[begin:cut], tokens[cut : begin + window])
            if not _cuts_a_character(found):
                yield found
                start = begin
                break
        start += window


def _task(document: Document, number: int, window: Continuation) -> Task:
    return Task(
        id=_name(document, number),
        question=window.prefix.text,
        golden_answers=document.golden_answers,
        kind=document.kind,
        source=document.source,
        reference=window.suffix.text,
        continuation=window,
    )


def _name(document: Document, number: int) -> str:
    return f"{document.id}#{number}" if number else document.id


def _continuation(document: Document, renderer: Renderer, prefix: list[int], suffix: list[int]) -> Continuation:
    before = decode(renderer.tokenizer, prefix)
    behind = decode(renderer.tokenizer, prefix + suffix)[len(before) :]
    return Continuation(
        document=document.id,
        prefix=Segment(author="source", tokens=tuple(prefix), text=before),
        suffix=Segment(author="source", tokens=tuple(suffix), text=behind),
    )


def _cuts_a_character(found: Continuation) -> bool:
    texts = (found.prefix.text, found.suffix.text)
    return any(text.startswith(UNFINISHED) or text.endswith(UNFINISHED) for text in texts)


def _first_tokens(renderer: Renderer, text: str, needed: int) -> list[int]:
    """At least the first `needed` tokens of a text, if it has so many, without encoding all of it."""
    start = text[: needed * CHARACTERS_A_TOKEN]
    tokens = plain_tokens(renderer, start)
    if len(start) < len(text):
        tokens = plain_tokens(renderer, text) if len(tokens) < needed + SURE else tokens[:-SURE]
    return tokens


def plain_tokens(renderer: Renderer, text: str) -> list[int]:
    """The tokens of a text; names of control tokens in it are encoded as plain text."""
    return list(renderer.render(Piece(text=text)).tokens)


@contextmanager
def keeping_tokens(tokenizer: PreTrainedTokenizerFast, data: StrictModel) -> Iterator[Renderer]:
    """Yields a renderer for one reading of `data`. It finds the tokens of texts that an earlier reading encoded, and
    keeps those of this one if encoding took WORTH_SECONDS."""
    texts = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode())
    texts.update(data.model_dump_json().encode())
    file = tokens_folder() / f"{texts.hexdigest()[:40]}.npz"
    renderer = KeepingRenderer(tokenizer, read_tokens(file))
    yield renderer
    if renderer.seconds < WORTH_SECONDS:
        with suppress(OSError):  # the file is the last that goes when there are too many
            os.utime(file)
        return
    with suppress(OSError):  # a full disk, a folder that may not be written: the next start encodes again
        file.parent.mkdir(parents=True, exist_ok=True)
        write_tokens(file, renderer.used)
        remove_oldest(file.parent, KEPT_TOKENS.bytes)


def tokens_folder() -> Path:
    """`sleuth/tokens` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sleuth" / "tokens"


class KeepingRenderer(Renderer):
    """Looks up the tokens of texts by their hash before it encodes them. `used` has those of this reading, `seconds`
    what encoding took."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, known: Mapping[bytes, np.ndarray]) -> None:
        super().__init__(tokenizer)
        self.known, self.seconds = known, 0.0
        self.used: dict[bytes, np.ndarray] = {}

    def render(self, piece: Piece) -> Segment:
        if piece != Piece(text=piece.text):  # a budget, tokens or an author of its own
            return super().render(piece)
        key = hashlib.blake2b(piece.text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if (found := self.known.get(key)) is None:
            began = time.perf_counter()
            found = np.array(super().render(piece).tokens, dtype=np.int32)
            self.seconds += time.perf_counter() - began
        self.used[key] = found
        return Segment(author=piece.author, tokens=tuple(found.tolist()), text=piece.text)


def write_tokens(file: Path, tokens: Mapping[bytes, np.ndarray]) -> None:
    """Writes them atomically. Several processes may write the same file; the last one stays."""
    rows = list(tokens.values())
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as out:
            np.savez(
                out,
                keys=np.frombuffer(b"".join(tokens), np.uint8).reshape(-1, 16),
                ends=np.cumsum([len(row) for row in rows], dtype=np.int64),
                tokens=np.concatenate(rows) if rows else np.zeros(0, np.int32),
            )
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def read_tokens(file: Path) -> dict[bytes, np.ndarray]:
    """The tokens by the hash of their text; empty if there is no file, or if its checksums (zip's) say that it is
    damaged."""
    try:
        with np.load(file, allow_pickle=False) as parts:
            rows = np.split(parts["tokens"], parts["ends"][:-1])
            return dict(zip((key.tobytes() for key in parts["keys"]), rows, strict=True))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return {}


def remove_oldest(folder: Path, most: int) -> None:
    """Removes the files that were used least recently until the rest has at most so many bytes."""
    files = sorted(folder.glob("*.npz"), key=lambda file: file.stat().st_mtime, reverse=True)
    total = 0
    for file in files:
        total += file.stat().st_size
        if total > most:
            file.unlink(missing_ok=True)
