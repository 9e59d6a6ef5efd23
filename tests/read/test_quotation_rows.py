"""What the rows with a search quote: where a quotation ends, where it is copied from, and which rows have none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from towns import write

from sleuth.learn.batch import Row
from sleuth.read.rows import ASKED, FIRST_TOKEN_WEIGHT, ReadingRows, SearchedRows
from sleuth.read.texts import ReadingQuestion, ReadingTexts
from sleuth.read.tokens import QUOTE_TOKENS, RESULT_TOKENS, ReadingTokens, make_reading_tokenizer
from sleuth.retrieval.bm25 import build_index
from sleuth.retrieval.open_index import open_index
from sleuth.types import Passage

WORDS = (
    "Tarn one two three four five six seven eight nine ten. One, two; three: four! five? six In 1921 4050 [2] so.[3] "
    "So[4]; Ada Voss Emil bought the mill of Kolm in who ran it. It rained"
)
"""Each of these words is one token, with the space before it; so are `.[`, `];` and the space before a number."""
QUESTION = "Who got the mill?"


def texts_of(*texts: str, answer: str = "") -> ReadingTexts:
    """A passage of each text, each with the title Kolm, and a question that `answer` in the first of them answers."""
    passages = tuple(Passage(id=f"p{at}", title="Kolm", text=text) for at, text in enumerate(texts))
    start = texts[0].index(answer)
    question = ReadingQuestion(question=QUESTION, answers=(answer,), passage=passages[0], start=start, source="squad")
    return ReadingTexts(passages=passages, questions=(question,), held_out=())


def tokens_of(texts: ReadingTexts) -> ReadingTokens:
    """Tokens of whole words."""
    words = Passage(id="w", title="Kolm", text=f"{WORDS} {WORDS}")
    learnt = ReadingTexts(passages=(words, *texts.passages * 2), questions=texts.questions * 2, held_out=())
    return ReadingTokens(make_reading_tokenizer(learnt, 1000))


@cache
def words_alone() -> ReadingTokens:
    """Tokens of `WORDS`."""
    return tokens_of(texts_of(WORDS))


def rows_of(texts: ReadingTexts, folder: Path) -> SearchedRows:
    passages = [{"id": one.id, "contents": f'"{one.title}"\n{one.text}'} for one in texts.passages]
    write(folder / "passages.jsonl", passages)
    build_index(folder / "passages.jsonl", folder / "index")
    return SearchedRows(texts, tokens_of(texts), open_index(folder / "index"), mix=None, rows=1, key=(0,))


def asked(rows: ReadingRows, count: int) -> Iterator[tuple[Row, str]]:
    """Those of the first rows that are about the question instead of a cloze, with their text."""
    for row in map(rows.row, range(count)):
        text = rows.tokens.text(row.tokens)
        if text.startswith(f"<question> {QUESTION}<"):
            yield row, text


def quotation(text: str, answer: str = "Tarn", *, cut: int | None = None) -> str:
    """What an answer in a passage of this text quotes, of which so many tokens behind the answer are shown."""
    tokens = words_alone()
    passage = tokens.passage("Kolm", text)
    span = passage.span(text.index(answer), text.index(answer) + len(answer))
    assert span is not None
    shown = passage.tokens if cut is None else passage.tokens[: span[1] + cut]
    return tokens.text(shown[span[0] : tokens.quote_end(shown, span[1])])


ENDS = [
    # behind a mark, from the third token to the eighth
    ("Tarn one two three. four five", " Tarn one two three."),
    ("Tarn one two three four, five six.", " Tarn one two three four,"),
    ("Tarn one two. three four five six seven eight", " Tarn one two. three four five six seven"),  # too soon
    ("Tarn one two three four five six seven. eight", " Tarn one two three four five six seven."),
    *[(f"Tarn one two three{mark} four{mark}", f" Tarn one two three{mark}") for mark in ".,;:!?"],
    ("Tarn one two three) four five six seven eight", " Tarn one two three) four five six seven"),  # none of these
    ("Tarn one two three 1921.4050 four", " Tarn one two three 1921.4050 four"),  # nor with no space behind it
    # else behind the last whole word or number
    ("Tarn one two three four five six seven eight. nine", " Tarn one two three four five six seven eight"),
    ("Tarn one two three four five six seven onely nine", " Tarn one two three four five six seven"),
    ("Tarn in 1921. One two three four five six", " Tarn in 1921."),  # a number is two tokens, the first a space
    ("Tarn one two three four five six 1921 eight nine", " Tarn one two three four five six 1921"),
    ("Tarn one two three four five six seven 1921 nine", " Tarn one two three four five six seven"),
    ("Tarn one two three four five onely", " Tarn one two three four five onely"),  # three tokens
    # with its passage
    ("one Tarn", " Tarn"),
    ("one Tarn two three", " Tarn two three"),
    # before a bracket
    ("Tarn one two three. [2] four", " Tarn one two three."),
    ("Tarn one two[2] three four", " Tarn one two"),
    ("Tarn one two so.[3] three four", " Tarn one two so"),  # `.[` is one token
    ("Tarn [2] one two three.", " Tarn"),
    ("Tarn one]; two three.", " Tarn one"),
]


@pytest.mark.parametrize(("text", "quoted"), ENDS)
def test_a_quotation_ends_behind_a_mark_a_word_or_a_number_with_its_passage_or_before_a_bracket(text, quoted) -> None:
    assert QUOTE_TOKENS == (3, 8)
    assert quotation(text) == quoted


@pytest.mark.parametrize(("cut", "quoted"), [(0, " Tarn"), (2, " Tarn one two"), (5, " Tarn one two three four,")])
def test_a_quotation_ends_where_the_budget_cut_its_passage(cut: int, quoted: str) -> None:
    assert quotation("Tarn one two three four, five six seven.", cut=cut) == quoted


MILL = "The mill of Kolm in 1921 Ada Voss bought, who ran it, so. It rained."
BESIDE = ("It rained in Kolm. Emil ran the mill.", "The mill of Emil: one, two, three.")


def test_a_row_copies_its_answer_and_its_quotation_from_one_place(tmp_path: Path) -> None:
    """`<answer> Ada Voss [ bought, who ran it,]</answer>`, token by token, wherever the sentence stands."""
    rows = rows_of(texts_of(MILL, *BESIDE, answer="Ada Voss"), tmp_path)
    ranks = set()
    for row, text in asked(rows, 100):
        if " |" not in text:
            continue
        words = [
            "<answer>" if token == rows.tokens.tags["<answer>"] else rows.tokens.words[token] for token in row.tokens
        ]
        turn, ada = words.index("<answer>"), words.index(" Ada")
        assert words[ada - 2 : ada + 7] == [" ", "1921", " Ada", " Voss", " bought", ",", " who", " ran", " it"]
        quoted = [" bought", ",", " who", " ran", " it", ","]
        assert words[turn:] == ["<answer>", " Ada", " Voss", " [", *quoted, "]", ""]
        assert row.tokens[-1] == rows.tokens.end
        assert row.sources is not None
        assert row.token_weight is not None
        assert row.sources[turn:] == (-1, ada, ada + 1, -1, *range(ada + 2, ada + 8), -1, -1)
        assert row.token_weight[turn:] == (1, 3, 1, 1, *(3, 1, 1, 1, 1, 1), 1, 1)
        assert row.trained[turn:] == (True,) * 12
        ranks.add(text.partition("Voss bought, who")[0].count("<passage>"))
    assert FIRST_TOKEN_WEIGHT == 3.0
    assert ranks == {1, 2, 3, 4}


def test_a_quotation_ends_at_the_budget_of_its_passage(tmp_path: Path) -> None:
    """Of its text, which stands behind the two tokens of ` Kolm |`, three tokens behind the answer are shown."""
    text = f"{'six ' * (RESULT_TOKENS - 2 - 1 - 2 - 3)}mill Ada Voss one two three four five, six."
    rows = rows_of(texts_of(text, answer="Ada Voss"), tmp_path)
    whole = [text for _, text in asked(rows, 60) if " |" in text]
    assert all(text.partition("</information>")[0].endswith(" six mill Ada Voss one two three") for text in whole)
    assert {text.partition("<answer>")[2] for text in whole} == {" Ada Voss [ one two three]</answer>"}


@pytest.mark.parametrize(
    ("text", "answer", "turn"),
    [
        ("Ada bought the [2] mill in 1921.", "Ada", " Ada [ bought the]</answer>"),
        ("One mill of Ada", "Ada", " Ada []</answer>"),  # nothing is behind it
        ("The [old] mill of Ada [2] Voss.", "Ada [2] Voss", None),
        ("The mill of Ada so.[3] It rained.", "Ada so.", None),  # `.[` is the last token of the answer
    ],
)
def test_no_bracket_is_quoted_and_an_answer_with_one_has_no_row(
    tmp_path: Path, text: str, answer: str, turn: str | None
) -> None:
    rows = rows_of(texts_of(text, answer=answer), tmp_path)
    texts = [text for _, text in asked(rows, 60)]
    assert {text.partition("<answer>")[2] for text in texts if " |" in text} == ({turn} if turn else set())
    assert all(turn or text.endswith("</search>") for text in texts)
    assert len(texts) > 20


def test_half_of_the_rows_end_with_the_query(tmp_path: Path) -> None:
    """`<question> Who got the mill?<search> got the mill</search>`: the beginning of an episode."""
    rows = rows_of(texts_of(MILL, *BESIDE, answer="Ada Voss"), tmp_path)
    count, whole = 0, [row.tokens for row, text in asked(rows, 300) if " |" in text]
    begins = {tokens[: tokens.index(rows.tokens.tags["</search>"]) + 1] for tokens in whole}
    for row, text in asked(rows, 300):
        if not text.endswith("</search>"):
            continue
        count += 1
        query = text.partition("<search>")[2].removesuffix("</search>")
        assert query in (" got the mill", " got the", " the mill")
        first, length = {" got the mill": (2, 3), " got the": (2, 2), " the mill": (3, 2)}[query]
        assert row.sources == (-1,) * 6 + (-1, *range(first, first + length), -1)
        assert row.token_weight == (0,) * 6 + (1,) * (length + 2)
        assert row.trained == (False,) * 6 + (True,) * (length + 2)
        assert row.tokens in begins
    assert ASKED == 0.5
    assert 0.4 < count / len([*asked(rows, 300)]) < 0.6
