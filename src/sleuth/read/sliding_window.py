"""The control of a reader: the sliding window with distances of MCTest (Richardson et al. 2013), as SQuAD applied it to
spans (arXiv:1606.05250). It learns nothing.

Departure: candidates are the dates, numbers, names and short noun phrases of `answer_spans`, where SQuAD took all
constituents of a parse; so this control is stronger than the 0.13 of the paper.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import pairwise

from sleuth.data.spans import STOP_WORDS, answer_spans, sentences

WORD = re.compile(r"\w+")


def window_answer(question: str, text: str) -> str:
    """The best candidate of the sentences that share most words and pairs of words with the question; empty if they
    have none.

    A candidate's score is the greatest weight of words of question and candidate in a window of as many words, rare
    words more, less the mean distance to the question's words as a share of the text.
    """
    words = [(match.group().lower(), match.start()) for match in WORD.finditer(text)]
    counts = Counter(word for word, _ in words)
    weight = [math.log(1 + 1 / counts[word]) for word, _ in words]
    asked = [word.lower() for word in WORD.findall(question)]
    content = set(asked) - STOP_WORDS
    pairs = set(pairwise(asked))

    def overlap(begin: int, stop: int) -> int:
        inside = [word for word, start in words if begin <= start < stop]
        return len(content & {*inside}) + len(pairs & set(pairwise(inside)))

    found = {word: [at for at, (other, _) in enumerate(words) if other == word] for word in content if counts[word]}

    def score(start: int, end: int) -> float:
        span = [at for at, (_, place) in enumerate(words) if start <= place < end]
        wanted = content | {words[at][0] for at in span}
        size = len(wanted)
        weights = [weight[at] if word in wanted else 0.0 for at, (word, _) in enumerate(words)]
        window = max(sum(weights[first : first + size]) for first in range(max(0, span[0] - size), span[-1] + 1))
        distances = [min(abs(at - here) for at in places for here in span) for places in found.values()]
        return window - sum(distances) / (max(1, len(found)) * len(words))

    bounds = sentences(text)
    most = max(overlap(*bound) for bound in bounds)
    candidates = [
        (span.start, span.end)
        for bound in bounds
        if overlap(*bound) == most
        for span in answer_spans(text, *bound)
        if (inside := WORD.findall(text[span.start : span.end].lower())) and not content.issuperset(inside)
    ]
    if not candidates:
        return ""
    start, end = max(candidates, key=lambda candidate: score(*candidate))
    return text[start:end]
