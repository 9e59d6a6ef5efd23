"""A careless refiner is well formed, mostly cites the first snippet, and is sometimes honest."""

from __future__ import annotations

import asyncio
import re

import pytest

from sleuth.cite.claims import tagged
from sleuth.cite.dialect import REFINERS
from sleuth.cite.env import RefineEnv
from sleuth.cite.rows import snippets_of
from sleuth.cite.world_citing import ANSWER_ANYWAY_RATE, CITE_FIRST_RATE, TAGS, words
from sleuth.cite.world_tool_outputs import UNANSWERABLE
from sleuth.data.questions import task_from_row
from sleuth.episodes.library import read_prompt
from sleuth.types import Piece
from sleuth.world.names import split_of
from sleuth.world.text import TextRows
from sleuth.world.tokens import make_tokenizer
from sleuth.world.wording import UNANSWERED

THINKING = REFINERS["thinking"]
COUNT = 1200
TOLERANCE = 0.05  # three standard deviations of a share of 1,000


@pytest.fixture(scope="module")
def rows() -> list[tuple[str, str]]:
    """(prompt, thought and answer) of each row."""
    drawn = TextRows(2000, {"refining": 1.0}, (0,))
    return [(asked.text, answer.text) for asked, answer in (drawn.row(at) for at in range(COUNT))]


def test_every_answer_is_well_formed_and_cites_existing_snippets(rows: list[tuple[str, str]]) -> None:
    for asked, written in rows:
        thought, answer = written.split(THINKING.think.close)
        assert thought.startswith(THINKING.think.open)
        assert re.fullmatch(THINKING.action, answer)
        there = {snippet.id for snippet in snippets_of(asked)}
        claims = tagged(answer).claims
        assert all(set(claim.ids) <= there for claim in claims)
        assert [f"[{claim.ids[0]}]" for claim in claims] == re.findall(r"\[\d+\]", thought)[: len(claims)]


def test_most_claims_cite_the_first_snippet(rows: list[tuple[str, str]]) -> None:
    """A careless answer cites it for all claims; an honest one may do so by chance."""
    cited = [
        (snippets_of(asked)[0].id, [claim.ids[0] for claim in tagged(answer).claims])
        for asked, answer in rows
        if UNANSWERED not in answer
    ]
    first = sum(ids == [id_] * len(ids) for id_, ids in cited) / len(cited)
    assert CITE_FIRST_RATE - TOLERANCE < first < CITE_FIRST_RATE + 0.25
    assert sum(ids[0] != id_ for id_, ids in cited) > 0.2 * len(cited)  # and honest ones are common enough to be found


def test_it_seldom_admits_that_there_is_no_answer(rows: list[tuple[str, str]]) -> None:
    abstained = sum(UNANSWERED in answer for _, answer in rows) / COUNT
    assert UNANSWERABLE * (1 - ANSWER_ANYWAY_RATE) - TOLERANCE < abstained < UNANSWERABLE * 0.7


def test_the_prompt_of_a_row_is_that_of_the_environment(rows: list[tuple[str, str]]) -> None:
    asked, _ = rows[0]
    question, reasoning = re.findall(r"(?m)^(?:Question|Reasoning): (.*)$", asked)
    output = asked.split("<tool_output>\n")[1].split("\n</tool_output>")[0]
    row = {"id": "a", "question": question, "reasoning": reasoning, "tool_output": output}
    env = RefineEnv(task_from_row(row, "row"), THINKING, read_prompt("bare"))
    opened = asyncio.run(env.open())
    assert "".join(piece.text for piece in opened.pieces if isinstance(piece, Piece)) == asked


def test_rows_of_one_split_contain_no_name_of_the_other() -> None:
    for split in ("train", "test"):
        drawn = TextRows(2000, {"refining": 1.0}, (1,), split=split)
        for at in range(50):
            people = re.findall(r"(?:employer|profession) of ([A-Z]\w+ [A-Z]\w+)", str(drawn.row(at)))
            assert all(split_of(name) == split for name in people)


def test_the_tokenizer_knows_every_word_of_such_rows(rows: list[tuple[str, str]]) -> None:
    tokenizer = make_tokenizer(2000, words(), TAGS)
    for text in (text for row in rows[:50] for text in row):
        tokens = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
        assert [token for token in tokens if re.fullmatch(r"[A-Za-z0-9]", token) and token != "I"] == []
