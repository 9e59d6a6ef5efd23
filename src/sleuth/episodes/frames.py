"""Frames: an environment's replies as part of the text that the policy writes, or as chat messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sleuth.dialect import Dialect
from sleuth.episodes.chat_template import ChatTemplate, Message
from sleuth.episodes.library import QUESTION
from sleuth.types import Piece, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Framed:
    """Pieces to append. `restarts`: they are the whole history, rendered again, and start a new trajectory."""

    pieces: tuple[Piece, ...]
    restarts: bool = False


class Frame(Protocol):
    """Formats an environment's replies for the policy; single use. `turn` is what the policy wrote, `stop` why it
    stopped."""

    def open(self, prompt: str, *question: Piece) -> list[Piece]:
        """The prompt filled with the question."""
        ...

    def results(self, turn: str, stop: StopReason, *results: Sequence[Piece]) -> Framed:
        """The results of each call in `turn`, which may be empty. Only a message of a chat has several."""
        ...

    def hint(self, turn: str, stop: StopReason, text: str) -> Framed:
        """A sentence after a turn without a valid action."""
        ...

    def message(self, turn: str, stop: StopReason, piece: Piece) -> Framed:
        """What a user, or the world, says after a turn."""
        ...


class TextFrame:
    """One growing text with results between tags after each turn. It begins with the prompt, byte for byte, or with the
    prompt as a chat message; everything after it is then one assistant message."""

    def __init__(self, dialect: Dialect, role: str = "raw", template: ChatTemplate | None = None) -> None:
        self.dialect = dialect
        self.role = role
        self.template = template
        self.again: tuple[Piece, ...] = ()

    def open(self, prompt: str, *question: Piece) -> list[Piece]:
        if tag := self.dialect.question_again:
            self.again = (Piece(text=tag), *(Piece(text=f" {piece.text}", quoted=True) for piece in question))
        if self.template is not None:
            return self.template.pieces(first_messages(prompt, question, self.role))
        return fill_prompt(prompt, question)

    def results(self, turn: str, stop: StopReason, *results: Sequence[Piece]) -> Framed:
        """The tags are separate pieces, so that no budget cuts them."""
        dialect, [of_call] = self.dialect, results
        margin = dialect.margin if of_call else ""
        opening = Piece(text=f"{dialect.before_results}{dialect.information.open}{dialect.margin}")
        closing = Piece(text=f"{margin}{dialect.information.close}{dialect.after_results}")
        return Framed(pieces=(opening, *of_call, closing, *self.again))

    def hint(self, turn: str, stop: StopReason, text: str) -> Framed:
        return Framed(pieces=(Piece(text=text),))

    def message(self, turn: str, stop: StopReason, piece: Piece) -> Framed:
        return Framed(pieces=(piece,))


LINE = (Piece(text="\n"),)
"""Between the results of two calls in one message of a tool."""


class ChatFrame:
    """Messages of a chat template: the prompt, then alternately a turn and a tool's answer.

    In a `conversation` all messages are rendered at every turn. If the template changes earlier text, the history
    restarts: its earlier turns are then copies with author `env`. In `messages` earlier text never changes: only what
    the template renders after the policy's turn is appended.
    """

    def __init__(self, dialect: Dialect, role: str, template: ChatTemplate) -> None:
        self.dialect = dialect
        self.role = role
        self.template = template
        self.messages: list[Message] = []
        self.text = ""  # of the whole history, before budgets cut any of it

    def open(self, prompt: str, *question: Piece) -> list[Piece]:
        self.messages = first_messages(prompt, question, self.role)
        return list(self._framed(self.template.pieces(self.messages)).pieces)

    def results(self, turn: str, stop: StopReason, *results: Sequence[Piece]) -> Framed:
        return self._replied(turn, stop, tool_messages(results, self.template))

    def hint(self, turn: str, stop: StopReason, text: str) -> Framed:
        return self._replied(turn, stop, tool_messages([(Piece(text=text),)], self.template))

    def message(self, turn: str, stop: StopReason, piece: Piece) -> Framed:
        return self._replied(turn, stop, [Message(role="user", content=tuple(split_off_outer_spaces([piece])))])

    def _replied(self, turn: str, stop: StopReason, messages: Sequence[Message]) -> Framed:
        end = self.template.end if stop == "eos" else ""
        if self.dialect.frame == "messages":
            written = Piece(text=turn)
            self.messages += [Message(role="assistant", content=(written,)), *messages]
            return self._framed(_without_prefix(end, _pieces_after(written, self.template.pieces(self.messages))))
        written = turn_pieces(turn, self.dialect)
        self.messages += [Message(role="assistant", content=written), *messages]
        history = self.template.pieces(self.messages)
        seen = self.text + turn + end
        if text_of(history).startswith(seen):
            return self._framed(text_after(len(seen), history), seen)
        return Framed(pieces=self._framed(history, "").pieces, restarts=True)

    def _framed(self, pieces: Sequence[Piece], before: str = "") -> Framed:
        self.text = before + text_of(pieces)
        return Framed(pieces=tuple(piece for piece in pieces if piece.text))


def frame_of(dialect: Dialect, role: str, template: ChatTemplate | None) -> Frame:
    """The frame of a dialect. Raises ValueError if it needs a template (all but `raw` text) and gets none."""
    if template is None and (dialect.frame != "text" or role != "raw"):
        raise ValueError(f"{dialect.name} in the role {role}: chat messages need a chat template")
    if dialect.frame == "text" or template is None:
        return TextFrame(dialect, role, template)
    return ChatFrame(dialect, role, template)


def fill_prompt(prompt: str, question: Sequence[Piece]) -> list[Piece]:
    """The prompt in pieces of author `template`, with the question in its place."""
    first, *others = (Piece(text=part, author="template") for part in prompt.split(QUESTION))
    return [first, *(piece for part in others for piece in (*question, part))]


def first_messages(prompt: str, question: Sequence[Piece], role: str) -> list[Message]:
    """The filled prompt as a user message, or the prompt as a system message and the question as a user message."""
    if role == "user":
        parts = [Piece(text=part, author="template") for part in prompt.split(QUESTION)]
        content = list(_split_off_spaces(parts[0]))
        for part in parts[1:]:
            content += [*split_off_outer_spaces(question), *_split_off_spaces(part)]
        return [Message(role="user", content=tuple(content))]
    system = Message(role="system", content=(Piece(text=prompt, author="template"),))
    return [system, Message(role="user", content=tuple(split_off_outer_spaces(question)))]


def tool_messages(answers: Sequence[Sequence[Piece]], template: ChatTemplate) -> list[Message]:
    """The results of the calls of a turn, as one message where the template cannot render two in a row."""
    if not template.several_answers:
        answers = [[piece for at, of_call in enumerate(answers) for piece in (*LINE[:at], *of_call)]]
    return [Message(role="tool", content=tuple(answer)) for answer in answers]


def turn_pieces(turn: str, dialect: Dialect) -> tuple[Piece, ...]:
    """A turn in pieces of which a template can read only the tags of thoughts."""
    tags = re.split(f"({re.escape(dialect.think.open)}|{re.escape(dialect.think.close)})", turn)
    pieces = (Piece(text=part, author="template" if at % 2 else "env") for at, part in enumerate(tags))
    return tuple(part for piece in pieces for part in _split_off_spaces(piece))


def _split_off_spaces(piece: Piece) -> Iterator[Piece]:
    """The piece with its leading and trailing white space as `template` pieces, which a template may trim. Yields
    nothing for an empty piece, so that the template sees empty content."""
    words = piece.text.strip()
    before, after = piece.text.split(words, 1) if words else (piece.text, "")
    pieces = (
        Piece(text=before, author="template"),
        replace(piece, text=words),
        Piece(text=after, author="template"),
    )
    return (part for part in pieces if part.text)


def split_off_outer_spaces(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """As `_split_off_spaces`, for pieces that are one text."""
    text = text_of(pieces)
    before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :] if text.strip() else ""
    if before:
        yield Piece(text=before, author="template")
    yield from (piece for piece in _text_between(len(before), len(text) - len(after), pieces) if piece.text)
    if after:
        yield Piece(text=after, author="template")


def _pieces_after(turn: Piece, pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces after the last occurrence of `turn` itself."""
    return list(pieces[max(at for at, piece in enumerate(pieces) if piece is turn) + 1 :])


def _without_prefix(end: str, pieces: list[Piece]) -> list[Piece]:
    """The pieces without a leading end-of-message token, which the policy has sampled."""
    return text_after(len(end), pieces) if text_of(pieces).startswith(end) else pieces


def text_after(length: int, pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces without their first `length` characters, which must end in a piece without a budget or tokens."""
    return _text_between(length, sum(len(piece.text) for piece in pieces), pieces)


def _text_between(first: int, end: int, pieces: Sequence[Piece]) -> list[Piece]:
    """Characters `first` to `end` - 1 of the pieces; pieces with a budget or tokens must not be cut."""
    kept, start = [], 0
    for piece in pieces:
        text = piece.text[max(0, first - start) : max(0, end - start)]
        start += len(piece.text)
        if text == piece.text:
            kept.append(piece)
        elif text:
            kept.append(replace(piece, text=text))
    return kept


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)
