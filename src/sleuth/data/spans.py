"""Sentences of a text, the spans in them that could answer a question, and questions made by leaving a span out."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sleuth.types import Passage

WORD = re.compile(r"\w[\w'\u2019-]*")
STOP_WORDS = frozenset(
    WORD.findall(
        """
        a an the of in on at to for from by with and or but as is are was were be been being it its his her their this
        that these those which who whom whose what when where how has have had do does did not also into than then there
        he she they we i you him them after before over under between during about up out such more most other some
    """
    )
)

SpanKind = Literal["date", "year", "percent", "money", "number", "name", "noun"]
"""What a span is, by its form alone."""

BORDER = re.compile(r"(?<=[.!?])[\"')\]]?\s+(?=[A-Z\"'(\[0-9])")
MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"
PATTERNS: dict[SpanKind, re.Pattern[str]] = {
    "date": re.compile(
        rf"\b((?:{MONTH}) \d{{1,2}}, \d{{4}}|\d{{1,2}} (?:{MONTH})(?: \d{{4}})?|(?:{MONTH}) \d{{1,4}})\b"
    ),
    "year": re.compile(r"\b(1[0-9]{3}s?|20[0-2][0-9]s?)\b"),
    "percent": re.compile(r"\b(\d[\d,.]*(?: ?%| percent| per cent))"),
    "money": re.compile(r"([$£€]\d[\d,.]*(?: (?:million|billion|trillion))?)"),
    "number": re.compile(
        r"\b(\d[\d,.]*\d|\d|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|"
        r"hundred|thousand)\b"
    ),
    "name": re.compile(
        r"\b([A-Z][\w'\u2019.-]*"
        r"(?: (?:of the|of|de|von|van|the|and) [A-Z][\w'\u2019-]*| [A-Z][\w'\u2019-]*)*)"
    ),
    "noun": re.compile(
        r"\b(?:a|an|the|their|its|his|her) ((?:[a-z][a-z-]+ ){0,2}[a-z][a-z-]{3,})"
        r"(?= (?:of|in|on|at|to|for|from|by|with|and|or|is|are|was|were|that|which|who|as|had|has)|[,.;])"
    ),
}
"""Those before win over those after where they overlap."""

QUESTION_WORDS: dict[SpanKind, tuple[str, ...]] = {
    "date": ("When", "When", "On what date"),
    "year": ("When", "When", "In what year", "What year"),
    "percent": ("What percentage", "How much", "What percent"),
    "money": ("How much",),
    "number": ("What", "How many"),
    "name": ("Who", "Who", "What", "Which", "Whose"),
    "noun": ("What", "What", "Which", "What kind of", "What type of"),
}
PLACES, PERSONS = ("in", "at", "near", "to", "from"), ("by", "mr.", "dr.", "king", "president", "queen")
"""Words before a name that say what it names."""

STEM = 5
"""Letters of a word that are compared: `invented` and `invention` are one word."""
LATER = 0.3
"""How much of a word a sentence of a passage that was found one rank later is behind."""

CLOZE_SENTENCE = 30
"""Characters of the shortest sentence that a cloze is made from."""
EITHER_SIDE, CLOZE_WORDS = 12, 18
"""Words beside the span that a cloze is made from, and words of the longest cloze."""
STOP_WORDS_DROPPED, WORDS_DROPPED = (0.1, 0.5, 0.9), (0.0, 0.15, 0.3, 0.5)
"""Shares of words that a cloze leaves out, one of each drawn for each cloze."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The characters [start, end) of a text, and the sentence [begin, stop) that they are in."""

    kind: SpanKind
    start: int
    end: int
    begin: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanQuestion:
    """A question about a text that the characters [start, end) answer."""

    question: str
    start: int
    end: int


def sentences(text: str) -> list[tuple[int, int]]:
    """The sentences as characters [begin, stop): after a full stop, before a capital, a digit or a quotation mark."""
    borders = [(match.start(), match.end()) for match in BORDER.finditer(text)]
    begins = [0, *(end for _, end in borders)]
    return list(zip(begins, [*(start for start, _ in borders), len(text)], strict=True))


def best_sentences(query: str, passages: Sequence[Passage], count: int) -> list[Passage]:
    """The `count` sentences that share most words with a query, best first, each as a passage with the id and title of
    its own; the title's words count for each of them, stop words for none. Those of earlier passages come first where
    they share as many."""
    asked = stems(query)
    ranked = [
        (LATER * rank - len(asked & stems(f"{passage.title} {passage.text[begin:stop]}")), rank, begin, stop)
        for rank, passage in enumerate(passages)
        for begin, stop in sentences(passage.text)
    ]
    return [
        replace(passages[rank], text=passages[rank].text[begin:stop]) for _, rank, begin, stop in sorted(ranked)[:count]
    ]


def stems(text: str) -> set[str]:
    """The first `STEM` letters of each word of a text, in lower case, without stop words."""
    return {word[:STEM] for word in map(str.lower, WORD.findall(text)) if word not in STOP_WORDS}


def answer_spans(text: str, begin: int, stop: int) -> Iterator[Span]:
    """The dates, numbers, names and short noun phrases of the sentence [begin, stop), none within another."""
    taken: list[tuple[int, int]] = []
    for kind, pattern in PATTERNS.items():
        for match in pattern.finditer(text, begin, stop):
            start = match.start(1)
            words = match[1].rstrip(".,'\u2019-")
            end = start + len(words)
            opening = kind == "name" and start == begin and " " not in words  # any word has a capital there
            if not words or opening or words.lower() in STOP_WORDS:
                continue
            if not any(start < other_end and end > other for other, other_end in taken):
                taken.append((start, end))
                yield Span(kind=kind, start=start, end=end, begin=begin, stop=stop)


def cloze(text: str, rng: random.Random) -> SpanQuestion | None:
    """A question made of the words beside a span, some of them left out, which the span answers; None if the text has
    no span with two words of content left beside it. Every kind of span in the text is as likely."""
    by_kind: defaultdict[str, list[Span]] = defaultdict(list)
    for begin, stop in sentences(text):
        for span in answer_spans(text, begin, stop) if stop - begin >= CLOZE_SENTENCE else ():
            by_kind[span.kind].append(span)
    if not by_kind:
        return None
    span = rng.choice(by_kind[rng.choice(sorted(by_kind))])
    of_stop_words, of_others = rng.choice(STOP_WORDS_DROPPED), rng.choice(WORDS_DROPPED)
    left, right = (
        [word for word in some if rng.random() > (of_stop_words if word.lower() in STOP_WORDS else of_others)]
        for some in (
            WORD.findall(text[span.begin : span.start])[-EITHER_SIDE:],
            WORD.findall(text[span.end : span.stop])[:EITHER_SIDE],
        )
    )
    if sum(word.lower() not in STOP_WORDS for word in (*left, *right)) < 2:
        return None
    words = _question_words(_question_word(text, span, rng), left, right, rng)
    return SpanQuestion(question=f"{' '.join(words)}?", start=span.start, end=span.end)


def _question_words(asking: str, left: list[str], right: list[str], rng: random.Random) -> list[str]:
    """The question word before, between or after what stands beside the span, at most `CLOZE_WORDS` words."""
    form = rng.random()
    if form < 0.25:
        return [*left, asking, *right][-CLOZE_WORDS:]
    rest = [*left, *right] if form < 0.525 else [*right, *left]
    if form >= 0.8:
        rng.shuffle(rest)
    return [asking, *rest][:CLOZE_WORDS]


def _question_word(text: str, span: Span, rng: random.Random) -> str:
    before = text[max(0, span.start - 12) : span.start].lower().split()
    if span.kind == "number" and text[span.end : span.end + 2].strip().isalpha():
        return "How many"
    if span.kind == "name" and before and before[-1] in PLACES:
        return rng.choice(("Where", "In what", "What", "Which"))
    if span.kind == "name" and before and before[-1] in PERSONS:
        return "Who"
    return rng.choice(QUESTION_WORDS[span.kind])
