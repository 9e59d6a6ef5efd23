"""Exact match, substring match and token F1 of an answer against its golden answers."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

CLOSED_ANSWERS = ("yes", "no", "noanswer")
"""Answers without partial credit: in token F1 they score only if both sides are equal."""

WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """The text in lower case, without ASCII punctuation and the words a, an, the, white space collapsed, in that order.

    The definition of SQuAD (arXiv:1606.05250), as in Search-R1 and its descendants. Nothing else is normalised:
    `Beyonce` is not `Beyoncé`, `well-known` is not `well known`.
    """
    text = text.lower().translate(WITHOUT_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(answer: str, golden_answers: Sequence[str]) -> bool:
    """Whether the answer equals one of the golden answers, both normalised."""
    return normalise(answer) in {normalise(golden) for golden in golden_answers}


def sub_match(answer: str, golden_answers: Sequence[str]) -> bool:
    """Whether the answer contains one of the golden answers, both normalised: FlashRAG's `acc` (arXiv:2405.13576).

    Compares characters, not words: `northern` contains `no`. Departure: a golden answer that normalises to nothing
    matches only an empty answer; in FlashRAG it matches every one.
    """
    given = normalise(answer)
    return any(golden in given if golden else not given for golden in map(normalise, golden_answers))


def appears_in(answer: str, text: str) -> bool:
    """Whether the words of the answer occur in a row in the text, both normalised. Stricter than `sub_match`: whole
    words only, and an answer that normalises to nothing appears nowhere."""
    words = normalise(answer)
    return bool(words) and f" {words} " in f" {normalise(text)} "


def token_f1(answer: str, golden_answers: Sequence[str]) -> float:
    """The highest bag-of-words F1 between the answer and a golden answer, both normalised.

    HotpotQA's (arXiv:1809.09600): `yes`, `no` and `noanswer` on either side score 1 or 0. Departure: two answers that
    normalise to nothing score 1, as in exact match; in HotpotQA 0.
    """
    given = normalise(answer)
    return max((_f1(given, normalise(golden)) for golden in golden_answers), default=0.0)


def _f1(given: str, golden: str) -> float:
    if given == golden:
        return 1.0
    if given in CLOSED_ANSWERS or golden in CLOSED_ANSWERS:
        return 0.0
    words, golden_words = given.split(), golden.split()
    shared = (Counter(words) & Counter(golden_words)).total()
    return 2 * shared / (len(words) + len(golden_words))
