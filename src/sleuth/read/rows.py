"""Rows of `data.kind = "reading"`: a question, the sentence with the answer, and the answer; or a question, a search,
the sentences that it shows, and the answer. An answer goes on with what follows it in its sentence."""

from __future__ import annotations

import random
from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from sleuth.data.spans import STOP_WORDS, best_sentences, cloze
from sleuth.learn.batch import Row
from sleuth.read.dialect import READING
from sleuth.read.texts import (
    ReadingQuestion,
    ReadingRecipe,
    ReadingTexts,
    read_reading_texts,
    require_indexed,
    sentence_with,
)
from sleuth.read.tokens import (
    ANSWER,
    ANSWER_TOKENS,
    PASSAGE,
    RESULT_TOKENS,
    ROW_TOKENS,
    SEARCHED_ROW_TOKENS,
    QuestionTokens,
    ReadingTokens,
)
from sleuth.recipe import SupervisedRecipe
from sleuth.retrieval.open_index import Index
from sleuth.training.sft import TrainedTexts
from sleuth.types import Passage

FIRST_CLOZES, LAST_CLOZES, CLOZES_FALL_UNTIL = 0.7, 0.2, 0.6
"""The share of clozes in the first step, and from this part of the steps on."""
SENTENCE_WEIGHT = 0.2
"""Weight of the sentence's own tokens, which are predicted as in any text: a row has several times as many of them as
of the answer, and a model that begins with nothing learns from them what its words are."""
FIRST_TOKEN_WEIGHT = 3.0
"""Weight of the first token that is copied from a passage, which decides where from; that of the others is 1."""
ASKED = 0.5
"""Share of the rows with a search that end with the query: they take a fifteenth of the tokens, and a query is written
wrong where words of the question occur twice in it."""
SHUFFLED = 0.5
"""Share of the rows with several sentences that have them in random order. Otherwise the first would be the right one
in most rows."""
GUESSED = 0.12
"""Share of the others that have no result, because none was found or because there was no search. Without them the
control arms would measure only that the model has never seen such a prompt."""
ALONE = 0.3
"""Share of the others whose sentence stands alone, as if nothing else had been found: more rows for the same tokens."""
PART = 0.25
"""Share of the queries that are only a part of the question, half of its words at least."""


def require_texts(stage: SupervisedRecipe, tokenizer: PreTrainedTokenizerFast | None) -> TrainedTexts:
    """What a stage is checked for. Raises SleuthError if its questions do not fit its passages, or these its index."""
    data = stage.data
    assert isinstance(data, ReadingRecipe)
    texts, longest = read_reading_texts(data), ROW_TOKENS
    if data.index is not None:
        require_indexed(texts, data.index)
        longest = SEARCHED_ROW_TOKENS
    return TrainedTexts(longest={'the longest row of data.kind = "reading"': longest})


class ReadingRows:
    """An endless sequence of rows, each a function of its index; `rows` of them are the whole stage."""

    def __init__(
        self,
        texts: ReadingTexts,
        tokens: ReadingTokens,
        *,
        mix: dict[str, float] | None,
        rows: int,
        key: tuple[int, ...],
    ) -> None:
        self.tokens, self.rows, self.key = tokens, rows, key
        self.passages = texts.passages
        questions = list(texts.questions)
        self.sources = [[one for one in questions if one.source == name] for name in mix] if mix else [questions]
        self.weights = [*mix.values()] if mix else [1.0]

    def row(self, index: int) -> Row:
        """A row about a question or a cloze. What does not fit is drawn again."""
        rng = random.Random(f"{self.key} {index}")
        while True:
            drawn = self._cloze(rng) if rng.random() < self.clozes(index / self.rows) else self._question(rng)
            row = drawn and self._row(*drawn, rng=rng)
            if row is not None:
                return row

    def clozes(self, progress: float) -> float:
        """The share of clozes at this part of the steps."""
        return FIRST_CLOZES + (LAST_CLOZES - FIRST_CLOZES) * min(1.0, progress / CLOZES_FALL_UNTIL)

    def prompt(self, number: int, question: ReadingQuestion) -> tuple[int, ...]:
        """What stands before the answer to held-out question `number` in a row."""
        right, _, _ = sentence_with(question.passage, question.start, question.end)
        sentence = self.tokens.passage(right.title, right.text)
        return self.tokens.prompt(self.tokens.question(question.question), sentence.tokens)

    def _question(self, rng: random.Random) -> tuple[str, Passage, int, int]:
        [questions] = rng.choices(self.sources, self.weights)
        question: ReadingQuestion = rng.choice(questions)
        return question.question, question.passage, question.start, question.end

    def _cloze(self, rng: random.Random) -> tuple[str, Passage, int, int] | None:
        passage = rng.choice(self.passages)
        made = cloze(passage.text, rng)
        return made and (made.question, passage, made.start, made.end)

    def _row(self, question: str, passage: Passage, start: int, end: int, *, rng: random.Random) -> Row | None:
        """None if the answer cannot be written, or is beyond the end of a sentence that was cut."""
        right, first, after = sentence_with(passage, start, end)
        encoded = self.tokens.passage(right.title, right.text)
        span = encoded.span(first, after)
        if span is None or not self._can_be_written(encoded.tokens[slice(*span)]):
            return None
        prompt = self.tokens.prompt(self.tokens.question(question), encoded.tokens)
        place = prompt.index(self.tokens.tags[PASSAGE]) + 1
        row = _Row(prompt)
        row.weights[place : place + len(encoded.tokens)] = [SENTENCE_WEIGHT] * len(encoded.tokens)
        row.answer(place, span, encoded.tokens, self.tokens)
        return row.finished()

    def _can_be_written(self, answer: Sequence[int]) -> bool:
        """Whether an answer is short enough, and none of its tokens has a bracket, which would begin a quotation or end
        it: the last one of `Tarn.[1]` may be `.[`."""
        return len(answer) <= ANSWER_TOKENS and {"[", "]"}.isdisjoint(self.tokens.text(answer))


class SearchedRows(ReadingRows):
    """Rows that are whole episodes of the dialect `reading`, or begin one: the query is made of words of the question,
    and the sentence with the answer stands among those that a search for it shows, put there if it is not one of
    them."""

    def __init__(
        self,
        texts: ReadingTexts,
        tokens: ReadingTokens,
        index: Index,
        *,
        mix: dict[str, float] | None,
        rows: int,
        key: tuple[int, ...],
    ) -> None:
        super().__init__(texts, tokens, mix=mix, rows=rows, key=key)
        self.index = index

    def clozes(self, progress: float) -> float:
        """The same share in all steps: that of the last rows with one passage."""
        return LAST_CLOZES

    def prompt(self, number: int, question: ReadingQuestion) -> tuple[int, ...]:
        """The search with the question's words from the first that is no stop word on, and what it found, in order."""
        asked = self.tokens.question_words(question.question)
        query = query_places(asked)
        right = sentence_with(question.passage, question.start, question.end)
        found, _ = self._found(query, asked, right[0], random.Random(number), shuffled=0.0)
        row = self._searching(asked, query)
        row.read(self.tokens.results(self._results(found), asked.tokens))
        return (*row.tokens, self.tokens.tags[ANSWER])

    def _row(self, question: str, passage: Passage, start: int, end: int, *, rng: random.Random) -> Row | None:
        asked = self.tokens.question_words(question)
        query = query_places(asked, rng)
        if rng.random() < ASKED:
            return self._searching(asked, query).finished()
        right, first, after = sentence_with(passage, start, end)
        found, rank = ([right], 1) if rng.random() < ALONE else self._found(query, asked, right, rng, shuffled=SHUFFLED)
        encoded = self.tokens.passage(right.title, right.text)
        span = encoded.span(first, after)
        answer = () if span is None else encoded.tokens[slice(*span)]
        if span is None or span[1] > RESULT_TOKENS or not self._can_be_written(answer):
            return None
        if rng.random() < GUESSED:
            return self._guess(asked, query, answer, searches=rng.random() < 0.5)
        passages = self._results(found)
        row = self._searching(asked, query)
        place = len(row.tokens) + sum(1 + len(tokens) for tokens in passages[: rank - 1]) + 1
        row.read(self.tokens.results(passages, asked.tokens))
        row.write([self.tokens.tags[ANSWER]])
        row.answer(place, span, passages[rank - 1], self.tokens)
        return row.finished()

    def _searching(self, asked: QuestionTokens, query: Sequence[int]) -> _Row:
        """A row that begins with the question and the search for these of its tokens."""
        row = _Row(asked.tokens)
        row.write(self.tokens.search([asked.tokens[at] for at in query]), sources=(-1, *query, -1))
        return row

    def _guess(self, asked: QuestionTokens, query: Sequence[int], answer: Sequence[int], *, searches: bool) -> Row:
        """A row whose search found nothing, or in which the environment opened the answer at once."""
        if searches:
            row = self._searching(asked, query)
            row.read(self.tokens.results([], asked.tokens))
            row.write([self.tokens.tags[ANSWER]])
        else:
            row = _Row((*asked.tokens, self.tokens.tags[ANSWER]))
        row.write(answer, (FIRST_TOKEN_WEIGHT, *(1.0,) * (len(answer) - 1)))
        row.write([self.tokens.end])
        return row.finished()

    def _found(
        self, query: Sequence[int], asked: QuestionTokens, right: Passage, rng: random.Random, *, shuffled: float
    ) -> tuple[list[Passage], int]:
        """The sentences that a search shows, and the rank of the right one among them, which takes the place of one of
        them if it is not there."""
        text = self.tokens.text([asked.tokens[at] for at in query])
        [passages] = self.index.find([text], READING.sentences_of or READING.top_k)
        found = best_sentences(text, passages, READING.top_k)
        if all((one.id, one.text) != (right.id, right.text) for one in found):
            at = rng.randrange(READING.top_k)
            found[at:] = [right, *found[at + 1 :]]
        if rng.random() < shuffled:
            rng.shuffle(found)
        return found, [(one.id, one.text) for one in found].index((right.id, right.text)) + 1

    def _results(self, found: Sequence[Passage]) -> list[tuple[int, ...]]:
        """The tokens of each passage that are shown."""
        return [self.tokens.passage(passage.title, passage.text).tokens[:RESULT_TOKENS] for passage in found]


class _Row:
    """A row that is written from left to right; it begins with tokens that are read."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = [*tokens]
        self.weights = [0.0] * len(tokens)
        self.sources = [-1] * len(tokens)

    def read(self, tokens: Sequence[int]) -> None:
        """Appends tokens that are not trained."""
        self.tokens += tokens
        self.weights += [0.0] * len(tokens)
        self.sources += [-1] * len(tokens)

    def write(self, tokens: Sequence[int], weights: Sequence[float] = (), sources: Sequence[int] = ()) -> None:
        """Appends tokens that are trained, with the places that they are copied from, -1 for none."""
        self.tokens += tokens
        self.weights += weights or [1.0] * len(tokens)
        self.sources += sources or [-1] * len(tokens)

    def answer(self, place: int, span: tuple[int, int], passage: Sequence[int], tokens: ReadingTokens) -> None:
        """Appends the answer, which is tokens [first, after) of the passage at `place`, what it quotes from there, and
        its end."""
        first, after = span
        self.copy(place + first, place + after)
        self.write(tokens.quote_open)
        self.copy(place + after, place + tokens.quote_end(passage, after))
        self.write([*tokens.quote_close, tokens.end])

    def copy(self, first: int, after: int) -> None:
        """Appends a copy of the tokens [first, after), perhaps none; which place it begins at matters most."""
        if first < after:
            weights = (FIRST_TOKEN_WEIGHT, *(1.0,) * (after - first - 1))
            self.write(self.tokens[first:after], weights, range(first, after))

    def finished(self) -> Row:
        """The row; whatever has a weight is trained."""
        return Row(
            tokens=tuple(self.tokens),
            trained=tuple(weight > 0 for weight in self.weights),
            token_weight=tuple(self.weights),
            sources=tuple(self.sources),
        )


def query_places(asked: QuestionTokens, rng: random.Random | None = None) -> list[int]:
    """The places of a question's tokens that make a query: its words in a row from the first that is no stop word, or,
    with `rng`, perhaps a part of them. A query is a run of tokens because that is what a copying head learns first."""
    words = asked.words
    if not words:
        return [*range(1, len(asked.tokens))]
    first = next((at for at, (word, _, _) in enumerate(words) if word.lower() not in STOP_WORDS), 0)
    after = len(words)
    if rng is not None and rng.random() < PART:
        size = rng.randint((after - first + 1) // 2, after - first)
        first = rng.randint(first, after - size)
        after = first + size
    return [*range(words[first][1], words[after - 1][2])]
