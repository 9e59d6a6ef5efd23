"""Where in what was written the answer is."""

from __future__ import annotations

import re
from typing import Literal

Form = Literal["number", "boxed", "choice"]
"""What a problem asks for: a number, any expression, or the letter of a choice."""

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
NUMBER = re.compile(r"[-+]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
MARKED = re.compile(r"####\s*([^\n]+)")
LETTER = re.compile(r"^\W*(?:\\text(?:bf)?\{)?\W*([A-Z])\b")
SAID = re.compile(r"(?i:answer\s*(?:is|:)?)\s*\**\s*\(?([A-Z])\)?(?![\w'])")
"""`The answer is (B)`, `Answer: B`."""


def extract(text: str, form: Form) -> str | None:
    """The answer that a text gives; None where it gives none.

    The last closed box decides. Without one, a number may stand behind `####` or be the last of the text, and a letter
    behind the word "answer"; an expression has to be in a box.
    """
    box = boxed(text)
    if form == "choice":
        letter = LETTER.match(box) if box is not None else None
        said = SAID.findall(text) if box is None else []
        return letter[1] if letter else (said[-1] if said else None)
    if box is not None or form == "boxed":
        return box
    marked = MARKED.findall(text)
    numbers = NUMBER.findall(marked[-1] if marked else text)
    return numbers[-1] if numbers else None


def boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}` that is closed; None where there is none or it is empty."""
    found = None
    for opening in BOX.finditer(text):
        depth = 1
        for at in range(opening.end(), len(text)):
            depth += (text[at] == "{") - (text[at] == "}")
            if depth == 0:
                found = text[opening.end() : at].strip() or found
                break
    return found
