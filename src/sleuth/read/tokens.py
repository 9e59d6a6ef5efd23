"""A reader's tokenizer, made from its texts, and the tokens of questions and passages."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sleuth.data.spans import WORD
from sleuth.read.dialect import QUOTED, READING
from sleuth.read.texts import ReadingTexts
from sleuth.search.dialects import SLEUTH
from sleuth.types import Passage, SleuthError
from sleuth.world.tokens import with_tags

QUESTION, PASSAGE, RESULTS_END = READING.question_again or "", READING.information.open, READING.information.close
"""The tags before a question and a passage, and behind the passages of a search."""
SEARCH, SEARCHED = READING.search.open, READING.search.close
ANSWER, ANSWERED = READING.answer.open, READING.answer.close
"""The tags around an answer, which ends a row."""
TITLE_TOKENS, TEXT_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 24, 320, 40, 30
"""The most tokens of a part: longer titles, texts and questions are cut."""
QUOTE_TOKENS = 3, 8
"""The least and the most tokens that a quotation goes on after the answer, if its passage has as many."""
PUNCTUATION = frozenset(".,;:!?")
"""A quotation ends after one of these, if it can."""
PART_OF_A_LETTER = "\ufffd"
"""The text of a token that has some of a letter's bytes."""
ROW_TOKENS = TITLE_TOKENS + TEXT_TOKENS + 2 * QUESTION_TOKENS + ANSWER_TOKENS + QUOTE_TOKENS[1] + 7
"""Tokens of the longest row with one passage: its parts, four tags, two brackets and the end."""
RESULT_TOKENS = READING.passage_tokens or 0
"""The most tokens of a sentence among several, its title included."""
SEARCHED_ROW_TOKENS = 3 * QUESTION_TOKENS + READING.top_k * (1 + RESULT_TOKENS) + ANSWER_TOKENS + QUOTE_TOKENS[1] + 9
"""Tokens of the longest row with a search: its parts and tags."""
AT_ONCE = 1000
"""Passages that are encoded at once; an encoding takes a hundred bytes a token."""


def make_reading_tokenizer(texts: ReadingTexts, vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of `vocabulary` tokens, tags included, from the passages and questions that are trained. No
    token has both a space and a digit, so that texts may be split as GPT-2 does, which llama.cpp knows."""
    tags = (*SLEUTH.tags, QUESTION, PASSAGE)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(tags) - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_texts(texts), trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return with_tags(tokenizer, tags)


def _texts(texts: ReadingTexts) -> Iterator[str]:
    for passage in texts.passages:
        yield from (title_text(passage.title), f" {passage.text}")
    yield from (f" {question.question}" for question in texts.questions)


def title_text(title: str) -> str:
    """A title as it stands before its text."""
    return f" {title} |"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionTokens:
    """The tokens of a question, its tag first, and each word with its tokens [first, after)."""

    tokens: tuple[int, ...]
    words: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageTokens:
    """The tokens of a passage: its title, its text. `stops` are the characters after each token of the text alone."""

    tokens: tuple[int, ...]
    stops: tuple[int, ...]

    def span(self, start: int, end: int) -> tuple[int, int] | None:
        """The tokens [first, after) that hold the characters [start, end) of the text; None beyond its last token."""
        if not self.stops or end > self.stops[-1]:
            return None
        before = len(self.tokens) - len(self.stops)
        first = bisect_left(self.stops, start + 1)
        return before + first, before + bisect_left(self.stops, end) + 1


class ReadingTokens:
    """Encodes the parts of a reader's rows. In none of them is the name of a tag the tag."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        outline = json.loads(tokenizer.backend_tokenizer.to_str())
        self._plain = Tokenizer.from_str(json.dumps(outline | {"added_tokens": []}))
        self.tags = {tag: self._tag(tag) for tag in READING.tags}
        self.end = self.tags[ANSWERED]
        self.quote_open, self.quote_close = (tuple(self._plain.encode(mark).ids) for mark in (" [", "]"))

    def _tag(self, tag: object) -> int:
        ids = self.tokenizer.encode(str(tag), add_special_tokens=False)
        if len(ids) != 1:
            raise SleuthError(
                f"the model's tokenizer has no token {tag}, with which a reader's rows are written; add it to "
                "`tokens` of the stage"
            )
        return ids[0]

    def question(self, question: str) -> tuple[int, ...]:
        """The tokens of a question after its tag."""
        return (self.tags[QUESTION], *self._plain.encode(f" {question}").ids[:QUESTION_TOKENS])

    def question_words(self, question: str) -> QuestionTokens:
        """The tokens of a question, and which of them each of its words has, from the space before it on."""
        text = f" {question}"
        offsets = self._plain.encode(text).offsets[:QUESTION_TOKENS]
        words, end = [], 0
        for word in WORD.finditer(text):
            begin, end = max(end, text.rfind(" ", 0, word.start())), word.end()
            inside = [at for at, (start, stop) in enumerate(offsets, 1) if start < end and stop > begin]
            if inside:
                words.append((word.group(), inside[0], inside[-1] + 1))
        return QuestionTokens(tokens=self.question(question), words=tuple(words))

    def quote_end(self, tokens: Sequence[int], after: int) -> int:
        """The end of a quotation that begins with the answer, which ends at tokens[after]: after the punctuation mark
        before a space that follows at least `QUOTE_TOKENS[0]` more tokens, else the last end of a word within
        `QUOTE_TOKENS[1]`. No bracket is quoted."""
        words = [self.words[token] for token in tokens[after : after + QUOTE_TOKENS[1] + 1]] + [" "]  # the end is one
        most = next((at for at, word in enumerate(words) if "[" in word or "]" in word), len(words))
        most = min(most, len(words) - 1, QUOTE_TOKENS[1])
        for at in range(QUOTE_TOKENS[0] + 1, most + 1):
            if words[at - 1][-1:] in PUNCTUATION and words[at].startswith(" "):
                return after + at
        while most and (_goes_on(words[most]) or words[most - 1].isspace()):
            most -= 1
        return after + most

    def passage(self, title: str, text: str) -> PassageTokens:
        """The tokens of a passage; only the first `TEXT_TOKENS` of its text."""
        of_title = self._plain.encode(title_text(title)).ids[:TITLE_TOKENS]
        of_text = self._plain.encode(f" {text}")
        return PassageTokens(
            tokens=(*of_title, *of_text.ids[:TEXT_TOKENS]),
            stops=tuple(stop - 1 for _, stop in of_text.offsets[:TEXT_TOKENS]),  # the text begins after a space
        )

    def prompt(self, question: tuple[int, ...], passage: tuple[int, ...]) -> tuple[int, ...]:
        """Question, passage, the question again, and the tag of the answer. The question comes first so that the
        passage is read with it in view, and again because only what is behind the passage has read all of it."""
        return (*question, self.tags[PASSAGE], *passage, *question, self.tags[ANSWER])

    def search(self, query: Sequence[int]) -> tuple[int, ...]:
        """A query between its tags."""
        return (self.tags[SEARCH], *query, self.tags[SEARCHED])

    def results(self, passages: Sequence[tuple[int, ...]], question: tuple[int, ...]) -> tuple[int, ...]:
        """What the environment of the dialect `reading` replies to a search: passages, or their tag alone if there are
        none, and the question again."""
        shown = (token for passage in passages or [()] for token in (self.tags[PASSAGE], *passage))
        return (*shown, self.tags[RESULTS_END], *question)

    def passages(self, passages: Sequence[Passage]) -> list[np.ndarray]:
        """All tokens of passages, for statistics."""
        return [
            np.array(encoding.ids, dtype=np.int32)
            for first in range(0, len(passages), AT_ONCE)
            for encoding in self._plain.encode_batch_fast(
                [f"{title_text(passage.title)} {passage.text}" for passage in passages[first : first + AT_ONCE]]
            )
        ]

    @cached_property
    def words(self) -> list[str]:
        """The text of each token, " city" with the space before it; that of a tag is empty."""
        added = self.tokenizer.get_added_vocab().values()
        return ["" if at in added else self.text([at]) for at in range(len(self.tokenizer))]

    def answer(self, tokens: Sequence[int]) -> str:
        """The text of a generated answer, without what it quotes and its end."""
        text = self.text([token for token in tokens if token != self.end])
        return QUOTED.sub("", text).strip()

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without control tokens."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


def _goes_on(word: str) -> bool:
    """Whether a token's text continues the word before it."""
    return word[:1].isalnum() or word.startswith(PART_OF_A_LETTER)
