"""The refiner's dialects: one answer from a given tool output, with claims wrapped in `<snippet id=ID1,ID2>`.

There is one turn and no search; the search tags are there only because every dialect needs them.

- `answer_only`: the answer and nothing else (the mode of the published refiners' data);
- `thinking`: a closed thought, then the answer.

The answer may be anywhere in the turn; rewards judge whether the format is right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from sleuth.dialect import Dialect, Tags
from sleuth.search.dialects import SLEUTH

Mode = Literal["answer_only", "thinking"]

ANSWER_ONLY = replace(
    SLEUTH,
    name="refine_answer_only",
    information=Tags(open="<tool_output>", close="</tool_output>"),
    stops=("</answer>",),
    action=r"(?s)<(?P<kind>answer)>(?P<text>(?=\s*(?!</?answer>)\S)(?:(?!</?answer>).)+)</answer>\s*\Z",
    passage="<snippet id={rank}>{text}</snippet>",
    hint="",
    hints=0,
    top_k=1,
    searches=0,
    turns=1,
    turn_tokens=1024,
    passage_tokens=None,
)

THINKING = replace(ANSWER_ONLY, name="refine_thinking")
REFINERS: dict[Mode, Dialect] = {"answer_only": ANSWER_ONLY, "thinking": THINKING}
"""Mode -> dialect."""


def refines(dialect: Dialect) -> bool:
    """Whether a dialect is a refiner's."""
    return dialect.name in {refiner.name for refiner in REFINERS.values()}
