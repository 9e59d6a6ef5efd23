"""Rows whose thoughts stand between tags in a copy of the text (`augmented_text`), as published sets have them.

A teacher wrote that copy, so it need not be the text: of the companion set of the published 0.6B model 66 rows of 8,704
are others. Where a copy differs in white space alone, its own spelling is the text, for that is what its thoughts stand
in.
"""

from __future__ import annotations

from sleuth.data.splicing import unspliced
from sleuth.dialects import DIALECTS
from sleuth.types import SleuthError, Thought

THINK = DIALECTS["sleuth"].think
"""The tags of a thought: those of the tokenizers that have any."""


def taken_apart(augmented: str, raw: str) -> tuple[str, tuple[Thought, ...]] | None:
    """The text and its thoughts; None where the copy without its thoughts is not the `raw` text, or a tag stands alone.
    Empty thoughts are left out.

    `taken_apart("Rain falls.<think>so wet</think> Go.", "Rain falls. Go.")` is
    `("Rain falls. Go.", (Thought(at=11, text="so wet"),))`.
    """
    try:
        text, thoughts = unspliced(augmented, (THINK.open, THINK.close))
    except SleuthError:
        return None
    if text.split() != raw.split():
        return None
    return text, tuple(thought for thought in thoughts if thought.text.strip())
