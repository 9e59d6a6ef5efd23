"""Answers that say that the evidence does not tell."""

from __future__ import annotations

import re

LONGEST = 40
"""Words of an abstention; what is longer says something else too."""

NOTHING_FOUND = re.compile(
    r"""\b(?:
        (?:do|does|did|can|could)(?:\ not|n't|not|'t)\ (?:\w+\ ){0,3}
            (?:answer|say|tell|state|mention|contain|give|name|specify|provide|include|address|show|determine|find)
        | can(?:\ ?not|'t)\ be\ (?:answered|determined|established|found|told)
        | (?:(?:is|are|was|were)\ (?:not|nowhere)|(?:is|are|was|were)n't)\ (?:\w+\ )?
            (?:answered|stated|mentioned|given|found|specified|provided|known|available|told)
        | no\ (?:\w+\ ){0,2}(?:answer|information|evidence|mention|results?|snippets?|sources?)
        | none\ of\ the\ (?:\w+\ )?(?:results|snippets|sources|passages)
        | nothing\ (?:\w+\ ){0,4}(?:answers|says|tells|states|mentions|about)
        | (?:insufficient|not\ enough)\ (?:information|evidence)
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)


def abstains(answer: str) -> bool:
    """Whether an answer that claims nothing says so in a sentence or two. Silence and evasion are no abstention."""
    return 0 < len(answer.split()) <= LONGEST and NOTHING_FOUND.search(answer.replace("\u2019", "'")) is not None
