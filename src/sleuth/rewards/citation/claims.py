"""The claims of an answer, each with all that it cites, read off the answer alone.

Two ways of citing are read: `<snippet id=a1,b2>claim</snippet>` (and `<cite id="a1">claim</cite>`), as refiners write
it, and `claim [1][2]`, as ALCE (arXiv:2305.14627) and most search engines do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sleuth.rewards.match import normalise

TAG = re.compile(r"<(?P<close>/?)(?:snippet|cite)\b(?P<attributes>[^<>]*)>", re.IGNORECASE)
IDS = re.compile(r"\bids?\s*=(.*?)(?=\s\w+\s*=|$)", re.IGNORECASE | re.DOTALL)
ID = re.compile(r"[^\s,;|&\"'\[\](){}]+")
MARKUP = re.compile(r"</?(?:b|i|em|strong|u|p|br|ul|ol|li|code|sub|sup)\s*/?>|[*_`]{1,3}(?=\S)|(?<=\S)[*_`]{1,3}")
BRACKETS = re.compile(r"\s*\[(\d[\d.]*(?:\s*[,;]\s*\d[\d.]*)*)\]")
BEHIND_STOP = re.compile(rf"(?P<stop>[.!?])(?P<brackets>(?:{BRACKETS.pattern})+)")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement, and every id that it cites, each once: `Claim(text="Ada was born in Tarn.", ids=("a1", "b2"))`."""

    text: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedAnswer:
    """An answer taken apart, of so many `words`. `padding` is the share of them that no citation stands behind, or that
    say again what an earlier claim said; 0 for an answer without words."""

    claims: tuple[Claim, ...]
    words: int
    padding: float

    @property
    def ids(self) -> frozenset[str]:
        """Every id that is cited anywhere."""
        return frozenset(id_ for claim in self.claims for id_ in claim.ids)


def tagged(answer: str) -> CitedAnswer:
    """What is wrapped in tags is a claim, with all of its ids however they are written: quoted or not, `id` or `ids`,
    commas or spaces between. A claim in a claim lends it its ids; a tag that is never closed, or that names no id,
    makes no claim."""
    return _merged(_tagged_parts(answer))


def bracketed(answer: str) -> CitedAnswer:
    """Every sentence with numbers in brackets is a claim; the brackets may stand before or behind its full stop."""
    return _merged(_bracketed_parts(answer))


def tag_spans(answer: str) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """(begin, end, ids) of what stands in tags, as characters of the answer; a tag in a tag lends its ids to the whole,
    as in `tagged`."""
    begin, ids = 0, None
    for tag in TAG.finditer(answer):
        if not tag["close"]:
            begin, ids = (tag.end(), []) if ids is None else (begin, ids)
            ids += _ids(tag["attributes"])
        elif ids is not None:
            yield begin, tag.start(), tuple(dict.fromkeys(ids))
            ids = None


def _tagged_parts(answer: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(text, ids) of all that stands in tags and between them; no ids where nothing is cited."""
    start, text = 0, ""
    ids: list[str] | None = None  # of the claim that is open
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
    """Claims that say the same become one, which cites what any of them does."""
    claims: dict[str, Claim] = {}
    words = padding = 0
    for text, ids in parts:
        plain = " ".join(MARKUP.sub("", text).split())
        length = len(plain.split())
        words += length
        said = normalise(plain)
        earlier = claims.get(said)
        if not ids or earlier:
            padding += length
        if ids:
            known = earlier or Claim(text=plain, ids=())
            claims[said] = Claim(text=known.text, ids=tuple(dict.fromkeys((*known.ids, *ids))))
    return CitedAnswer(claims=tuple(claims.values()), words=words, padding=padding / words if words else 0.0)
