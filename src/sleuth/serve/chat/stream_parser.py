"""What a policy writes in its turns, told apart as it comes: thoughts, queries and drafts of an answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from sleuth.dialects import Dialect

Part = Literal["thought", "query", "draft"]

NOTHING_OPENED: Part = "thought"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Some words of the policy: `Said(part="query", text="Ada Voss")`. What it did is the environment's to say: a draft
    is no answer, and a query no search, until the environment took it as such."""

    part: Part
    text: str


class StreamParser:
    """Follows the turns of one conversation by the tags of `dialect`, which are left out.

    Between the tags of a search is a query, between those of an answer a draft; all else is thought. Thoughts of
    different turns are set apart by a line break.
    """

    def __init__(self, dialect: Dialect) -> None:
        thoughts: dict[str, Part] = {tag: "thought" for tag in dialect.tags}
        others: dict[str, Part] = {dialect.search.open: "query", dialect.answer.open: "draft"}
        self._tags: dict[str, Part] = thoughts | others
        longest_first = sorted(self._tags, key=len, reverse=True)
        self._tag = re.compile("|".join(map(re.escape, longest_first)))
        self._part: Part = "thought"
        self._held = ""
        self._thought = False  # in an earlier turn
        self._thinks = False  # in this one

    def begin(self, before: str) -> None:
        """A turn begins behind the text `before`, which may have opened a tag for it."""
        self._part = NOTHING_OPENED
        for tag, part in self._tags.items():
            if before.rstrip().endswith(tag):
                self._part = part
        self._thought, self._thinks = self._thought or self._thinks, False

    def feed(self, text: str) -> Iterator[Said]:
        """What `text` adds. What may be the beginning of a tag is held back until it is known."""
        text, self._held = self._held + text, ""
        while tag := self._tag.search(text):
            yield from self._said(text[: tag.start()])
            self._part, text = self._tags[tag[0]], text[tag.end() :]
        settled = len(text) - unsettled(text, self._tags)
        self._held = text[settled:]
        yield from self._said(text[:settled])

    def end(self) -> Iterator[Said]:
        """What was held back, at the end of the turn."""
        held, self._held = self._held, ""
        yield from self._said(held)

    def _said(self, text: str) -> Iterator[Said]:
        if not text:
            return
        if self._part == "thought":
            if self._thought and not self._thinks:
                text = "\n" + text
            self._thinks = True
        yield Said(part=self._part, text=text)


def unsettled(text: str, strings: Iterable[str]) -> int:
    """How many characters at the end of `text` may be the beginning of one of `strings`."""
    return max(
        (
            length
            for string in strings
            for length in range(1, min(len(string), len(text) + 1))
            if text.endswith(string[:length])
        ),
        default=0,
    )
