"""What an episode's answer may cite: what the environment supplied, and nothing that the policy wrote."""

from __future__ import annotations

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
