"""The gates of a made question. Each keeps what a person would ask and a model can learn from, and can be named and
switched off, to measure what it is worth."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sleuth.answers.match import appears_in, normalise, token_f1
from sleuth.data.spans import STOP_WORDS, sentences
from sleuth.retrieval.index_card import Index
from sleuth.types import Passage

FOUND = 10
"""Passages of a search among which those of a question must be."""
SEARCHED = 30
"""Passages among which near copies are looked for."""
NEAR_COPY = 0.5
"""Share of three words in a row that a near copy has of the shorter text."""
PARAPHRASE, WITH_ITS_ANSWER = 0.8, 0.5
"""Share of the words of two questions that a paraphrase has in common, less if their answers are the same."""
SAYS_AS_MUCH = 0.9
"""Share of a question's words that another passage has in a sentence, and so may support another answer."""
KNOWN_WORDS = 0.6
"""Share of a question's words that must stand somewhere in the corpus: of another language few do."""
RIGHT = 0.6
"""Token F1 of an answer that counts as the golden one."""
WORDS = 3, 40
"""Words of a question."""

WORD = re.compile(r"\w[\w'\u2019-]*")
ASKING = frozenset(WORD.findall("who what when where which whose whom how many much year date did does do kind type"))
VAGUE = re.compile(
    r"\b(?:he|she|it|they|we|you|his|her|hers|its|their|our|this|that one|these|those|former|latter|following|above|"
    r"aforementioned|another|again|also|the (?:author|writer|text|passage|article|chapter|section|document|book|paper|"
    r"page|report|study|university|school|company|city|town|country|team|club|band|film|album|song|group|party|game)"
    r"(?! (?:of|in|at|for|that|which|called|named|[A-Z])))\b"
)
NAMED = re.compile(r"(?<=[\w,'\u2019] )\W?(?:[A-Z][\w'\u2019-]+|[A-Z]{2,})|\b[A-Z]\w+(?: [A-Z]\w+)+|\b\d{4}\b")
END_OF_STEM = re.compile(r"(?:'s|\u2019s|ies|es|s|ed|ing|e)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A made question with its answer and the passages that it needs, of which the last one holds the answer at the
    character `start`. `id` is `KIND:PASSAGE:NUMBER`."""

    id: str
    kind: str
    part: str
    question: str
    answer: str
    passages: tuple[Passage, ...]
    start: int


class Reader(Protocol):
    """Answers questions from passages: a teacher, or the model itself."""

    def answers(self, asked: Sequence[tuple[str, Sequence[Passage]]]) -> list[str | None]:
        """What it answers to each question from its passages, or from what it knows where there are none; empty if it
        says that it cannot, None if it gave no answer at all."""
        ...


def content(text: str) -> frozenset[str]:
    """The words of a question that say what it is about, without their endings."""
    words = (word.lower() for word in WORD.findall(text))
    return frozenset(
        END_OF_STEM.sub("", word) if len(word) > 4 else word for word in words if word not in STOP_WORDS | ASKING
    )


def is_near_copy(one: str, other: str) -> bool:
    """Whether two texts share most runs of three words."""
    first, second = (
        {tuple(words[at : at + 3]) for at in range(len(words) - 2)}
        for words in (one.lower().split(), other.lower().split())
    )
    return bool(first & second) and len(first & second) >= NEAR_COPY * min(len(first), len(second))


def near_copies(passage: Passage, index: Index) -> list[Passage]:
    """The near copies of a passage among those that a search for its text finds."""
    [found] = index.find([passage.text], SEARCHED)
    return [one for one in found if one.id != passage.id and is_near_copy(one.text, passage.text)]


def same_answer(answer: str, golden: str) -> bool:
    """Whether an answer counts as the golden one."""
    return token_f1(answer, [golden]) >= RIGHT


@dataclass(slots=True, kw_only=True)
class Gates:
    """The gates that are on, over an index; `vocabulary` has the words of the corpus. What passes is remembered, and so
    is what `repeats` nothing of the held-out questions."""

    index: Index
    vocabulary: frozenset[str]
    reader: Reader | None = None
    off: frozenset[str] = frozenset()
    _asked: list[tuple[frozenset[str], str]] = field(default_factory=list)
    _with_word: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def remember(self, question: str, answers: Iterable[str]) -> None:
        """No later question may be a paraphrase of this one."""
        words = content(question)
        for answer in answers:
            for word in words:
                self._with_word[word].append(len(self._asked))
            self._asked.append((words, normalise(answer)))

    def falls(self, candidates: Sequence[Candidate]) -> list[str]:
        """The first gate at which each falls; empty for those that pass all."""
        fell = [next((name for name, passes in self._plain().items() if not passes(one)), "") for one in candidates]
        if self.reader is None:
            return fell
        for name, asked, wanted in ASKED:
            if name in self.off:
                continue
            open_ = [at for at, gate in enumerate(fell) if not gate]
            questions = [(at, given) for at in open_ for given in asked(candidates[at])]
            answers = self.reader.answers([(candidates[at].question, given) for at, given in questions])
            for (at, _), answer in zip(questions, answers, strict=True):
                if answer is None or same_answer(answer, candidates[at].answer) != wanted:
                    fell[at] = name
        return fell

    def _plain(self) -> dict[str, Callable[[Candidate], bool]]:
        gates = {
            "asks": self.asks,
            "stands": lambda one: appears_in(one.answer, one.passages[-1].text),
            "named": names_its_subject,
            "both": needs_both,
            "found": self.is_found,
            "only": self.is_only,
            "new": self.is_new,
        }
        return {name: gate for name, gate in gates.items() if name not in self.off}

    def asks(self, one: Candidate) -> bool:
        """Whether it is a question in words of the corpus, which does not hold its own answer."""
        words = WORD.findall(one.question)
        known = sum(word.lower() in self.vocabulary for word in words)
        good = WORDS[0] <= len(words) <= WORDS[1] and one.question.endswith("?") and known >= KNOWN_WORDS * len(words)
        return good and not appears_in(one.answer, one.question) and bool(normalise(one.answer))

    def is_found(self, one: Candidate) -> bool:
        """Whether its passages are among the first that a search finds; of a two-hop question those of its first hop,
        since the second needs the answer to that."""
        [found] = self.index.find([one.question], FOUND)
        return one.passages[0].id in {passage.id for passage in found}

    def is_only(self, one: Candidate) -> bool:
        """Whether no other passage says as much of what is asked for, in one sentence, without the same answer."""
        words, own = content(one.question), {passage.id for passage in one.passages}
        [found] = self.index.find([one.question], FOUND)
        others = [passage for passage in found if passage.id not in own and not appears_in(one.answer, passage.text)]
        return not any(
            len(words & content(f"{passage.title} {passage.text[begin:stop]}")) >= SAYS_AS_MUCH * len(words)
            for passage in others
            for begin, stop in sentences(passage.text)
        )

    def is_new(self, one: Candidate) -> bool:
        """Whether it is no paraphrase of one before it, or of a held-out one; remembers it if so."""
        words, answer = content(one.question), normalise(one.answer)
        shared = Counter(at for word in words for at in self._with_word.get(word, ()))
        for at, common in shared.items():
            other, its_answer = self._asked[at]
            if common >= (WITH_ITS_ANSWER if its_answer == answer else PARAPHRASE) * len(words | other):
                return False
        self.remember(one.question, [one.answer])
        return True


def names_its_subject(one: Candidate) -> bool:
    """Whether it has a name or a year of its passages, and no word that only its passage explains."""
    names = NAMED.findall(one.question)
    texts = " ".join(f"{passage.title} {passage.text}" for passage in one.passages)
    return any(name.strip("\"'(\u201c") in texts for name in names) and not VAGUE.search(one.question)


def needs_both(one: Candidate) -> bool:
    """Whether no passage of several alone has the answer and as much of what is asked for as all together."""
    if len(one.passages) == 1:
        return True
    words = content(one.question)
    return not any(
        appears_in(one.answer, passage.text) and len(words & content(f"{passage.title} {passage.text}")) == len(words)
        for passage in one.passages
    ) and not appears_in(one.answer, one.passages[0].text)


ASKED: tuple[tuple[str, Callable[[Candidate], list[tuple[Passage, ...]]], bool], ...] = (
    ("answered", lambda one: [one.passages], True),
    ("closed_book", lambda one: [()], False),
    ("each", lambda one: [(passage,) for passage in one.passages] if len(one.passages) > 1 else [], False),
)
"""Gates that a reader answers: what it is given for a question, and whether it should then give the answer."""
GATES = {
    "asks": "no question of these documents, or with its answer",
    "stands": "its answer is not in the passage",
    "named": "names nothing of the passage, or says `this`, `he`",
    "both": "one passage of two is enough",
    "found": "a search does not find its passage",
    "only": "another passage may answer it otherwise",
    "new": "asked before in other words",
    "answered": "not answered with its passage",
    "closed_book": "answered without a passage",
    "each": "answered with one passage of two",
}
"""What is wrong with a question that falls at each."""
