"""What a refiner writes: one answer, whose claims are wrapped in `<snippet id=ID1,ID2>`, for the tool output that it is
given. It has one turn and cannot search: the tags of a search are only there because no tokenizer may lack them.

- `answer_only`: the answer, and nothing else (the mode of the published refiners' data);
- `thinking`: a closed thought, then the answer.

An answer is taken wherever it stands in the turn; whether it stands alone is a matter of format, for rewards to judge.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from sleuth.dialects.dialect import Dialect, Tags

Mode = Literal["answer_only", "thinking"]

ANSWER_ONLY = Dialect(
    name="refine_answer_only",
    think=Tags(open="<think>", close="</think>"),
    search=Tags(open="<search>", close="</search>"),
    information=Tags(open="<tool_output>", close="</tool_output>"),
    answer=Tags(open="<answer>", close="</answer>"),
    stops=("</answer>",),
    action=r"(?s)<(?P<kind>answer)>(?P<text>(?=\s*(?!</?answer>)\S)(?:(?!</?answer>).)+)</answer>\s*\Z",
    passage="<snippet id={rank}>{text}</snippet>",
    before_results="\n",
    margin="\n",
    after_results="\n",
    hint="",
    hints=0,
    top_k=1,
    searches=0,
    turns=1,
    turn_tokens=1024,
    passage_tokens=None,
    results_tokens=None,
)

REFINERS: dict[Mode, Dialect] = {
    "answer_only": ANSWER_ONLY,
    "thinking": replace(ANSWER_ONLY, name="refine_thinking"),
}
"""By mode."""


def refines(dialect: Dialect) -> bool:
    """Whether a dialect is a refiner's."""
    return dialect.name in {refiner.name for refiner in REFINERS.values()}
