"""What an episode's answer may cite: what the environment supplied, and nothing that the policy wrote."""

from __future__ import annotations

import re

from sleuth.rewards.citation.claims import CitedAnswer, bracketed, tagged
from sleuth.rewards.citation.measure import EvidenceTexts
from sleuth.rewards.supplied import shown_passages
from sleuth.types import Episode, Passage


def citable(episode: Episode) -> EvidenceTexts:
    """The texts that can be cited, by their ids.

    Of a refiner's task the snippets of its tool output. Of a search, the passages as far as they were shown: `2.1` is
    the first of the second search, and its plain rank will do where there was one search.
    """
    if episode.task.evidence is not None:
        return {snippet.id: _text(snippet, snippet.text) for snippet in episode.task.evidence.snippets}
    texts: dict[str, str] = {}
    for search, rank, passage, shown in shown_passages(episode.trajectory):
        text = _text(passage, _shown_part(passage.text, shown))
        texts[f"{search}.{rank}"] = text
        if episode.trajectory.searches == 1:
            texts[str(rank)] = text
    return texts


def read_answer(answer: str, episode: Episode) -> CitedAnswer:
    """The claims of an answer: a refiner tags them, a searcher may also put numbers in brackets."""
    found = tagged(answer)
    return found if found.claims or episode.task.evidence is not None else bracketed(answer)


def _text(passage: Passage, text: str) -> str:
    return f"{passage.title}\n{text}" if passage.title else text


def _shown_part(text: str, shown: str) -> str:
    """The longest beginning of a passage that stands in what was shown: a token budget cuts from the end."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if text[:middle] in shown else (low, middle - 1)
    return text[:low]


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
