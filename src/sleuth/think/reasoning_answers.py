"""Equality of mathematical answers, as numbers if both are, else as normalised LaTeX strings; answer extraction.

No computer algebra: `2x` is not `x+x`. LaTeX spellings are normalised as in the scoring of MATH (arXiv:2103.03874).
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
MAX_DIGITS = 400
"""Numbers with more characters and larger exponents are compared as strings."""


def same_answer(given: str, golden: str, *, several: bool = False) -> bool:
    """Whether two answers are equal. With `several` both are lists, in any order."""
    if several:
        given_keys, golden_keys = (sorted(map(_key, _parts(text)), key=str) for text in (given, golden))
        return given_keys == golden_keys
    return _key(given) == _key(golden)


def same_number(given: str, golden: str) -> bool:
    """Whether both texts are numbers and equal."""
    number = number_of(spelling(given))
    return number is not None and number == number_of(spelling(golden))


def _key(text: str) -> Fraction | str:
    spelled = spelling(text)
    number = number_of(spelled)
    return spelled if number is None else number


def spelling(text: str) -> str:
    """The normalised expression: no spaces, no sizes, no units in words after a number, no name before `=`."""
    text = TEXT.sub(lambda match: match[1], text.strip().rstrip("."))
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
    """The number that a normalised expression denotes; None if it is not a number."""
    if len(text) > MAX_DIGITS:
        return None
    try:
        if PLAIN.match(text):
            numerator, _, denominator = text.partition("/")
            return Fraction(numerator.removesuffix(".")) / (Fraction(denominator) if denominator else 1)
        if match := FRACTION.match(text):
            sign = -1 if match[1] else 1
            return sign * Fraction(int(match[2]), int(match[3]))
        if (match := SCIENTIFIC.match(text)) and abs(int(match[2])) <= MAX_DIGITS:
            return Fraction(match[1]) * Fraction(10) ** int(match[2])
    except ZeroDivisionError:
        return None
    return None


def _full_fraction(match: re.Match[str]) -> str:
    numerator, denominator = [part for part in match.groups() if part is not None]
    return f"\\frac{{{numerator}}}{{{denominator}}}"


def _parts(text: str) -> list[str]:
    """The entries of a list, split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    text = THOUSANDS.sub("", text.strip().removeprefix("\\{").removesuffix("\\}"))
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [part for part in (*parts, text[start:]) if part.strip()]


Form = Literal["number", "boxed", "choice"]
"""The form of a problem's answer: a number, any expression in a box, or the letter of a choice."""

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
NUMBER = re.compile(r"[-+]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
MARKED = re.compile(r"####\s*([^\n]+)")
LETTER = re.compile(r"^\W*(?:\\text(?:bf)?\{)?\W*([A-Z])\b")
STATED_LETTER = re.compile(r"(?i:answer\s*(?:is|:)?)\s*\**\s*\(?([A-Z])\)?(?![\w'])")
"""`The answer is (B)`, `Answer: B`."""


def extract(text: str, form: Form) -> str | None:
    """The answer in a text; None without one.

    The last closed box decides. Without a box, a number is taken after the last `####`, else from the end of the text,
    and a letter after the last word "answer"; an expression must be in a box.
    """
    box = boxed(text)
    if form == "choice":
        letter = LETTER.match(box) if box is not None else None
        stated = STATED_LETTER.findall(text) if box is None else []
        return letter[1] if letter else (stated[-1] if stated else None)
    if box is not None or form == "boxed":
        return box
    marked = MARKED.findall(text)
    numbers = NUMBER.findall(marked[-1] if marked else text)
    return numbers[-1] if numbers else None


def boxed(text: str) -> str | None:
    r"""The content of the last closed, non-empty `\boxed{...}`; None without one."""
    content = None
    for opening in BOX.finditer(text):
        depth = 1
        for index in range(opening.end(), len(text)):
            depth += (text[index] == "{") - (text[index] == "}")
            if depth == 0:
                content = text[opening.end() : index].strip() or content
                break
    return content
