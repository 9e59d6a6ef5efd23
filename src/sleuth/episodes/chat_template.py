"""Rendering by a tokenizer's chat template without letting it read untrusted text, or take time or memory without end.

A template is a program: it searches messages for thoughts and tool responses, and trims white space. So text by people,
passages and policies is replaced by placeholders while the template runs, and put back afterwards. No text can change
what the template does or become a control token.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedTokenizerFast

from sleuth.episodes.render_process import shared_process
from sleuth.types import Piece, SleuthError

PLACEHOLDER = "\ue000{}\ue001"
"""Stands for a piece while the template runs; private-use characters, which no template contains."""
PLACEHOLDERS = re.compile("\ue000([0-9]+)\ue001")
KEPT = 256
"""Renderings that are kept: with placeholders for all that differs, most episodes have the same ones."""

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """`Message(role="user", content=(Piece(text="Answer: ", author="template"), Piece(text="where was Ada born?")))`.

    The template sees the text of `template` pieces and placeholders for all others."""

    role: Role
    content: tuple[Piece, ...]


class ChatTemplate:
    """The chat template of `tokenizer` with its `flags` (such as `enable_thinking`) and the schemas of `tools`.

    The constructor raises SleuthError if there is no template, or if it does not know a flag, fails, or cannot use
    `tools`: it must render them, keep a tool's answer unchanged, and end messages with the tokenizer's end-of-text
    token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        flags: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        if not isinstance(tokenizer.chat_template, str):
            raise SleuthError(
                'the tokenizer has no chat template (or several): set prompt_role = "raw" and a dialect of plain text'
            )
        self.tokenizer = tokenizer
        self.source = tokenizer.chat_template
        self.flags = dict(flags or {})
        self.tools = [dict(tool) for tool in tools]
        self.end = str(tokenizer.eos_token)
        special = tokenizer.special_tokens_map.items()
        self._variables = {name: token for name, token in special if isinstance(token, str)}
        self._rendered: dict[str, str] = {}
        self._limit = ""  # which it has reached: it is not tried again
        self.several_answers = False  # whether it renders two messages of tools in a row
        for flag in self.flags:
            if not re.search(rf"\b{re.escape(flag)}\b", self.source):
                raise SleuthError(
                    f"template_flags.{flag}: the chat template has no such flag; remove it, or, where a recipe that "
                    "this one extends has it, set template_flags = {}"
                )
        if PLACEHOLDERS.search(json.dumps(self.tools, ensure_ascii=False)):
            raise SleuthError("tools: the schemas have a character U+E000, which stands for other texts here")
        self.pieces([_user("?")])
        if tools:
            self._require_tools()

    @property
    def sha256(self) -> str:
        """The hash of the template's source."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    def pieces(self, messages: Sequence[Message]) -> list[Piece]:
        """The messages as the template renders them, up to where the next answer begins.

        Pieces with other authors than `template` are returned unchanged; one that the template drops is dropped.
        """
        replaced: list[Piece] = []

        def visible(piece: Piece) -> str:
            if piece.author == "template":
                return piece.text
            replaced.append(piece)
            return PLACEHOLDER.format(len(replaced) - 1)

        rendered = self._render(
            [{"role": message.role, "content": "".join(map(visible, message.content))} for message in messages]
        )
        parts = PLACEHOLDERS.split(rendered)  # every second part is the number of a piece
        return [replaced[int(part)] if at % 2 else Piece(text=part, author="template") for at, part in enumerate(parts)]

    def _render(self, messages: list[dict[str, str]]) -> str:
        roles = ", ".join(message["role"] for message in messages)
        key = json.dumps(messages)
        if not self._limit and (key not in self._rendered or "strftime_now" in self.source):
            request = {
                "source": self.source,
                "messages": messages,
                "tools": self.tools or None,
                "prompt": True,
                "variables": self._variables | self.flags,
            }
            answer = shared_process().rendered(request)
            if "error" in answer:
                raise SleuthError(f"the chat template cannot render messages of {roles}: {answer['error']}")
            if len(self._rendered) >= KEPT:
                self._rendered.clear()
            self._limit, self._rendered[key] = answer.get("limit", ""), answer.get("text", "")
        if self._limit:
            raise SleuthError(
                f"the chat template was stopped while it rendered messages of {roles}: {self._limit}; "
                'use prompt_role = "raw", or another model'
            )
        return self._rendered[key]

    def _require_tools(self) -> None:
        question, turn = _user("?"), Piece(text=".")
        if self.pieces([question]) == ChatTemplate(self.tokenizer, flags=self.flags).pieces([question]):
            raise SleuthError(
                "the chat template does not render tools, so the policy could not call them: use a dialect of plain "
                'text, such as dialect = "sleuth"'
            )
        output = 'a "quoted" <line>\nand another'
        plain, opaque = (
            self.pieces([question, Message(role="assistant", content=(turn,)), Message(role="tool", content=(answer,))])
            for answer in (Piece(text=output, author="template"), Piece(text=output))
        )
        if "".join(piece.text for piece in plain) != "".join(piece.text for piece in opaque):
            raise SleuthError("the chat template changes the text of a tool's answer")
        if turn not in opaque:
            raise SleuthError("the chat template does not render earlier assistant messages")
        answers = [Piece(text="1"), Piece(text="2")]
        two = [Message(role="tool", content=(answer,)) for answer in answers]
        with suppress(SleuthError):
            rendered = self.pieces([question, Message(role="assistant", content=(turn,)), *two])
            self.several_answers = [piece for piece in rendered if piece in answers] == answers
        after = opaque[opaque.index(turn) + 1].text
        if not after.startswith(self.end):
            raise SleuthError(
                f"the chat template ends a message with {after.splitlines()[0]!r}, but the tokenizer's eos_token is "
                f"{self.end!r}: set eos_token to the end of a message"
            )


def _user(text: str) -> Message:
    return Message(role="user", content=(Piece(text=text, author="template"),))
