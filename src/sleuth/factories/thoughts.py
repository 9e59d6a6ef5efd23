"""Documents with thoughts in them as pieces of text, and the places at which a thought may help."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from sleuth.data.documents import part_of, read_documents, text_digest
from sleuth.data.splicing import THINK
from sleuth.factories.text import plain_tokens
from sleuth.recipe.text import DocumentsRecipe
from sleuth.render import Renderer
from sleuth.types import Document, Piece, SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtPosition:
    """Where a thought stands in a document: the tokens `before` it and those `behind`, without any other thought.

    `ThoughtPosition(document="d4", source="wiki", kind="", before=(5, 9), thought=" so it rains", behind=(7,))`.
    """

    document: str
    source: str
    kind: str
    before: tuple[int, ...]
    thought: str
    behind: tuple[int, ...]


def thought_documents(data: DocumentsRecipe) -> list[Document]:
    """The first `data.limit` documents of the part that bring thoughts. A document whose own text holds one of the tags
    is left out: nobody could tell it from a thought. Raises SleuthError where there is none."""
    documents = (
        document
        for document in read_documents(data.texts)
        if document.thoughts and data.part in (None, part_of(document.origin)) and not has_tags(document.text)
    )
    found = list(islice(documents, data.limit))
    if not found:
        of_part = f" of the part {data.part!r}" if data.part else ""
        raise SleuthError(f"{data.texts}: no document{of_part} brings `thoughts`; `sleuth annotate thoughts` adds them")
    return found


def has_tags(text: str) -> bool:
    """Whether a text names a tag of a thought."""
    return THINK.open in text or THINK.close in text


def interleaved(document: Document, renderer: Renderer, most: int) -> list[Piece]:
    """The text, which a source wrote, with its thoughts, which a teacher did, in their places; at most `most` tokens.
    The name of a control token in either is only letters."""
    pieces: list[Piece] = []
    room = most
    for piece in _pieces(document, renderer):
        tokens = piece.tokens or ()
        if piece.author == "teacher" and len(tokens) > room:
            break
        pieces.append(Piece(text=piece.text, author=piece.author, tokens=tokens, budget=room))
        room -= len(tokens)
        if room <= 0:
            break
    return pieces


def places_in(document: Document, renderer: Renderer, *, suffix_tokens: int, context: int) -> Iterator[ThoughtPosition]:
    """Every place of the document that has text on both sides, in order; of what is before it, as much as the context
    of a model leaves room for."""
    for thought in document.thoughts:
        behind = plain_tokens(renderer, document.text[thought.at :])[:suffix_tokens]
        room = context - len(behind) - len(thought_tokens(thought.text, renderer))
        before = plain_tokens(renderer, document.text[: thought.at])[-max(room, 1) :]
        if before and behind and room > 0:
            yield ThoughtPosition(
                document=document.id,
                source=document.source,
                kind=document.kind,
                before=tuple(before),
                thought=thought.text,
                behind=tuple(behind),
            )


def thought_tokens(thought: str, renderer: Renderer) -> tuple[int, ...]:
    """A thought between its tags."""
    before, behind = (tag_piece(tag, renderer).tokens or () for tag in (THINK.open, THINK.close))
    return (*before, *plain_tokens(renderer, thought), *behind)


def tag_piece(tag: str, renderer: Renderer | None) -> Piece:
    """A tag that an environment inserts, with the tokens under which thoughts are taught; without a renderer it has
    none yet."""
    tokens = None if renderer is None else renderer.render(Piece(text=tag, author="teacher")).tokens
    return Piece(text=tag, author="env", tokens=tokens)


def interleaved_tokens(document: Document, renderer: Renderer, until: int) -> list[int]:
    """The document up to its thought number `until`, with the thoughts before that one in their places."""
    at = document.thoughts[until].at
    begun = replace(document, text=document.text[:at], thoughts=document.thoughts[:until])
    return [token for piece in _pieces(begun, renderer) for token in piece.tokens or ()]


def require_apart(taught: Iterable[str], held_out: Sequence[Document], ids: Container[str] = ()) -> None:
    """Raises SleuthError where the text of a held-out document is taught too, or the document with one of the `ids`."""
    known = {text_digest(text) for text in taught}
    both = next((one for one in held_out if one.id in ids or text_digest(one.text) in known), None)
    if both is not None:
        raise SleuthError(f"held_out: the text of {both.id!r} is taught too; name other texts, or another part of them")


def _pieces(document: Document, renderer: Renderer) -> Iterator[Piece]:
    read = 0
    for thought in document.thoughts:
        if thought.at > read:
            yield _source(document.text[read : thought.at], renderer)
        written = f"{THINK.open}{thought.text}{THINK.close}"
        yield Piece(text=written, author="teacher", tokens=thought_tokens(thought.text, renderer))
        read = thought.at
    if read < len(document.text):
        yield _source(document.text[read:], renderer)


def _source(text: str, renderer: Renderer) -> Piece:
    return Piece(text=text, author="source", tokens=tuple(plain_tokens(renderer, text)))
