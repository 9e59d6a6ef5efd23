"""The passages that an answer cites, each with the sentence that has the answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sleuth.answers.answer import cited_passage, find_words, passages_with, quotation
from sleuth.answers.match import appears_in, normalise
from sleuth.cite.claims import tagged
from sleuth.data.spans import STOP_WORDS, WORD, sentences
from sleuth.dialect import Dialect
from sleuth.types import Passage, Task, Trajectory

ABBREVIATED = re.compile(r"(?<![.\w])(?:[A-Z]|Dr|Mrs?|Ms|Prof|St|Gen|Col|Lt|Capt|Sen|Gov|Rev|Mt|No|vs)\.\Z")
"""The end of a sentence that is none: of `John F. Kennedy`, `St. Louis`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A cited passage. The characters [begin, stop) of its text are the sentence with the answer; None if its text does
    not contain the answer. `Citation(passage=passage, sentence=(28, 54))`."""

    passage: Passage
    sentence: tuple[int, int] | None = None


def citations_of(task: Task, answer: str, trajectory: Trajectory, dialect: Dialect) -> tuple[Citation, ...]:
    """The citations of a finished answer, each passage once: the snippets that a refiner names; the passage that the
    answer quotes, in dialects whose answers do; in others every shown passage that contains the answer."""
    if task.evidence is not None:
        named = tagged(answer).ids
        return tuple(Citation(passage=snippet) for snippet in task.evidence.snippets if snippet.id in named)
    if dialect.cites:
        cited = cited_passage(trajectory, dialect)
        if cited is None:
            return ()
        return (Citation(passage=cited, sentence=quoted_sentence(quotation(trajectory, dialect), cited.text)),)
    passages = {passage.id: passage for passage in passages_with(answer, trajectory)}.values()
    shown = "\n".join(segment.text for segment in trajectory.segments if segment.author != "policy")
    return tuple(
        Citation(passage=passage, sentence=answer_sentence(answer, passage.text, task.question, shown))
        for passage in passages
    )


def quoted_sentence(quoted: str, text: str) -> tuple[int, int] | None:
    """The characters [begin, stop) of the sentence of `text` in which a quotation begins; None if it is not in it."""
    found = find_words(quoted, text)
    return found and max(place for place in whole_sentences(text) if place[0] <= found.start())


def answer_sentence(answer: str, text: str, question: str = "", shown: str = "") -> tuple[int, int] | None:
    """The characters [begin, stop) of the sentence of `text` that contains the words of the answer, or of neighbouring
    sentences that do together; None without any. Of several, one that is in `shown`, the text that the policy read, and
    of those the one with most words of the question, stop words aside; the first of equals."""
    asked = content_words(question)

    def fit(place: tuple[int, int]) -> tuple[bool, int]:
        sentence = text[slice(*place)]
        return sentence in shown, len(asked & content_words(sentence))

    found = whole_sentences(text)
    for together in range(1, len(normalise(answer).split()) + 1):
        runs = [(first[0], last[1]) for first, last in zip(found, found[together - 1 :], strict=False)]
        if holding := [place for place in runs if appears_in(answer, text[slice(*place)])]:
            return max(holding, key=fit)
    return None


def whole_sentences(text: str) -> list[tuple[int, int]]:
    """The sentences of a text as characters [begin, stop), none cut behind an initial or an abbreviation."""
    found: list[tuple[int, int]] = []
    for begin, stop in sentences(text):
        if found and ABBREVIATED.search(text, found[-1][0], found[-1][1]) is not None:
            begin, _ = found.pop()
        found.append((begin, stop))
    return found


def content_words(text: str) -> set[str]:
    """The distinct words of a text in lower case, without stop words."""
    return {word.lower() for word in WORD.findall(text)} - STOP_WORDS
