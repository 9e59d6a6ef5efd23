"""Where the words of the environment stand: in the text that the policy is writing, or in messages of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sleuth.dialects import Dialect
from sleuth.envs.chat_template import ChatTemplate, Message
from sleuth.prompts.published import QUESTION
from sleuth.types import Piece, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Framed:
    """Pieces as they are shown. `restarts`: they are the whole story, told anew, and not what comes next in it."""

    pieces: tuple[Piece, ...]
    restarts: bool = False


class Frame(Protocol):
    """Puts what an environment says where the policy reads it; single use. A turn is what the policy wrote, and why it
    stopped."""

    def open(self, prompt: str, asked: Piece) -> list[Piece]:
        """The prompt with what is asked in its place."""
        ...

    def results(self, turn: str, stop: StopReason, found: Sequence[Piece]) -> Framed:
        """What a search found, which may be nothing, after the turn that asked for it."""
        ...

    def remark(self, turn: str, stop: StopReason, text: str) -> Framed:
        """A sentence after a turn."""
        ...


class TextFrame:
    """One growing text: results stand between their tags, behind the turn. It begins with the prompt, byte for byte,
    or with the prompt as a message of a chat template, whose answer is then all that follows."""

    def __init__(self, dialect: Dialect, role: str = "raw", template: ChatTemplate | None = None) -> None:
        self.dialect = dialect
        self.role = role
        self.template = template

    def open(self, prompt: str, asked: Piece) -> list[Piece]:
        if self.template is not None:
            return self.template.pieces(first_messages(prompt, asked, self.role))
        return filled(prompt, asked)

    def results(self, turn: str, stop: StopReason, found: Sequence[Piece]) -> Framed:
        """The tags are pieces of their own, so that no cut can take them."""
        dialect = self.dialect
        margin = dialect.margin if found else ""
        opening = Piece(text=f"{dialect.before_results}{dialect.information.open}{dialect.margin}")
        closing = Piece(text=f"{margin}{dialect.information.close}{dialect.after_results}")
        return Framed(pieces=(opening, *found, closing))

    def remark(self, turn: str, stop: StopReason, text: str) -> Framed:
        return Framed(pieces=(Piece(text=text),))


class ChatFrame:
    """Messages of a chat template: the prompt, then a turn and a tool's answer by turns.

    In a `conversation` all messages are rendered at every turn. Where the template has changed what was said, the
    story is told anew: earlier turns in it are copies, which the environment wrote. In `messages` nothing that was said
    is touched, whatever the template would make of it: only what it puts behind the policy's turn is added.
    """

    def __init__(self, dialect: Dialect, role: str, template: ChatTemplate) -> None:
        self.dialect = dialect
        self.role = role
        self.template = template
        self.messages: list[Message] = []
        self.text = ""  # the story so far, before any cut

    def open(self, prompt: str, asked: Piece) -> list[Piece]:
        self.messages = first_messages(prompt, asked, self.role)
        return list(self._told(self.template.pieces(self.messages)).pieces)

    def results(self, turn: str, stop: StopReason, found: Sequence[Piece]) -> Framed:
        return self._answered(turn, stop, tuple(found))

    def remark(self, turn: str, stop: StopReason, text: str) -> Framed:
        return self._answered(turn, stop, (Piece(text=text),))

    def _answered(self, turn: str, stop: StopReason, answer: tuple[Piece, ...]) -> Framed:
        end = self.template.end if stop == "eos" else ""
        if self.dialect.frame == "messages":
            said = Piece(text=turn)
            self.messages += [Message(role="assistant", content=(said,)), Message(role="tool", content=answer)]
            return self._told(_without(end, _behind(said, self.template.pieces(self.messages))))
        said = _spans(turn, self.dialect)
        self.messages += [Message(role="assistant", content=said), Message(role="tool", content=answer)]
        story = self.template.pieces(self.messages)
        read = self.text + turn + end
        if _text(story).startswith(read):
            return self._told(_after(len(read), story), read)
        return Framed(pieces=self._told(story, "").pieces, restarts=True)

    def _told(self, pieces: Sequence[Piece], before: str = "") -> Framed:
        self.text = before + _text(pieces)
        return Framed(pieces=tuple(piece for piece in pieces if piece.text))


def frame_of(dialect: Dialect, role: str, template: ChatTemplate | None) -> Frame:
    """The frame that a dialect speaks in; only text as it is (`raw`) can do without a template."""
    if template is None and (dialect.frame != "text" or role != "raw"):
        raise ValueError(f"{dialect.name} in the role {role}: only a chat template can write messages")
    if dialect.frame == "text" or template is None:
        return TextFrame(dialect, role, template)
    return ChatFrame(dialect, role, template)


def filled(prompt: str, asked: Piece) -> list[Piece]:
    """The prompt in pieces. It is template, a question is not: a control token in it is only letters."""
    first, *others = (Piece(text=part, author="template") for part in prompt.split(QUESTION))
    return [first, *(piece for part in others for piece in (asked, part))]


def first_messages(prompt: str, asked: Piece, role: str) -> list[Message]:
    """The prompt with what is asked as the user's message, or as the system's before a user's that is what is asked."""
    if role == "user":
        content = (shown for piece in filled(prompt, asked) for shown in _between_spaces(piece))
        return [Message(role="user", content=tuple(content))]
    system = Message(role="system", content=(Piece(text=prompt, author="template"),))
    return [system, Message(role="user", content=tuple(_between_spaces(asked)))]


def _spans(turn: str, dialect: Dialect) -> tuple[Piece, ...]:
    """A turn for a template that looks for thoughts in it: it sees the tags of a thought, and not what stands between
    them."""
    tags = re.split(f"({re.escape(dialect.think.open)}|{re.escape(dialect.think.close)})", turn)
    pieces = (Piece(text=part, author="template" if at % 2 else "env") for at, part in enumerate(tags))
    return tuple(shown for piece in pieces for shown in _between_spaces(piece))


def _between_spaces(piece: Piece) -> Iterator[Piece]:
    """The piece with the white space around it shown to the template, which may trim it as it trims any; nothing at all
    of an empty one, which a template may treat as such."""
    words = piece.text.strip()
    before, after = piece.text.split(words, 1) if words else (piece.text, "")
    pieces = (
        Piece(text=before, author="template"),
        Piece(text=words, author=piece.author),
        Piece(text=after, author="template"),
    )
    return (shown for shown in pieces if shown.text)


def _behind(said: Piece, pieces: Sequence[Piece]) -> list[Piece]:
    """What the template puts behind a piece, which it was not shown."""
    return list(pieces[max(at for at, piece in enumerate(pieces) if piece is said) + 1 :])


def _without(end: str, pieces: list[Piece]) -> list[Piece]:
    """The pieces less the end of the message, which the policy has sampled."""
    return _after(len(end), pieces) if _text(pieces).startswith(end) else pieces


def _after(length: int, pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces less their first `length` characters, which end in a piece without a budget."""
    kept, start = [], 0
    for piece in pieces:
        text = piece.text[max(0, length - start) :]
        start += len(piece.text)
        if text == piece.text:
            kept.append(piece)
        elif text:
            kept.append(Piece(text=text, author=piece.author))
    return kept


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)
