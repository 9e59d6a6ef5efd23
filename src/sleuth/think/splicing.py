"""Inserts thoughts into a text and extracts them again; the text is never generated, so it cannot change.

A tag starts with `<`, ends with `>` and has neither inside: if text and thoughts hold no tag, joining them creates
none, and extraction returns exactly what was inserted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sleuth.data.layouts import CopyLayout
from sleuth.dialect import DIALECTS
from sleuth.types import SleuthError, Thought

BREAK = re.compile(r"(?<=[.!?;:])[\"'\u201d\u2019)\]]*(?=\s)|(?<=\S)(?=\s*\n)")
"""The end of a sentence, clause or line; the white space after it belongs to what follows."""
BRACKETS = (("\u27e6", "\u27e7"), ("\u2983", "\u2984"), ("\u2e28", "\u2e29"))
"""Brackets for the numbers of places; the first pair that is not in the text is used."""
THINK = DIALECTS["sleuth"].think
TAGS = (THINK.open, THINK.close)
"""The tags of a thought."""


def break_offsets(text: str) -> list[int]:
    """The character offsets at which a thought can be inserted: after sentences, clauses and lines, never at the start
    or the end of the text."""
    ends = (match.end() for match in BREAK.finditer(text))
    return [at for at in dict.fromkeys(ends) if text[:at].strip() and text[at:].strip()]


def number_places(text: str, places: Sequence[int]) -> str:
    """The text with its places numbered from 1: `Rain falls.⟦1⟧ Rivers rise.`"""
    opening, closing = place_brackets(text)
    return _with(text, [(at, f"{opening}{number}{closing}") for number, at in enumerate(places, start=1)])


def place_brackets(text: str) -> tuple[str, str]:
    """The brackets around the numbers of places in this text."""
    return next((pair for pair in BRACKETS if not any(bracket in text for bracket in pair)), BRACKETS[0])


def insert_thoughts(text: str, thoughts: Sequence[Thought]) -> str:
    """The text with its thoughts between their tags. Raises SleuthError if text or thoughts hold a tag, which
    `extract_thoughts` could not distinguish."""
    texts = (text, *(thought.text for thought in thoughts))
    tag = next((tag for tag in TAGS if any(tag in part for part in texts)), None)
    if tag is not None:
        raise SleuthError(f"the text or a thought holds {tag!r}, the tag of a thought")
    return _with(text, [(thought.at, f"{THINK.open}{thought.text}{THINK.close}") for thought in thoughts])


def extract_thoughts(augmented: str) -> tuple[str, tuple[Thought, ...]]:
    """(text, thoughts) from a text with thoughts: the inverse of `insert_thoughts`. Raises SleuthError for an unpaired
    tag."""
    text, thoughts, rest = "", [], augmented
    while THINK.open in rest:
        before, _, rest = rest.partition(THINK.open)
        thought, closed, rest = rest.partition(THINK.close)
        if not closed or THINK.open in thought or THINK.close in before:
            break
        text += before
        thoughts.append(Thought(at=len(text), text=thought))
    else:
        if THINK.close not in rest:
            return text + rest, tuple(thoughts)
    raise SleuthError(f"unpaired {THINK.open} or {THINK.close} after {len(text):,} characters of the text")


def split_copy(augmented: str, raw: str) -> tuple[str, tuple[Thought, ...]] | None:
    """(text, thoughts) from a teacher's copy of the `raw` text with thoughts; None if the copied text differs or a tag
    is unpaired (66 of 8,704 rows of the companion set of the published 0.6B model). White space may differ; the
    returned text is the copy's, in which the thoughts have their offsets. Empty thoughts are left out.

    `split_copy("Rain falls.<think>so wet</think> Go.", "Rain falls. Go.")` is
    `("Rain falls. Go.", (Thought(at=11, text="so wet"),))`.
    """
    try:
        text, thoughts = extract_thoughts(augmented)
    except SleuthError:
        return None
    if text.split() != raw.split():
        return None
    return text, tuple(thought for thought in thoughts if thought.text.strip())


def _with(text: str, insertions: Sequence[tuple[int, str]]) -> str:
    """The text with insertions (offset, inserted text), in order."""
    parts, end = [], 0
    for at, inserted in insertions:
        parts += [text[end:at], inserted]
        end = at
    return "".join([*parts, text[end:]])


LAYOUT = CopyLayout(column="augmented_text", split=split_copy)
