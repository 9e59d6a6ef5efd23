"""Sentences for the lexical judge: their names, dates and numbers, their other words, and whether they are negated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

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
