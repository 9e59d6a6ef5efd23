"""A chat template under examination: it renders whatever it is given, within a time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

from sleuth.episodes.render_process import shared_process

RENDER_SECONDS = 5.0
ALL_SECONDS = 20.0
"""How long one rendering may take, and all of them together. Published templates take milliseconds."""

Message = Mapping[str, Any]


class TemplateRefusedError(Exception):
    """The template raised an error for these messages; the argument is its message, on one line."""


class TemplateLimitError(Exception):
    """The template reached a limit; the argument says which."""


class BoundedTemplate:
    """The chat template `source` with the tokenizer's special tokens, rendered by the process that renders for all.

    Renders as `apply_chat_template(tokenize=False)` of transformers does.
    """

    def __init__(self, source: str, tokenizer: PreTrainedTokenizerFast) -> None:
        self.source = source
        special = tokenizer.special_tokens_map.items()
        self._variables = {name: token for name, token in special if isinstance(token, str)}
        self._seconds = ALL_SECONDS

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] = (),
        prompt: bool = True,
        flags: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of the messages; with `prompt`, up to where the next answer begins. `flags` are further variables.

        Raises TemplateRefusedError or TemplateLimitError.
        """
        if self._seconds <= 0:
            raise TemplateLimitError(f"its renderings together take more than {ALL_SECONDS:.0f} s")
        request = {
            "source": self.source,
            "messages": list(messages),
            "tools": list(tools) or None,
            "prompt": prompt,
            "variables": self._variables | dict(flags or {}),
        }
        process, began = shared_process(), time.monotonic()
        found = process.rendered(request, min(RENDER_SECONDS, self._seconds))
        self._seconds -= time.monotonic() - began
        if "limit" in found:
            raise TemplateLimitError(found["limit"])
        if "error" in found:
            raise TemplateRefusedError(found["error"])
        return found["text"]
