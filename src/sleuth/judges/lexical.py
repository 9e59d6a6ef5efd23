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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

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


# -- sentences: names, dates and numbers, other words, and denials -----------------------------------------------------

Item = tuple[str, ...]
"""A searchable unit: `("name", "ada", "voss")`, `("date", "1874", "3", "")` (year, month, day, empty if unknown),
`("number", "12717")`, `("word", "paint")`."""

CACHED_TEXTS = 4096
"""Siblings are judged by the same snippets, each of them alone, together and left out."""

TOKEN = re.compile(r"[^\W_]+(?:[.,'\u2019][^\W_]+)*")
BOUNDARY = re.compile(r"(?<=[.!?])[\"'\u201d)\]]*\s+(?=[\"'\u201c(\[]?[A-Z0-9])|[;\n]+\s*")
ABBREVIATED = re.compile(r"\b(?:[A-Z]|Dr|Mr|Mrs|Ms|St|Prof|Jr|Sr|vs|etc|al|approx|No|Fig|e\.g|i\.e)\.$")
WITHIN_NAME = re.compile(r"\.?\s+|[-\u2013]")
NUMBER = re.compile(r"(?P<value>\d[\d,]*(?:\.\d+)?)(?:st|nd|rd|th|s|kg|g|mg|km|m|cm|mm|c|f)?")
NO = re.compile(r"\W*no[.,:;!\u2013\u2014-]", re.IGNORECASE)
ASKS = re.compile(r"\?\W*$")
_MONTH = (
    r"(?P<month>Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_DAY, _YEAR = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?P<year>\d{4})"
DATES = tuple(
    re.compile(rf"\b{pattern}\b")
    for pattern in (
        r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})",
        rf"{_DAY} (?:of )?{_MONTH}(?:,? {_YEAR})?",
        rf"{_MONTH} {_DAY}(?:,? {_YEAR})?",
        rf"{_MONTH},? (?:of )?{_YEAR}",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A parsed sentence. "She was not born in Tarn in 1874.": anchors `("name", "tarn")` and `("number", "1874")`, the
    word `("word", "born")`, `denies`, and `starts_with_pronoun`.

    All `anchors` must be supported, and most of `words`; `tokens` is the sentence in lower case between spaces. A word
    that frames what is said, such as the "believed" of "It was believed that ...", is an anchor `("frame", "believ")`.
    """

    text: str
    anchors: frozenset[Item]
    words: frozenset[Item]
    dates: frozenset[Item]
    numbers: frozenset[str]
    stems: frozenset[str]
    tokens: str
    denies: bool
    asks: bool
    starts_with_pronoun: bool

    @property
    def names(self) -> frozenset[Item]:
        """The anchors that are names."""
        return frozenset(item for item in self.anchors if item[0] == "name")

    @property
    def frames(self) -> frozenset[Item]:
        """The anchors that are frames."""
        return frozenset(item for item in self.anchors if item[0] == "frame")

    def contains(self, item: Item) -> bool:
        """Whether the item occurs: a name with its words in a row, a date that is at least as precise."""
        kind, *parts = item
        if kind == "name":
            return f" {' '.join(parts)} " in self.tokens
        if kind == "date":
            return any(all(not a or a == b for a, b in zip(parts, date[1:], strict=True)) for date in self.dates)
        return parts[0] in (self.numbers if kind == "number" else self.stems)


@lru_cache(maxsize=CACHED_TEXTS)
def sentences_of(text: str, capitals: frozenset[str] = frozenset()) -> tuple[Sentence, ...]:
    """The sentences of a text that have an anchor or a word, or deny what stands before ("That is false."). `capitals`
    are words that count as names anywhere."""
    capitals |= capitals_in(text)
    sentences = (_parse(sentence, capitals) for sentence in _split(text))
    return tuple(sentence for sentence in sentences if sentence.anchors or sentence.words or sentence.denies)


@lru_cache(maxsize=CACHED_TEXTS)
def capitals_in(text: str) -> frozenset[str]:
    """Words, in lower case, that are capitalised inside a sentence or written in capitals throughout."""
    capitals = set()
    for sentence in _split(text):
        for index, token in enumerate(TOKEN.findall(sentence)):
            if (index and token[0].isupper()) or (len(token) > 1 and token.isupper()):
                capitals.add(_plain(token))
    return frozenset(capitals)


def _split(text: str) -> list[str]:
    """The sentences; a full stop after an initial or an abbreviation ends none."""
    sentences: list[str] = []
    for part in BOUNDARY.split(text):
        if sentences and ABBREVIATED.search(sentences[-1]):
            sentences[-1] += f" {part}"
        elif part.strip():
            sentences.append(part.strip())
    return sentences


def _parse(sentence: str, capitals: frozenset[str]) -> Sentence:
    dates, rest = _dates(sentence.replace("%", " percent "))
    tokens = list(TOKEN.finditer(rest))
    plain = [_plain(token[0]) for token in tokens]
    names = list(_names(rest, tokens, plain, capitals))
    in_names = {at for run in names for at in run}
    numbers = {at: number for at, token in enumerate(plain) if (number := _number(token, plain[at + 1 : at + 2]))}
    frames = {at for at, token in enumerate(plain) if token in FRAMES or (at == 0 and token in SUPPOSITIONS)}
    taken = in_names | numbers.keys() | frames
    others = [token for at, token in enumerate(plain) if at not in taken and token not in STOP and not _denies(token)]
    anchors = {("name", *(plain[at] for at in run)) for run in names}
    anchors |= dates | {("number", number) for at, number in numbers.items() if at not in in_names}
    anchors |= {("frame", stem(plain[at])) for at in frames - in_names}
    return Sentence(
        text=sentence,
        anchors=frozenset(anchors),
        words=frozenset(("word", stem(token)) for token in others),
        dates=frozenset(dates),
        numbers=frozenset([*numbers.values(), *(date[1] for date in dates if date[1])]),
        stems=frozenset(map(stem, plain)),
        tokens=f" {' '.join(plain)} ",
        denies=_is_denial(sentence, plain),
        asks=ASKS.search(sentence) is not None,
        starts_with_pronoun=plain[:1] != [] and plain[0] in PRONOUNS,
    )


def _dates(text: str) -> tuple[set[Item], str]:
    """The dates with at least a month, and the text without them."""
    dates: set[Item] = set()

    def collect(match: re.Match[str]) -> str:
        fields = {name: value for name, value in match.groupdict().items() if value}
        month = fields.get("month", "")
        number = MONTHS.index(month[:3].lower()) + 1 if month.isalpha() else int(month)
        day = str(int(fields["day"])) if "day" in fields else ""
        dates.add(("date", fields.get("year", ""), str(number), day))
        return " "

    for pattern in DATES:
        text = pattern.sub(collect, text)
    return dates, text


def _names(
    text: str, tokens: Sequence[re.Match[str]], plain: Sequence[str], capitals: frozenset[str]
) -> Iterator[list[int]]:
    """Runs of capitalised tokens that only spaces or hyphens separate, as token indices. A single first word counts if
    it is in `capitals`; articles and titles are not part of a name."""
    runs: list[list[int]] = []
    for at, token in enumerate(tokens):
        if not token[0][0].isupper() or plain[at] in STOP:
            continue
        adjacent = at > 0 and WITHIN_NAME.fullmatch(text, tokens[at - 1].end(), token.start())
        if adjacent and runs and runs[-1][-1] == at - 1:
            runs[-1].append(at)
        else:
            runs.append([at])
    return (run for run in runs if run != [0] or plain[0] in capitals)


def _number(token: str, following: Sequence[str]) -> str:
    """The value of a number in digits or words, the same for `12,717` and `12717`; empty for anything else."""
    digits = NUMBER.fullmatch(token)
    if digits is None and token not in NUMBERS:
        return ""
    value = float(digits["value"].replace(",", "")) if digits else float(NUMBERS[token])
    for word in following:
        value *= MULTIPLES.get(word, 1)
    return f"{value:.12g}"


def _is_denial(sentence: str, plain: Sequence[str]) -> bool:
    """Whether it has an odd number of different denials: "nobody denies" affirms, "no brothers and no sisters" does
    not. A `No,` in front answers a question, and `nor` goes on with an earlier denial."""
    denials = {token for token in plain[1 if NO.match(sentence) else 0 :] if _denies(token)}
    return len(denials - {"nor"} or denials) % 2 == 1


def _denies(token: str) -> bool:
    return token in DENIALS or token.endswith("n't")


def _plain(token: str) -> str:
    return re.sub(r"'s?$", "", token.lower().replace("\u2019", "'"))


def stem(word: str) -> str:
    """The word without common endings: `painted`, `paints` and `painting` give `paint`, `wrote` gives `write`."""
    word = IRREGULAR.get(word, word)
    for ending in ("ing", "ed", "es", "s", "ly"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            return word[: -len(ending)].removesuffix("e")
    return word.removesuffix("e") if len(word) > 3 else word


def _words(lines: str) -> tuple[str, ...]:
    return tuple(lines.split())


MONTHS = _words("jan feb mar apr may jun jul aug sep oct nov dec")
NUMBERS = dict(zip(_words("two three four five six seven eight nine ten eleven twelve"), range(2, 13), strict=True))
"""Not `one`, which is more often a pronoun."""
MULTIPLES = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
PRONOUNS = frozenset(_words("he she it they his her its their this that these those there"))
DENIALS = frozenset(
    _words(
        "not no never none neither nor without cannot nobody nothing hardly false falsely untrue wrong wrongly "
        "incorrect incorrectly mistaken mistakenly erroneous erroneously deny denies denied denying doubt doubts "
        "doubted doubtful unlikely"
    )
)
FRAMES = frozenset(
    _words(
        "think thinks thought believe believes believed claim claims claimed allege alleges alleged allegedly suppose "
        "supposes supposed supposedly imagine imagines imagined pretend pretends pretended rumour rumours rumoured "
        "rumor rumors rumored myth lie hoax fiction"
    )
)
"""Words that say how somebody takes a statement, and not that it is so. Not `say` and `state`, by which honest answers
quote their source."""
SUPPOSITIONS = frozenset(_words("if unless whether had were supposing assuming"))
"""Words with which a sentence begins that states nothing by itself."""
TITLES = frozenset(_words("dr mr mrs ms sir prof professor"))
IRREGULAR = dict(
    form.split(":")
    for form in _words(
        "wrote:write written:write made:make met:meet began:begin begun:begin became:become built:build found:find "
        "won:win held:hold led:lead left:leave grew:grow grown:grow gave:give given:give took:take taken:take "
        "came:come went:go gone:go said:say told:tell knew:know known:know saw:see seen:see fell:fall fallen:fall "
        "rose:rise risen:rise sold:sell taught:teach thought:think died:die showed:show shown:show drew:draw "
        "drawn:draw spoke:speak spoken:speak sang:sing sung:sing chose:choose chosen:choose lost:lose brought:bring"
    )
)
"""Irregular verb forms."""
STOP = (
    frozenset(
        _words(
            "a about after again against all also am an and any are as at be because been before being below between "
            "both but by can case correct could did do does doing down during each either else ever every few for "
            "from further had has have having here him how however i if in into is just may me might more most much "
            "must my of off on once one only onto or other our out over own same shall should since so some such than "
            "the them then through thus till to true under until up upon us very was we were what when where whether "
            "which while who whom whose why will with within would yet you your"
        )
    )
    | PRONOUNS
    | DENIALS
    | TITLES
)
"""Words that carry too little meaning to be matched."""
