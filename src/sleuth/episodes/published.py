"""Sources and sha256 of published prompts, whose texts belong to others and are not included.

The hashes are of UTF-8 bytes with the original placeholder for the question.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

QUESTION = "{question}"
"""The placeholder for the question in a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPrompt:
    """A prompt that can be imported. `role`: its authors' system message, user message, or `hint` after an invalid
    action. `place`: its placeholder for the question, if any. `ours`: the name of our own prompt for the same purpose.
    """

    name: str
    role: Literal["system", "user", "hint"]
    place: str | None
    source: str
    sha256: str
    ours: str | None


PUBLISHED: dict[str, PublishedPrompt] = {
    prompt.name: prompt
    for prompt in (
        PublishedPrompt(
            name="p1_basic_w_ex",
            role="system",
            place=None,
            source="QWEN3_0_6B_TEMPLATE in evaluation_research/flashrag/search_r1/templates.py "
            "of github.com/GaurisankarJ/reason_over_search, branch m5.5",
            sha256="7790d9749b3e11205093811ba26cbf30deb27e0ba11ffec600dba39f6714258f",
            ours="research_example",
        ),
        PublishedPrompt(
            name="p3_decide_no_ex",
            role="system",
            place=None,
            source="P3_DECIDE_NO_EX_TEMPLATE in evaluation_research/flashrag/search_r1/templates.py "
            "of github.com/GaurisankarJ/reason_over_search, branch m5.5",
            sha256="60190fad7c9af817907a9a90d25c420c00bdcb2e7f9060e396d2113f1fe57cb0",
            ours="research_rules",
        ),
        PublishedPrompt(
            name="search_r1_base",
            role="user",
            place="{prompt}",
            source="the rows of Search-R1's data (PeterJinGo/nq_hotpotqa_train), or SEARCH_R1_TEMPLATE in "
            "evaluation_research/flashrag/search_r1/templates.py "
            "of github.com/GaurisankarJ/reason_over_search, branch m5.5",
            sha256="9377ef4bcfe00cea7cafe7e66451a2cf790de33669eac2b8a175a7730926c965",
            ours="search_example",
        ),
        PublishedPrompt(
            name="search_r1_retry",
            role="hint",
            place=None,
            source="search_r1/llm_agent/generation.py of github.com/PeterGriffinJin/Search-R1",
            sha256="2b4e05101bcbf539265251f74e7730289cf105d94dff9a05193061e9b0f050ba",
            ours=None,
        ),
    )
}


def sha256_of(contents: bytes) -> str:
    """The hex digest, as in `PublishedPrompt.sha256`."""
    return hashlib.sha256(contents).hexdigest()


def place_of(text: str) -> str:
    """A prompt's placeholder for the question: that of a published prompt, else `{question}`."""
    digest = sha256_of(text.encode())
    places = (prompt.place for prompt in PUBLISHED.values() if prompt.sha256 == digest)
    return next(places, None) or QUESTION
