"""The lexical judge: a claim is supported where its names, dates and numbers stand in connected sentences of the
evidence, with most of its other words, and neither side denies what the other says.

Deterministic, offline and strict: a paraphrase in other words may go unrecognised, while a changed name, number or date
or a dropped "not" never passes. It does not know who did what to whom: "Ada hired Ben" supports "Ben hired Ada".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sleuth.judges.sentences import Item, Sentence, capitals_in, sentences_of
from sleuth.types import Case, Verdict

FULL, PARTIAL = 0.75, 0.5
"""The shares of a claim's plain words that make full and partial support."""
HALF = 0.5
"""What partial support is worth (arXiv:2511.19399 gives it the same)."""
SENTENCES = 3
"""So many sentences of the evidence may support one of the claim together."""
BEGINNINGS = 5
"""So many of the likeliest sentences are tried as the first of them."""


class LexicalJudge:
    """Needs no model and no network. A criterion is a statement that the answer should make."""

    identity = "lexical"

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """A verdict of 0, 0.5 or 1 for each case."""
        return [support(case.claim, case.evidence) for case in map(as_support, cases)]


def support(claim: str, evidence: str) -> Verdict:
    """How far the evidence supports the claim: as far as the least supported of its sentences. A blank line parts
    pieces of evidence, so that a pronoun never reaches back across it."""
    stated = sentences_of(claim, capitals_in(evidence))
    if not stated:
        return Verdict(score=0.0, reason="the claim says nothing that could be checked")
    capitals = capitals_in(claim)
    pieces = [sentences_of(piece, capitals) for piece in evidence.split("\n\n")]
    return min((_support(sentence, pieces) for sentence in stated), key=lambda verdict: verdict.score or 0.0)


def _support(stated: Sentence, pieces: Sequence[Sequence[Sentence]]) -> Verdict:
    known = [sentence for piece in pieces for sentence in piece]
    for anchor in sorted(stated.anchors):
        if not any(sentence.holds(anchor) for sentence in known):
            return Verdict(score=0.0, reason=f"{' '.join(filter(None, anchor[1:]))} is not in the evidence")
    links = _Links(pieces)
    items = stated.anchors | stated.words
    likeliest = sorted(range(len(known)), key=lambda at: -_count(known[at], items))[:BEGINNINGS]
    verdicts = [_read_together(stated, known, links, first) for first in likeliest]
    if not verdicts:
        return Verdict(score=0.0, reason="there is no evidence")
    return max(verdicts, key=lambda verdict: verdict.score or 0.0)


def _read_together(stated: Sentence, known: Sequence[Sentence], links: _Links, first: int) -> Verdict:
    """The verdict on what sentence `first` says together with at most two that are linked to it."""
    read = [first]
    open_items = {item for item in stated.anchors | stated.words if not known[first].holds(item)}
    while open_items and len(read) < SENTENCES:
        linked = [at for at in range(len(known)) if at not in read and _linked(at, read, stated, known, links)]
        best = max(linked, key=lambda at: _count(known[at], open_items), default=None)
        if best is None or not _count(known[best], open_items):
            break
        read.append(best)
        open_items = {item for item in open_items if not known[best].holds(item)}
    unconnected = sorted(" ".join(filter(None, item[1:])) for item in open_items if item[0] != "word")
    if unconnected:
        return Verdict(score=0.0, reason=f"nothing connects {unconnected[0]} with the rest of the claim")
    if stated.denies != known[first].denies:
        return Verdict(score=0.0, reason=f"one denies what the other says: {known[first].text}")
    share = 1 - len(open_items) / len(stated.words) if stated.words else 1.0
    score = 1.0 if share >= FULL else HALF if share >= PARTIAL else 0.0
    return Verdict(score=score, reason=f"{share:.0%} of its words are in: {known[first].text}")


def _linked(at: int, read: Sequence[int], stated: Sentence, known: Sequence[Sentence], links: _Links) -> bool:
    """Whether sentence `at` may be read with those that are: it continues one or is continued by it; or both name the
    same and each has a word of the claim to say about it. Two names beside each other are no support."""

    def says_something(place: int) -> bool:
        return any(map(known[place].holds, stated.words))

    return any(links.continued(at, other) for other in read) or (
        says_something(at)
        and any(says_something(other) and links.share_name(known[at], known[other]) for other in read)
    )


class _Links:
    """Which sentences of the evidence speak of the same thing."""

    def __init__(self, pieces: Sequence[Sequence[Sentence]]) -> None:
        self._continues: set[tuple[int, int]] = set()
        start = 0
        for piece in pieces:
            for at, sentence in enumerate(piece[1:], start=start + 1):
                if sentence.goes_on or not sentence.names:
                    self._continues.add((at - 1, at))
            start += len(piece)

    def continued(self, one: int, other: int) -> bool:
        """Whether one of two sentences begins with a pronoun, or names nobody, right behind the other."""
        return (min(one, other), max(one, other)) in self._continues

    @staticmethod
    def share_name(one: Sentence, other: Sentence) -> bool:
        """Whether a name of one stands in the other."""
        return any(map(other.holds, one.names)) or any(map(one.holds, other.names))


def _count(sentence: Sentence, items: Iterable[Item]) -> int:
    return sum(map(sentence.holds, items))


TAG = re.compile(r"</?\w[^<>]*>")


def as_support(case: Case) -> Case:
    """A criterion read as a statement: it is fulfilled as far as the answer, without its tags, states it. Only of use
    for criteria that are statements, such as "Ada Voss was born in Tarn."; a case without one stays as it is."""
    if not case.criterion:
        return case
    return Case(claim=case.criterion, evidence=TAG.sub(" ", case.claim))
