"""The lexical judge: a claim is supported if connected sentences of the evidence contain its names, dates and numbers
and most of its other words, and agree with it in negation.

Deterministic, offline and strict: a paraphrase in other words may go unrecognised, while a changed name, number or date
or a dropped "not" never passes, nor does a statement that is denied ("It is false that ...", "That is not true."),
framed ("It was once thought that ..."), asked or supposed ("If ...").

It ignores syntax: "Ada hired Ben" supports "Ben hired Ada". It knows denials by their words, and so does not see what
else takes a statement back: reports ("Some say that ..."), moods ("may", "would have been"), verbs and adverbs
("failed to", "almost"), places and times that are excluded ("far from Tarn", "before 1874", "anywhere but in Tarn").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sleuth.judges.sentences import Item, Sentence, capitals_in, sentences_of
from sleuth.types import Case, Verdict

FULL_SHARE, PARTIAL_SHARE = 0.75, 0.5
"""The shares of a claim's plain words needed for full and for partial support."""
PARTIAL_SCORE = 0.5
"""As in arXiv:2511.19399."""
MAX_SENTENCES = 3
"""The number of evidence sentences that may together support one sentence of the claim."""
MAX_STARTS = 5
"""The number of evidence sentences, those with most items of the claim, that are tried as the first one."""


class LexicalJudge:
    """A judge without a model. A criterion is a statement that the answer should make."""

    identity = "lexical 2"

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """A verdict of 0, 0.5 or 1 for each case."""
        return [support(case.claim, case.evidence) for case in map(as_support, cases)]


def support(claim: str, evidence: str) -> Verdict:
    """The verdict on the least supported sentence of the claim. Blank lines separate pieces of evidence; a pronoun
    never refers across one."""
    stated = sentences_of(claim, capitals_in(evidence))
    if not any(map(_states, stated)):
        return Verdict(score=0.0, reason="the claim says nothing that could be checked")
    capitals = capitals_in(claim)
    pieces = [_standing(sentences_of(piece, capitals)) for piece in evidence.split("\n\n")]
    return min((_support(sentence, pieces) for sentence in stated), key=lambda verdict: verdict.score or 0.0)


def _states(sentence: Sentence) -> bool:
    return bool(sentence.anchors or sentence.words)


def _standing(sentences: Sequence[Sentence]) -> list[Sentence]:
    """The sentences that state something which the next one does not take back ("That is false.")."""
    taken_back = [not _states(following) for following in sentences[1:]] + [False]
    return [one for one, denied in zip(sentences, taken_back, strict=False) if _states(one) and not denied]


def _support(stated: Sentence, pieces: Sequence[Sequence[Sentence]]) -> Verdict:
    if stated.asks or not _states(stated):
        return Verdict(score=0.0, reason=f"{'asks' if stated.asks else 'takes back'} what it should state")
    known = [sentence for piece in pieces for sentence in piece]
    for anchor in sorted(stated.anchors):
        if not any(sentence.contains(anchor) for sentence in known):
            return Verdict(score=0.0, reason=f"{' '.join(filter(None, anchor[1:]))} is not in the evidence")
    links = _Links(pieces)
    items = stated.anchors | stated.words
    starts = sorted(range(len(known)), key=lambda index: -_count(known[index], items))[:MAX_STARTS]
    verdicts = [_support_from(stated, known, links, first) for first in starts]
    if not verdicts:
        return Verdict(score=0.0, reason="there is no evidence")
    return max(verdicts, key=lambda verdict: verdict.score or 0.0)


def _support_from(stated: Sentence, known: Sequence[Sentence], links: _Links, first: int) -> Verdict:
    """The support by sentence `first` together with at most two sentences linked to it."""
    used = [first]
    open_items = {item for item in stated.anchors | stated.words if not known[first].contains(item)}
    while open_items and len(used) < MAX_SENTENCES:
        linked = [at for at in range(len(known)) if at not in used and _is_linked(at, used, stated, known, links)]
        best = max(linked, key=lambda at: _count(known[at], open_items), default=None)
        if best is None or not _count(known[best], open_items):
            break
        used.append(best)
        open_items = {item for item in open_items if not known[best].contains(item)}
    unconnected = sorted(" ".join(filter(None, item[1:])) for item in open_items if item[0] != "word")
    if unconnected:
        return Verdict(score=0.0, reason=f"nothing connects {unconnected[0]} with the rest of the claim")
    if known[first].asks or known[first].frames - stated.frames:
        return Verdict(score=0.0, reason=f"the evidence does not state it outright: {known[first].text}")
    if stated.denies != known[first].denies:
        return Verdict(score=0.0, reason=f"one denies what the other says: {known[first].text}")
    share = 1 - len(open_items) / len(stated.words) if stated.words else 1.0
    score = 1.0 if share >= FULL_SHARE else PARTIAL_SCORE if share >= PARTIAL_SHARE else 0.0
    return Verdict(score=score, reason=f"{share:.0%} of its words are in: {known[first].text}")


def _is_linked(at: int, used: Sequence[int], stated: Sentence, known: Sequence[Sentence], links: _Links) -> bool:
    """Whether sentence `at` may be combined with the used ones: it continues one, or one continues it; or they share a
    name and each contains a plain word of the claim. Names alone are no support."""

    def has_claim_word(index: int) -> bool:
        return any(map(known[index].contains, stated.words))

    return any(links.continued(at, other) for other in used) or (
        has_claim_word(at)
        and any(has_claim_word(other) and links.share_name(known[at], known[other]) for other in used)
    )


class _Links:
    """Which sentences of the evidence are about the same thing."""

    def __init__(self, pieces: Sequence[Sequence[Sentence]]) -> None:
        self._continues: set[tuple[int, int]] = set()
        start = 0
        for piece in pieces:
            for at, sentence in enumerate(piece[1:], start=start + 1):
                if sentence.starts_with_pronoun or not sentence.names:
                    self._continues.add((at - 1, at))
            start += len(piece)

    def continued(self, one: int, other: int) -> bool:
        """Whether one of two sentences directly follows the other and starts with a pronoun or has no name."""
        return (min(one, other), max(one, other)) in self._continues

    @staticmethod
    def share_name(one: Sentence, other: Sentence) -> bool:
        """Whether a name in one occurs in the other."""
        return any(map(other.contains, one.names)) or any(map(one.contains, other.names))


def _count(sentence: Sentence, items: Iterable[Item]) -> int:
    return sum(map(sentence.contains, items))


TAG = re.compile(r"</?\w[^<>]*>")


def as_support(case: Case) -> Case:
    """The case with its criterion as a claim and the answer, without tags, as evidence. Useful only for criteria that
    are statements, such as "Ada Voss was born in Tarn."; a case without a criterion is returned unchanged."""
    if not case.criterion:
        return case
    return Case(claim=case.criterion, evidence=TAG.sub(" ", case.claim))
