"""The citable texts of an episode, taken from the environment and never from the policy; claims; abstentions."""

from __future__ import annotations

import re

from sleuth.answers.search_results import shown_passages
from sleuth.cite.claims import CitedAnswer, bracketed, tagged
from sleuth.cite.measure import EvidenceTexts
from sleuth.types import Episode, Passage


def citable(episode: Episode) -> EvidenceTexts:
    """The citable texts by id: the snippets of a refiner's tool output, or the shown parts of retrieved passages.

    `2.1` is the first passage of the second search; after a single search the plain rank is an id too.
    """
    if episode.task.evidence is not None:
        return {snippet.id: _text(snippet, snippet.text) for snippet in episode.task.evidence.snippets}
    texts: dict[str, str] = {}
    for search, rank, passage, reply in shown_passages(episode.trajectory):
        text = _text(passage, _shown_part(passage.text, reply))
        texts[f"{search}.{rank}"] = text
        if episode.trajectory.searches == 1:
            texts[str(rank)] = text
    return texts


def read_answer(answer: str, episode: Episode) -> CitedAnswer:
    """The claims of an answer: a refiner tags them, a search policy may also cite by numbers in brackets."""
    cited = tagged(answer)
    return cited if cited.claims or episode.task.evidence is not None else bracketed(answer)


def _text(passage: Passage, text: str) -> str:
    return f"{passage.title}\n{text}" if passage.title else text


def _shown_part(text: str, reply: str) -> str:
    """The longest prefix of a passage that occurs in the reply, which the token budget cuts at the end."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if text[:middle] in reply else (low, middle - 1)
    return text[:low]


MAX_ABSTENTION_WORDS = 40
"""A longer answer says something else too."""

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
    """Whether an answer without claims says in a sentence or two that there is none. Silence and evasion are not."""
    brief = 0 < len(answer.split()) <= MAX_ABSTENTION_WORDS
    return brief and NOTHING_FOUND.search(answer.replace("\u2019", "'")) is not None
