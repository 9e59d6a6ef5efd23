"""Cuts documents by the tokens of a model into tasks of continuing them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from transformers import PreTrainedTokenizerFast

from sleuth.data.documents import part_of, read_documents
from sleuth.recipe.data import TextRecipe
from sleuth.render import CHARACTER_TOKENS, UNFINISHED, Renderer, decode
from sleuth.types import Continuation, Document, Piece, Segment, SleuthError, Task

CHARACTERS_A_TOKEN = 12
"""Characters of a long document that are encoded for each token that is needed; English has about four a token."""
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
    found.tasks = [_task(*window) for window in islice(_windows(data, Renderer(tokenizer), found), data.limit)]
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
