"""Thoughts put into a text and taken out again: the text is never copied by anybody, so it cannot change.

A tag begins with `<`, ends with `>` and has neither within: where text and thoughts hold no tag, no seam between them
makes one, and what is taken out is what was put in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sleuth.dialects import DIALECTS
from sleuth.types import SleuthError, Thought

BREAK = re.compile(r"(?<=[.!?;:])[\"'\u201d\u2019)\]]*(?=\s)|(?<=\S)(?=\s*\n)")
"""Where a sentence, a part of one or a line ends; the white space behind belongs to what follows."""
MARKS = (("\u27e6", "\u27e7"), ("\u2983", "\u2984"), ("\u2e28", "\u2e29"))
"""Brackets for the numbers of places; the first pair that a text does not hold is used."""


def break_offsets(text: str) -> list[int]:
    """The places at which a thought can stand, as numbers of characters before them: behind sentences, parts of them
    and lines, never at the beginning or at the end."""
    ends = (found.end() for found in BREAK.finditer(text))
    return [at for at in dict.fromkeys(ends) if text[:at].strip() and text[at:].strip()]


def number_places(text: str, places: Sequence[int]) -> str:
    """The text with the numbers of the places in it, from 1: `Rain falls.⟦1⟧ Rivers rise.`"""
    mark_open, mark_close = place_brackets(text)
    marked = [(at, f"{mark_open}{number}{mark_close}") for number, at in enumerate(places, start=1)]
    return _with(text, marked)


def place_brackets(text: str) -> tuple[str, str]:
    """The brackets around a number."""
    return next((pair for pair in MARKS if not any(mark in text for mark in pair)), MARKS[0])


def insert_thoughts(text: str, thoughts: Sequence[Thought], tags: tuple[str, str]) -> str:
    """The text with its thoughts between the tags. Raises SleuthError where text or thoughts hold a tag:
    `extract_thoughts` could not tell which is which."""
    named = [tag for tag in tags if any(tag in written for written in (text, *(thought.text for thought in thoughts)))]
    if named:
        raise SleuthError(f"the text or a thought holds {named[0]!r}, the tag of a thought")
    opening, closing = tags
    return _with(text, [(thought.at, f"{opening}{thought.text}{closing}") for thought in thoughts])


def extract_thoughts(augmented: str, tags: tuple[str, str]) -> tuple[str, tuple[Thought, ...]]:
    """A text with thoughts in it, taken apart: what `insert_thoughts` was given. Raises SleuthError for a tag without
    its other half."""
    text, thoughts = "", []
    opening, closing = tags
    rest = augmented
    while opening in rest:
        before, _, rest = rest.partition(opening)
        thought, closed, rest = rest.partition(closing)
        if not closed or opening in thought or closing in before:
            break
        text += before
        thoughts.append(Thought(at=len(text), text=thought))
    else:
        if closing not in rest:
            return text + rest, tuple(thoughts)
    raise SleuthError(f"a {opening} or a {closing} stands alone behind {len(text):,} characters of the text")


def _with(text: str, insertions: Sequence[tuple[int, str]]) -> str:
    """Each insertion behind so many characters of the text, in order."""
    parts, read = [], 0
    for at, inserted in insertions:
        parts += [text[read:at], inserted]
        read = at
    return "".join([*parts, text[read:]])


# A teacher wrote that copy, so it need not be the text: of the companion set of the published 0.6B model 66 rows of
# 8,704 are others. Where a copy differs in white space alone, its own spelling is the text, for that is what its
# thoughts stand in.

THINK = DIALECTS["sleuth"].think
"""The tags of a thought: those of the tokenizers that have any."""


def split_copy(augmented: str, raw: str) -> tuple[str, tuple[Thought, ...]] | None:
    """The text and its thoughts; None where the copy without its thoughts is not the `raw` text, or a tag stands alone.
    Empty thoughts are left out.

    `split_copy("Rain falls.<think>so wet</think> Go.", "Rain falls. Go.")` is
    `("Rain falls. Go.", (Thought(at=11, text="so wet"),))`.
    """
    try:
        text, thoughts = extract_thoughts(augmented, (THINK.open, THINK.close))
    except SleuthError:
        return None
    if text.split() != raw.split():
        return None
    return text, tuple(thought for thought in thoughts if thought.text.strip())
