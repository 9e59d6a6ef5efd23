"""Reasoning problems in the layouts of four test sets; and how answers are read out of a text and compared.

- `gsm8k` (arXiv:2110.14168): `question`, and `answer`, which ends with `#### 72`;
- `math_500` (arXiv:2305.20050): `problem`, `answer`, `unique_id`, `subject`;
- `gpqa_diamond` (arXiv:2311.12022): `Question`, `Correct Answer`, `Incorrect Answer 1` to `3`, `Record ID`, in csv too;
- `olympiad_bench` (arXiv:2402.14008): `question`, `final_answer` (a list), `is_multiple_answer`, `id`; rows with
  pictures and proofs without an answer are skipped.

Answers are equal as numbers if both are, else as normalised LaTeX strings. No computer algebra: `2x` is not `x+x`.
LaTeX spellings are normalised as in the scoring of MATH (arXiv:2103.03874).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from sleuth.data.hub import local_file
from sleuth.data.rows import Row, checked_text, read_rows, text_of, texts_of
from sleuth.types import SleuthError

Form = Literal["number", "boxed", "choice"]
"""The form of a problem's answer: a number, any expression in a box, or the letter of a choice."""
WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
COLUMNS = (
    *("id", "question", "answer", "problem", "unique_id", "subject", "final_answer", "is_multiple_answer", "modality"),
    *("image_1", "subfield", "Question", "Correct Answer", *WRONG, "Record ID", "Subdomain"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`Problem(id="math_500/7", text="What is 1+1?", answer="2", form="boxed")`. With `choices`, `answer` is the letter
    of the right one; with `several` it is a list in any order. `kind` only groups figures."""

    id: str
    text: str
    answer: str
    form: Form
    kind: str = ""
    choices: tuple[str, ...] = ()
    several: bool = False

    @property
    def guess(self) -> float:
        """The probability of a right guess."""
        return 1 / len(self.choices) if self.choices else 0.0


def load_problems(layout: str, path: Path, limit: int | None = None) -> list[Problem]:
    """The first `limit` problems of a file, local or on the hub. Raises SleuthError with file:line for a malformed row,
    and for a repeated id or a file without problems."""
    problems: dict[str, Problem] = {}
    rows = read_rows(local_file(path), COLUMNS)
    parsed = (problem for where, row in rows if (problem := READERS[layout](row, where)) is not None)
    for problem in islice(parsed, limit):
        if problem.id in problems:
            raise SleuthError(f"{path}: id {problem.id!r} was used by an earlier problem; ids should be unique")
        problems[problem.id] = problem
    if not problems:
        raise SleuthError(f"{path}: has no problem in the layout {layout!r}")
    return list(problems.values())


def _gsm8k(row: Row, where: str) -> Problem:
    reasoning, separator, answer = text_of(row, "answer", where).rpartition("####")
    if not separator or not answer.strip():
        raise SleuthError(f"{where}: `answer` should end with #### and a number, found {reasoning[-40:]!r}")
    return Problem(
        id=_id(row.get("id"), "gsm8k", where),
        text=text_of(row, "question", where).strip(),
        answer=answer.strip(),
        form="number",
    )


def _math_500(row: Row, where: str) -> Problem:
    return Problem(
        id=_id(row.get("unique_id"), "math_500", where),
        text=text_of(row, "problem", where).strip(),
        answer=text_of(row, "answer", where).strip(),
        form="boxed",
        kind=str(row.get("subject") or ""),
    )


def _gpqa_diamond(row: Row, where: str) -> Problem:
    id_ = _id(row.get("Record ID"), "gpqa_diamond", where)
    right = text_of(row, "Correct Answer", where).strip()
    choices = [right, *(text_of(row, key, where).strip() for key in WRONG)]
    order = random.Random(f"choices {id_}").sample(range(len(choices)), len(choices))  # the same for every run
    return Problem(
        id=id_,
        text=text_of(row, "Question", where).strip(),
        answer="ABCD"[order.index(0)],
        form="choice",
        kind=str(row.get("Subdomain") or ""),
        choices=tuple(choices[index] for index in order),
    )


def _olympiad_bench(row: Row, where: str) -> Problem | None:
    answers = texts_of(row.get("final_answer"), "final_answer", where)
    has_image = row.get("image_1") is not None or str(row.get("modality") or "Text-only") != "Text-only"
    if has_image or not answers:
        return None
    return Problem(
        id=_id(row.get("id"), "olympiad_bench", where),
        text=text_of(row, "question", where).strip(),
        answer=", ".join(answer.strip().strip("$") for answer in answers),
        form="boxed",
        kind=str(row.get("subfield") or ""),
        several=bool(row.get("is_multiple_answer")) or len(answers) > 1,
    )


def _id(given: Any, layout: str, where: str) -> str:
    """The id with its layout; a row without one is named by its line."""
    own = f"row_{where.rpartition(':')[2]}" if given is None else str(given)
    return f"{layout}/{checked_text(own, 'id', where)}"


READERS: Mapping[str, Callable[[Row, str], Problem | None]] = {
    "gsm8k": _gsm8k,
    "math_500": _math_500,
    "gpqa_diamond": _gpqa_diamond,
    "olympiad_bench": _olympiad_bench,
}

# -- answers -----------------------------------------------------------------------------------------------------------

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


def is_right(problem: Problem, answer: str | None) -> bool:
    """Whether an extracted answer is equivalent to the problem's."""
    if answer is None:
        return False
    match problem.form:
        case "choice":
            return answer == problem.answer
        case "number":
            return same_number(answer, problem.answer)
        case "boxed":
            return same_answer(answer, problem.answer, several=problem.several)


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


def spelling(text: str) -> str:
    """The normalised expression: no spaces, no sizes, no units in words after a number, no name before `=`."""
    text = TEXT.sub(lambda match: match[1], text.strip().rstrip("."))
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = re.sub(r"^(-?[\d.,/]+)\s*(?:[a-zA-Z]{2,}[a-zA-Z .]*)$", r"\1", text.strip())  # 12 apples
    text = NAMED.sub("", DROPPED.sub("", text))
    text = THOUSANDS.sub("", text.replace("{,}", ","))
    text = SHORT_FRACTION.sub(_full_fraction, text)
    text = SHORT_ROOT.sub(r"\\sqrt{\1}", text)
    text = re.sub(r"\\([lg]e)q?(?![a-z])", r"\\\1", text)
    return text.replace("\\cdot", "\\times").replace("\\lbrace", "\\{").replace("\\rbrace", "\\}")


def _full_fraction(match: re.Match[str]) -> str:
    numerator, denominator = [part for part in match.groups() if part is not None]
    return f"\\frac{{{numerator}}}{{{denominator}}}"


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
