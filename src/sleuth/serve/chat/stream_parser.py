"""Splits a policy's streamed text into thoughts, queries and draft answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from sleuth.dialect import Dialect
from sleuth.read.dialect import QUOTED

Part = Literal["thought", "query", "draft"]

NOTHING_OPENED: Part = "thought"
MAYBE_QUOTED = re.compile(r"\s*(?:\[[^\[\]]*\]?\s*)?\Z")
"""What may become a quotation, `QUOTED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """Text of the policy: `TextDelta(part="query", text="Ada Voss")`. A draft becomes an answer, and a query a search,
    only when the environment accepts it."""

    part: Part
    text: str


class StreamParser:
    """Parses the turns of one conversation by the tags of `dialect`, which are dropped: text between search tags is a
    query, between answer tags a draft, and all else thought. A line break separates the thoughts of two turns. The
    quotation at the end of a draft is dropped too, in dialects whose answers quote."""

    def __init__(self, dialect: Dialect) -> None:
        thoughts: dict[str, Part] = {tag: "thought" for tag in dialect.tags}
        others: dict[str, Part] = {dialect.search.open: "query", dialect.answer.open: "draft"}
        self._tags: dict[str, Part] = thoughts | others
        longest_first = sorted(self._tags, key=len, reverse=True)
        self._tag = re.compile("|".join(map(re.escape, longest_first)))
        self._quotes = dialect.cites
        self._part: Part = "thought"
        self._held = ""
        self._thought = False  # in an earlier turn
        self._thinks = False  # in this one

    @property
    def part(self) -> Part:
        """The part that the next text belongs to."""
        return self._part

    def begin(self, before: str) -> None:
        """Starts a turn after the text `before`, which may end with an opening tag."""
        self._part = NOTHING_OPENED
        for tag, part in self._tags.items():
            if before.rstrip().endswith(tag):
                self._part = part
        self._thought, self._thinks = self._thought or self._thinks, False

    def feed(self, text: str) -> Iterator[TextDelta]:
        """The parts of `text`. What may be the beginning of a tag, or a quotation, is held back."""
        text, self._held = self._held + text, ""
        while tag := self._tag.search(text):
            yield from self._said(self._without_quotation(text[: tag.start()]))
            self._part, text = self._tags[tag[0]], text[tag.end() :]
        settled = len(text) - partial_match_length(text, self._tags)
        if self._quotes and self._part == "draft" and (quotation := MAYBE_QUOTED.search(text, 0, settled)) is not None:
            settled = quotation.start()
        self._held = text[settled:]
        yield from self._said(text[:settled])

    def end(self) -> Iterator[TextDelta]:
        """The text held back, at the end of the turn."""
        held, self._held = self._held, ""
        yield from self._said(self._without_quotation(held))

    def _without_quotation(self, text: str) -> str:
        return QUOTED.sub("", text) if self._quotes and self._part == "draft" else text

    def _said(self, text: str) -> Iterator[TextDelta]:
        if not text:
            return
        if self._part == "thought":
            if self._thought and not self._thinks:
                text = "\n" + text
            self._thinks = True
        yield TextDelta(part=self._part, text=text)


def partial_match_length(text: str, strings: Iterable[str]) -> int:
    """The number of characters at the end of `text` that may be the beginning of one of `strings`."""
    return max(
        (
            length
            for string in strings
            for length in range(1, min(len(string), len(text) + 1))
            if text.endswith(string[:length])
        ),
        default=0,
    )
