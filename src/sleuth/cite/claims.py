"""The claims of an answer and their citations, parsed from the answer alone.

Two notations: `<snippet id=a1,b2>claim</snippet>` (and `<cite id="a1">claim</cite>`), as refiners write, and
`claim [1][2]`, as in ALCE (arXiv:2305.14627) and most search engines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sleuth.answers.match import normalise

TAG = re.compile(r"<(?P<close>/?)(?:snippet|cite)\b(?P<attributes>[^<>]*)>", re.IGNORECASE)
IDS = re.compile(r"\bids?\s*=(.*?)(?=\s\w+\s*=|$)", re.IGNORECASE | re.DOTALL)
ID = re.compile(r"[^\s,;|&\"'\[\](){}]+")
MARKUP = re.compile(r"</?(?:b|i|em|strong|u|p|br|ul|ol|li|code|sub|sup)\s*/?>|[*_`]{1,3}(?=\S)|(?<=\S)[*_`]{1,3}")
BRACKETS = re.compile(r"\s*\[(\d[\d.]*(?:\s*[,;]\s*\d[\d.]*)*)\]")
BEHIND_STOP = re.compile(rf"(?P<stop>[.!?])(?P<brackets>(?:{BRACKETS.pattern})+)")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement and the distinct ids that it cites: `Claim(text="Ada was born in Tarn.", ids=("a1", "b2"))`."""

    text: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedAnswer:
    """The claims of an answer of `words` words. `padding` is the share of words that are uncited or repeat an earlier
    claim; 0 for an answer without words."""

    claims: tuple[Claim, ...]
    words: int
    padding: float

    @property
    def ids(self) -> frozenset[str]:
        """All ids that the answer cites."""
        return frozenset(id_ for claim in self.claims for id_ in claim.ids)


def tagged(answer: str) -> CitedAnswer:
    """The claims in tags. Ids may be quoted or not, in `id` or `ids`, separated by commas or spaces. A claim nested in
    another adds its ids to the outer one; a tag without a closing tag or without an id makes no claim."""
    return _merged(_tagged_parts(answer))


def bracketed(answer: str) -> CitedAnswer:
    """The sentences with numbers in brackets, before or after the full stop."""
    return _merged(_bracketed_parts(answer))


def tag_spans(answer: str) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """(start, end, ids) of every tagged text, as character offsets in the answer; nested tags as in `tagged`."""
    start, ids = 0, None
    for tag in TAG.finditer(answer):
        if not tag["close"]:
            start, ids = (tag.end(), []) if ids is None else (start, ids)
            ids += _ids(tag["attributes"])
        elif ids is not None:
            yield start, tag.start(), tuple(dict.fromkeys(ids))
            ids = None


def _tagged_parts(answer: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(text, ids) of the text inside and between tags; no ids for uncited text."""
    start, text = 0, ""
    ids: list[str] | None = None  # of the open claim
    for tag in TAG.finditer(answer):
        text += answer[start : tag.start()]
        start = tag.end()
        if not tag["close"]:
            if ids is None:
                yield text, ()
                text, ids = "", []
            ids += _ids(tag["attributes"])
        elif ids is not None:
            yield text, tuple(ids)
            text, ids = "", None
    yield text + answer[start:], ()


def _bracketed_parts(answer: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    before_stops = BEHIND_STOP.sub(r"\g<brackets>\g<stop>", answer)
    return map(_cited, SENTENCE_END.split(before_stops))


def _cited(sentence: str) -> tuple[str, tuple[str, ...]]:
    return BRACKETS.sub("", sentence), tuple(id_ for ids in BRACKETS.findall(sentence) for id_ in ID.findall(ids))


def _ids(attributes: str) -> tuple[str, ...]:
    return tuple(id_ for value in IDS.findall(attributes) for id_ in ID.findall(value.removesuffix("/")))


def _merged(parts: Iterator[tuple[str, tuple[str, ...]]]) -> CitedAnswer:
    """The answer with claims of equal normalised text merged and their ids united."""
    claims: dict[str, Claim] = {}
    words = padding = 0
    for text, ids in parts:
        plain = " ".join(MARKUP.sub("", text).split())
        length = len(plain.split())
        words += length
        key = normalise(plain)
        earlier = claims.get(key)
        if not ids or earlier:
            padding += length
        if ids:
            known = earlier or Claim(text=plain, ids=())
            claims[key] = Claim(text=known.text, ids=tuple(dict.fromkeys((*known.ids, *ids))))
    return CitedAnswer(claims=tuple(claims.values()), words=words, padding=padding / words if words else 0.0)
