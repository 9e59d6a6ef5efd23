"""Documents with thoughts, the positions at which a policy thinks, and the setting of its episodes there."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

from transformers import PreTrainedTokenizerFast

from sleuth.data.documents import part_of, read_documents, text_digest
from sleuth.data.excerpts import excerpts_of, plain_tokens
from sleuth.dialect import DIALECTS
from sleuth.episodes.setting import Setting
from sleuth.recipe.data import DocumentsRecipe, TextRecipe, ThoughtPlaces
from sleuth.render import Renderer, check_writable, decode
from sleuth.think.env import ThoughtEnv
from sleuth.think.splicing import TAGS, THINK
from sleuth.think.tables import PlacesRecipe, ThoughtEnvRecipe
from sleuth.types import Continuation, Document, Env, EpisodeKey, Piece, Segment, SleuthError, Task


def thought_documents(data: DocumentsRecipe) -> list[Document]:
    """The first `data.limit` documents of the part that have thoughts. A document whose own text contains one of the
    tags is skipped: the tag could not be told from a thought. Raises SleuthError if there is none."""
    documents = (
        document
        for document in read_documents(data.texts)
        if document.thoughts and data.part in (None, part_of(document.origin)) and not has_tags(document.text)
    )
    found = list(islice(documents, data.limit))
    if not found:
        of_part = f" of the part {data.part!r}" if data.part else ""
        raise SleuthError(f'{data.texts}: no document{of_part} has `thoughts`; a stage of kind = "annotate" adds them')
    return found


def has_tags(text: str) -> bool:
    """Whether a text contains a tag of thoughts."""
    return any(tag in text for tag in TAGS)


def interleaved(document: Document, renderer: Renderer, most: int) -> list[Piece]:
    """The text, by `source`, with its thoughts, by `teacher`, in their places; at most `most` tokens. Names of control
    tokens in either are encoded as plain text."""
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


def thought_tokens(thought: str, renderer: Renderer) -> tuple[int, ...]:
    """A thought between its tags."""
    before, behind = (tag_piece(tag, renderer).tokens or () for tag in TAGS)
    return (*before, *plain_tokens(renderer, thought), *behind)


def tag_piece(tag: str, renderer: Renderer | None) -> Piece:
    """A tag that an environment inserts, with the tokens that training on thoughts uses; none without a renderer."""
    tokens = None if renderer is None else renderer.render(Piece(text=tag, author="teacher")).tokens
    return Piece(text=tag, author="env", tokens=tokens)


def require_apart(trained: Iterable[str], held_out: Sequence[Document], ids: Container[str] = ()) -> None:
    """Raises SleuthError if a held-out document is trained too, by its text or by one of the `ids`."""
    known = {text_digest(text) for text in trained}
    both = next((one for one in held_out if one.id in ids or text_digest(one.text) in known), None)
    if both is not None:
        raise SleuthError(
            f"held_out: the text of {both.id!r} is trained too; name other texts, or another part of them"
        )


def _pieces(document: Document, renderer: Renderer) -> Iterator[Piece]:
    starts = [0, *(thought.at for thought in document.thoughts)]
    ends = [*starts[1:], len(document.text)]
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if number:
            thought = document.thoughts[number - 1].text
            written = f"{THINK.open}{thought}{THINK.close}"
            yield Piece(text=written, author="teacher", tokens=thought_tokens(thought, renderer))
        if end > start:
            text = document.text[start:end]
            yield Piece(text=text, author="source", tokens=tuple(plain_tokens(renderer, text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A position to think at: the task of continuing from there, and the `teacher`'s thought if the data has one."""

    task: Task
    teacher: str | None = None

    @property
    def prefix(self) -> tuple[int, ...]:
        """The tokens before it."""
        return self.task.required_continuation.prefix.tokens

    @property
    def suffix(self) -> tuple[int, ...]:
        """The true tokens after it."""
        return self.task.required_continuation.suffix.tokens

    @property
    def document(self) -> str:
        """The id of its document, by which spots are clustered."""
        return self.task.required_continuation.document


def require_fit(spots: Sequence[Spot], positions: int, *, thought: int, suffix: int = 0) -> int:
    """Tokens of the longest sequence at these spots, with thoughts of `thought` tokens and suffixes of `suffix` or as
    long as the true ones. Raises SleuthError if that is more than the model's `positions`."""
    prefix = max(len(spot.prefix) for spot in spots)
    suffix = max(suffix, *(len(spot.suffix) for spot in spots))
    if prefix + thought + suffix > positions:
        raise SleuthError(
            f"prefixes of {prefix} tokens, thoughts of {thought} and suffixes of {suffix} are more than the "
            f"{positions} positions of the model; lower data.prefix_tokens, data.suffix_tokens or env.thought_tokens"
        )
    return prefix + thought + suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtSetting(Setting):
    """What the episodes of a stage that thinks share. Of its dialect only the tags of thoughts are used."""

    limits: ThoughtEnvRecipe
    opening_tag: Piece
    closing_tag: Piece

    has_protocol: ClassVar[bool] = False
    scores_late: ClassVar[bool] = True
    longest_answer_is: ClassVar[str] = "the thought and suffix of "
    longest_answer_key: ClassVar[str] = "env.thought_tokens"

    def env(self, task: Task, key: EpisodeKey = (0, 0)) -> Env:
        return ThoughtEnv(task, self.limits, self.opening_tag, self.closing_tag)

    def hooks(self, inputs: Any) -> list[Any]:
        from sleuth.think.thought_gain import ThoughtRewards

        return [ThoughtRewards(self, inputs)]

    @property
    def longest_answer(self) -> int:
        """Tokens of a thought, of its closing tag and of the suffix."""
        return self.limits.thought_tokens + len(self.closing_tag.tokens or ()) + self.limits.suffix_tokens


def thought_setting(env: ThoughtEnvRecipe, tokenizer: PreTrainedTokenizerFast | None) -> ThoughtSetting:
    """The setting of a recipe, with the tokens of the tags if there is a tokenizer. Raises SleuthError if it cannot
    encode them."""
    if tokenizer is not None:
        check_writable(tokenizer, TAGS)
    opening, closing = (tag_piece(tag, None if tokenizer is None else Renderer(tokenizer)) for tag in TAGS)
    return ThoughtSetting(
        dialect=DIALECTS["sleuth"],
        limits=env,
        opening_tag=opening,
        closing_tag=closing,
    )


def spots_of(data: ThoughtPlaces, tokenizer: PreTrainedTokenizerFast) -> list[Spot]:
    """The first `data.limit` positions to think at. Raises SleuthError if there is none."""
    if isinstance(data, TextRecipe):
        return [Spot(task=task) for task in excerpts_of(data, tokenizer).tasks]
    assert isinstance(data, PlacesRecipe)
    spots = list(islice(_spots(data, Renderer(tokenizer)), data.limit))
    if not spots:
        raise SleuthError(
            f"{data.texts}: no document of the part has a thought with {data.least_before} tokens before it and "
            f'{data.least_behind} behind; a stage of kind = "annotate" adds thoughts, and kind = "text" needs none'
        )
    return spots


def _spots(data: PlacesRecipe, renderer: Renderer) -> Iterator[Spot]:
    """The first place of each document with enough text on both sides."""
    for document in read_documents(data.texts):
        if data.part not in (None, part_of(document.origin)) or has_tags(document.text):
            continue
        for number, thought in enumerate(document.thoughts):
            before = plain_tokens(renderer, document.text[: thought.at])
            behind = plain_tokens(renderer, document.text[thought.at :])
            if len(before) >= max(data.least_before, 1) and len(behind) >= max(data.least_behind, 1):
                start = replace(document, text=document.text[: thought.at], thoughts=document.thoughts[:number])
                read = [token for piece in _pieces(start, renderer) for token in piece.tokens or ()]
                question = decode(renderer.tokenizer, before[-data.prefix_tokens :])
                sides = read[-data.prefix_tokens :], behind[: data.suffix_tokens]
                yield Spot(task=_task(document, question, *sides, renderer), teacher=thought.text)
                break


def _task(document: Document, question: str, prefix: list[int], suffix: list[int], renderer: Renderer) -> Task:
    """The question, which judges see, is the text without earlier thoughts."""
    before, behind = (
        Segment(author="source", tokens=tuple(tokens), text=decode(renderer.tokenizer, tokens))
        for tokens in (prefix, suffix)
    )
    return Task(
        id=document.id,
        question=question,
        golden_answers=document.golden_answers,
        kind=document.kind,
        source=document.source,
        reference=behind.text,
        continuation=Continuation(document=document.id, prefix=before, suffix=behind),
    )
