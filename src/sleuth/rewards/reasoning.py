"""When two mathematical answers are the same: as numbers where both are some, else as strings of one spelling.

No computer algebra: `2x` is not `x+x`. What is folded is how LaTeX may spell one thing, after the normalisation that
MATH (arXiv:2103.03874) is scored with.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal

DROPPED = re.compile(
    r"\\left|\\right|\\[!,;: ]|\\displaystyle|\\quad|\^\{?\\circ\}?|\\degree|\\%|%|\\\$|\$|(?<!\\)\\(?=\s)|~|\s"
)
TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|operatorname|mbox)\{([^{}]*)\}")
FRACTION = re.compile(r"^(-?)\\frac\{(-?\d+)\}\{(-?\d+)\}$")
SHORT_FRACTION = re.compile(r"\\frac(?:(\d)(\d)|\{([^{}]+)\}(\d)|(\d)\{([^{}]+)\})")
SHORT_ROOT = re.compile(r"\\sqrt(\w)")
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
PLAIN = re.compile(r"^[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:/\d+)?$")
SCIENTIFIC = re.compile(r"^([-+]?\d+(?:\.\d+)?)(?:\\times|\\cdot)10\^\{?(-?\d+)\}?$")
NAMED = re.compile(r"^[a-zA-Z](?:\([a-zA-Z]\))?=(?!=)")
MOST_DIGITS = 400
"""Longer exponents and numbers are compared as strings."""


def same_answer(given: str, golden: str, *, several: bool = False) -> bool:
    """Whether two answers are one. With `several` both are lists, in any order."""
    if several:
        ours, theirs = (sorted(map(_key, _parts(text)), key=str) for text in (given, golden))
        return ours == theirs
    return _key(given) == _key(golden)


def same_number(given: str, golden: str) -> bool:
    """Whether two texts are the same number; one that is none is no number's equal."""
    ours, theirs = number_of(spelling(given)), number_of(spelling(golden))
    return ours is not None and ours == theirs


def _key(text: str) -> Fraction | str:
    spelled = spelling(text)
    number = number_of(spelled)
    return spelled if number is None else number


def spelling(text: str) -> str:
    """One spelling of an expression: without spaces, sizes, units in words behind a number, and names before `=`."""
    text = TEXT.sub(lambda found: found[1], text.strip().rstrip("."))
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = re.sub(r"^(-?[\d.,/]+)\s*(?:[a-zA-Z]{2,}[a-zA-Z .]*)$", r"\1", text.strip())  # 12 apples
    text = DROPPED.sub("", text)
    text = NAMED.sub("", text)
    text = THOUSANDS.sub("", text.replace("{,}", ","))
    text = SHORT_FRACTION.sub(_full_fraction, text)
    text = SHORT_ROOT.sub(r"\\sqrt{\1}", text)
    text = re.sub(r"\\(?:leq|le)(?![a-z])", r"\\le", text)
    text = re.sub(r"\\(?:geq|ge)(?![a-z])", r"\\ge", text)
    return text.replace("\\cdot", "\\times").replace("\\lbrace", "\\{").replace("\\rbrace", "\\}")


def number_of(text: str) -> Fraction | None:
    """The number that a spelling is; None where it is none."""
    if len(text) > MOST_DIGITS:
        return None
    try:
        if PLAIN.match(text):
            whole, _, below = text.partition("/")
            return Fraction(whole if not whole.endswith(".") else whole[:-1]) / (Fraction(below) if below else 1)
        if found := FRACTION.match(text):
            sign = -1 if found[1] else 1
            return sign * Fraction(int(found[2]), int(found[3]))
        if (found := SCIENTIFIC.match(text)) and abs(int(found[2])) <= MOST_DIGITS:
            return Fraction(found[1]) * Fraction(10) ** int(found[2])
    except ZeroDivisionError:
        return None
    return None


def _full_fraction(found: re.Match[str]) -> str:
    over, below = [part for part in found.groups() if part is not None]
    return f"\\frac{{{over}}}{{{below}}}"


def _parts(text: str) -> list[str]:
    """The entries of a list, cut at commas that stand in no bracket."""
    parts, depth, begun = [], 0, 0
    text = THOUSANDS.sub("", text.strip().removeprefix("\\{").removesuffix("\\}"))
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[begun:at])
            begun = at + 1
    return [part for part in (*parts, text[begun:]) if part.strip()]


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
