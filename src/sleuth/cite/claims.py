"""What an answer claims and cites, parsed from the answer alone, and the texts that it could cite, taken from the
environment and never from the policy.

Two notations: `<snippet id=a1,b2>claim</snippet>` (and `<cite id="a1">claim</cite>`), as refiners write, and
`claim [1][2]`, as in ALCE (arXiv:2305.14627) and most search engines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sleuth.answers.answer import given_answer, shown_part, shown_passages
from sleuth.answers.match import normalise
from sleuth.dialect import Dialect
from sleuth.types import Episode, Passage

TAG = re.compile(r"<(?P<close>/?)(?:snippet|cite)\b(?P<attributes>[^<>]*)>", re.IGNORECASE)
IDS = re.compile(r"\bids?\s*=(.*?)(?=\s\w+\s*=|$)", re.IGNORECASE | re.DOTALL)
ID = re.compile(r"[^\s,;|&\"'\[\](){}]+")
MARKUP = re.compile(r"</?(?:b|i|em|strong|u|p|br|ul|ol|li|code|sub|sup)\s*/?>|[*_`]{1,3}(?=\S)|(?<=\S)[*_`]{1,3}")
BRACKETS = re.compile(r"\s*\[(\d[\d.]*(?:\s*[,;]\s*\d[\d.]*)*)\]")
BEHIND_STOP = re.compile(rf"(?P<stop>[.!?])(?P<brackets>(?:{BRACKETS.pattern})+)")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")

EvidenceTexts = Mapping[str, str]
"""Citable texts by id: `{"a1": "Ada Voss was born in Tarn."}`."""


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
    before_stops = BEHIND_STOP.sub(r"\g<brackets>\g<stop>", answer)
    return _merged(
        (BRACKETS.sub("", sentence), tuple(id_ for ids in BRACKETS.findall(sentence) for id_ in ID.findall(ids)))
        for sentence in SENTENCE_END.split(before_stops)
    )


def tag_spans(answer: str) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """(start, end, ids) of every tagged text, as character offsets in the answer; nested tags as in `tagged`."""
    yield from ((start, end, ids) for start, end, ids in _spans(answer) if ids is not None)


def _spans(answer: str) -> Iterator[tuple[int, int, tuple[str, ...] | None]]:
    """`tag_spans`, and what follows a tag that is never closed, with None for its ids."""
    start, ids = 0, None
    for tag in TAG.finditer(answer):
        if not tag["close"]:
            start, ids = (tag.end(), []) if ids is None else (start, ids)
            values = IDS.findall(tag["attributes"])
            ids += [id_ for value in values for id_ in ID.findall(value.removesuffix("/"))]
        elif ids is not None:
            yield start, tag.start(), tuple(dict.fromkeys(ids))
            ids = None
    if ids is not None:
        yield start, len(answer), None


def _tagged_parts(answer: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(text, ids) of the text inside and between tags; no ids for uncited text."""
    at = 0
    for start, end, ids in _spans(answer):
        yield TAG.sub("", answer[at:start]), ()
        yield TAG.sub("", answer[start:end]), ids or ()
        at = end
    yield TAG.sub("", answer[at:]), ()


def _merged(parts: Iterable[tuple[str, tuple[str, ...]]]) -> CitedAnswer:
    """The answer with claims of equal normalised text merged and their ids united."""
    claims: dict[str, Claim] = {}
    words = padding = 0
    for text, ids in parts:
        plain = " ".join(MARKUP.sub("", text).split())
        length, key = len(plain.split()), normalise(plain)
        earlier = claims.get(key)
        words += length
        padding += 0 if ids and not earlier else length
        if ids:
            known = earlier or Claim(text=plain, ids=())
            claims[key] = Claim(text=known.text, ids=tuple(dict.fromkeys((*known.ids, *ids))))
    return CitedAnswer(claims=tuple(claims.values()), words=words, padding=padding / words if words else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """One episode's answer, None without one, its claims and what it could cite. `outcome` is that of `given_answer`;
    an answer without claims that says so has `abstained`."""

    episode: Episode
    text: str | None
    outcome: str
    cited: CitedAnswer
    evidence: EvidenceTexts
    abstained: bool

    @property
    def unanswerable(self) -> bool:
        """Whether the data says that the evidence does not answer the question."""
        evidence = self.episode.task.evidence
        return evidence is not None and evidence.answerable is False


def parse_answer(episode: Episode, dialect: Dialect) -> ParsedAnswer:
    """The answer of an episode. A refiner tags its claims, a search policy may also cite by numbers in brackets."""
    text, outcome = given_answer(episode, dialect)
    cited = tagged(text or "")
    if not cited.claims and episode.task.evidence is None:
        cited = bracketed(text or "")
    abstained = text is not None and not cited.claims and abstains(text)
    return ParsedAnswer(
        episode=episode, text=text, outcome=outcome, cited=cited, evidence=citable(episode), abstained=abstained
    )


def citable(episode: Episode) -> EvidenceTexts:
    """The citable texts by id: the snippets of a refiner's tool output, or the shown parts of retrieved passages.

    `2.1` is the first passage of the second search; after a single search the plain rank is an id too.
    """
    if episode.task.evidence is not None:
        return {snippet.id: _titled(snippet, snippet.text) for snippet in episode.task.evidence.snippets}
    texts: dict[str, str] = {}
    for search, rank, passage, reply in shown_passages(episode.trajectory):
        text = _titled(passage, shown_part(passage.text, reply))
        texts[f"{search}.{rank}"] = text
        if episode.trajectory.searches == 1:
            texts[str(rank)] = text
    return texts


def _titled(passage: Passage, text: str) -> str:
    return f"{passage.title}\n{text}" if passage.title else text


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
