"""Documents, cut by the tokens of a model, into tasks of continuing them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from transformers import PreTrainedTokenizerFast

from sleuth.data.documents import part_of, read_documents
from sleuth.recipe.text import TextRecipe
from sleuth.render import CHARACTER_TOKENS, UNFINISHED, Renderer, decode
from sleuth.types import Continuation, Document, Piece, Segment, SleuthError, Task

CHARACTERS_A_TOKEN = 12
"""Of a long document so many characters for each token that is needed are encoded at first; English has about four."""
SURE = 16
"""So many tokens before the end of a piece of text, the text behind it no longer changes them."""


@dataclass(slots=True, kw_only=True)
class Excerpts:
    """The tasks of continuing that documents gave, and what became of the documents: how many were `read`, how many of
    those are for `another` part, `repeated` an earlier one or were too `short`."""

    tasks: list[Task]
    read: int = 0
    another: int = 0
    repeated: int = 0
    short: int = 0

    def __str__(self) -> str:
        left_out = {"for another part": self.another, "repeated": self.repeated, "too short": self.short}
        told = [f"{count:,} {why}" for why, count in left_out.items() if count]
        behind = f" ({', '.join(told)})" if told else ""
        return f"{len(self.tasks):,} prefixes with their suffixes, from {self.read:,} documents{behind}"


def excerpts_of(data: TextRecipe, tokenizer: PreTrainedTokenizerFast) -> Excerpts:
    """The first `data.limit` tasks that the documents give; it reads no further than it must.

    Of documents that begin alike, as far as their first prefix goes, the first one stays, whichever part it is for: a
    beginning that is trained on in one part would otherwise be asked for in another. Raises SleuthError for a malformed
    row, and where there is no task at all.
    """
    found = Excerpts(tasks=[])
    windows = _windows(data, Renderer(tokenizer), found)
    found.tasks = [_task(*window) for window in islice(windows, data.limit)]
    if not found.tasks:
        raise SleuthError(f"{data.texts}: nothing to continue: {found}")
    return found


def chunks_of(data: TextRecipe, tokenizer: PreTrainedTokenizerFast) -> list[Document]:
    """The same windows as documents of their own, whose text is prefix and suffix in one."""
    found = _windows(data, Renderer(tokenizer), Excerpts(tasks=[]))
    chunks = [
        replace(document, id=_name(document, number), text=window.prefix.text + window.suffix.text, cut=None)
        for document, number, window in islice(found, data.limit)
    ]
    if not chunks:
        raise SleuthError(f"{data.texts}: no document has {data.prefix_tokens + data.suffix_tokens} tokens")
    return chunks


def _windows(data: TextRecipe, renderer: Renderer, found: Excerpts) -> Iterator[tuple[Document, int, Continuation]]:
    """Each window with its document and its number there, while `found` counts what becomes of the documents."""

    def repeated() -> None:
        found.read, found.repeated = found.read + 1, found.repeated + 1

    begun: set[tuple[int, ...]] = set()
    for document in read_documents(data.texts, repeated):
        windows = list(islice(continuations(document, data, renderer), data.windows))
        prefix = windows[0].prefix.tokens if windows else ()
        if prefix in begun:
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
            begun.add(prefix)


def continuations(document: Document, data: TextRecipe, renderer: Renderer) -> Iterator[Continuation]:
    """The windows of a document, one behind the other: a prefix of exactly `prefix_tokens` and a suffix of exactly
    `suffix_tokens` each; or, where the document says where to cut, one of at most so many.

    The name of a control token in a document is only letters. No cut goes through a character: where one would, the
    window begins up to three tokens later.
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
    """At least the first `needed` tokens of a text, where it has so many, and no more work than that takes."""
    begun = text[: needed * CHARACTERS_A_TOKEN]
    tokens = plain_tokens(renderer, begun)
    if len(begun) < len(text):
        tokens = plain_tokens(renderer, text) if len(tokens) < needed + SURE else tokens[:-SURE]
    return tokens


def plain_tokens(renderer: Renderer, text: str) -> list[int]:
    """The tokens of a text in which the name of a control token is only letters."""
    return list(renderer.render(Piece(text=text)).tokens)
