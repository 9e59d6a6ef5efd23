"""A chat template under examination: it renders whatever it is given, each rendering once, and all within a time."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

from sleuth.envs.render_process import RenderProcess

RENDER_SECONDS = 5.0
ALL_SECONDS = 20.0
"""How long one rendering may take, and all of them together. Published templates take milliseconds."""

Messages = Sequence[Mapping[str, Any]]


class TemplateRefusedError(Exception):
    """The template raised an error for these messages; the argument is its message, on one line."""


class TemplateLimitError(Exception):
    """The template reached a limit and cannot be used again; the argument says which."""


class BoundedTemplate:
    """The chat template `source` with the tokenizer's special tokens, rendered by `process`.

    Renders as `apply_chat_template(tokenize=False)` of transformers does. Equal renderings are made once.
    """

    def __init__(self, source: str, tokenizer: PreTrainedTokenizerFast, process: RenderProcess) -> None:
        self.source = source
        self._variables = {
            name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)
        }
        self._known: dict[str, dict[str, str]] = {}
        self._process = process
        self._seconds = ALL_SECONDS

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        prompt: bool = True,
        flags: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of the messages; with `prompt`, up to where the next answer begins. `flags` are further variables.

        Raises TemplateRefusedError or TemplateLimitError.
        """
        request = {
            "source": self.source,
            "messages": list(messages),
            "tools": list(tools) or None,
            "prompt": prompt,
            "variables": self._variables | dict(flags or {}),
        }
        key = json.dumps(request)
        if key not in self._known:
            self._known[key] = self._timed(request)
        found = self._known[key]
        if "limit" in found:
            raise TemplateLimitError(found["limit"])
        if "error" in found:
            raise TemplateRefusedError(found["error"])
        return found["text"]

    def _timed(self, request: Mapping[str, Any]) -> dict[str, str]:
        if self._seconds <= 0:
            return {"limit": f"its renderings together take more than {ALL_SECONDS:.0f} s"}
        began = time.monotonic()
        try:
            return self._process.rendered(request, min(RENDER_SECONDS, self._seconds))
        finally:
            self._seconds -= time.monotonic() - began
