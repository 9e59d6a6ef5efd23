"""Texts about tool outputs of a world: their table of support, and rows of honest and of careless refiners."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from itertools import islice
from typing import Any

import pytest

from sleuth.cite.claims import tagged
from sleuth.cite.dialect import REFINERS
from sleuth.cite.env import RefineEnv
from sleuth.cite.rows import snippets_of
from sleuth.cite.world_citing import NOWHERE, TAGS, words
from sleuth.cite.world_tool_outputs import ToolOutputs
from sleuth.data.questions import task_from_row
from sleuth.episodes.library import read_prompt
from sleuth.judges.lexical import support
from sleuth.types import Piece
from sleuth.world.facts import World, make_world
from sleuth.world.library import Library
from sleuth.world.names import split_of
from sleuth.world.questions import Question
from sleuth.world.text import TextRows
from sleuth.world.tokens import make_tokenizer
from sleuth.world.wording import UNANSWERED
from sleuth.world.write_world import draw_questions

Case = tuple[Question, dict[str, Any]]


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(3, 400)


@pytest.fixture(scope="module")
def cases(world: World) -> list[Case]:
    """Questions, each with its row."""
    rng = random.Random(5)
    library = Library(world, random.Random(4))
    outputs = ToolOutputs(world, library, "train", rng)
    drawn = islice(draw_questions(world, library, "train", rng), 200)
    return [(question, outputs.row(question, id=str(at))) for at, question in enumerate(drawn)]


def snippets(row: dict[str, Any]) -> dict[str, str]:
    task = task_from_row(row, "row")
    assert task.evidence is not None
    return {snippet.id: snippet.text for snippet in task.evidence.snippets}


def test_the_answer_of_a_row_cites_for_each_hop_a_snippet_that_states_it(cases: list[Case]) -> None:
    for question, row in cases:
        if row["answerable"]:
            claims = tagged(row["answer"]).claims
            assert len(claims) == len(question.hops)
            table = {entry["claim"]: entry["snippets"] for entry in row["support"] if entry["asked"]}
            for claim, hop in zip(claims, question.hops, strict=True):
                assert claim.ids[0] in table[claim.text]
                assert hop.subject in claim.text
                assert hop.value in snippets(row)[claim.ids[0]]
            assert row["golden_answers"] == [question.answer]


def test_every_claim_of_the_table_is_stated_by_its_snippets_and_by_no_other(cases: list[Case], world: World) -> None:
    """StatedClaim means that the snippet contains subject and value, and not as an outdated claim."""
    for _, row in cases:
        texts = snippets(row)
        for entry in row["support"]:
            words = entry["claim"].removesuffix(".").split()
            names = [word for word in words if word[0].isupper() or word.isdigit()]
            for id_ in entry["snippets"]:
                assert all(name in texts[id_] for name in names)
                assert "almanac" not in texts[id_]


def test_distractors_are_planted(cases: list[Case]) -> None:
    texts = [text for _, row in cases for text in snippets(row).values()]
    kinds = Counter("stale" if "almanac" in text else "broken" if text.endswith("...") else "told" for text in texts)
    assert kinds["stale"] > 50
    assert kinds["broken"] > 20
    others = [len(row["support"]) - sum(entry["asked"] for entry in row["support"]) for _, row in cases]
    assert sum(others) / len(others) > 2


def test_no_name_of_the_other_split_occurs(cases: list[Case], world: World) -> None:
    told = "\n".join(row["tool_output"] for _, row in cases)
    held_out = [name for name in (*world.works, *world.people, *world.firms) if split_of(name) == "test"]
    assert len(held_out) > 100
    assert not [name for name in held_out if name in told]


def test_the_lexical_judge_supports_no_claim_by_a_snippet_that_does_not_state_it(cases: list[Case]) -> None:
    wrong = [
        (entry["claim"], text)
        for _, row in cases
        for entry in row["support"]
        for id_, text in snippets(row).items()
        if id_ not in entry["snippets"] and support(entry["claim"], text).score
    ]
    assert wrong == []


Row = list[Piece]


def rows_of(kind: str, count: int = 200) -> list[Row]:
    drawn = TextRows(2000, {kind: 1.0}, (0,))
    return [drawn.row(at) for at in range(count)]


@pytest.mark.parametrize("kind", ["placing", "citing", "refining"])
def test_rows_depend_only_on_their_index_and_the_tokenizer_knows_every_word_and_id(kind: str) -> None:
    rows, tokenizer = rows_of(kind, 50), make_tokenizer(2000, words(), TAGS)
    random.seed(1)
    assert rows_of(kind, 50) == rows
    for row in rows:
        assert row[0].author == "env"  # names of a tool output are random: to predict them would be learning noise
        assert "<tool_output>" in row[0].text
        tokens = tokenizer.convert_ids_to_tokens(tokenizer("".join(piece.text for piece in row))["input_ids"])
        assert [token for token in tokens if re.fullmatch(r"[A-Za-z0-9]", token) and token != "I"] == []


def taught(row: Row) -> list[tuple[str, str]]:
    """(text before it, text) of each teacher piece."""
    return [(row[at - 1].text, piece.text) for at, piece in enumerate(row) if piece.author == "teacher"]


def test_thoughts_cite_stated_facts_and_say_of_others_that_they_are_missing() -> None:
    counts = {True: 0, False: 0}
    for row in rows_of("citing"):
        texts = {snippet.id: snippet.text for snippet in snippets_of(row[0].text)}
        for before, found in taught(row):
            if not before.endswith(" is"):
                continue
            subject = before.split(" of ")[-1].removesuffix(" is")
            counts[found != NOWHERE] += 1
            if found != NOWHERE:
                value, id_ = re.fullmatch(r" (.+) \[(\d\d)\]", found).groups()  # pyright: ignore[reportOptionalMemberAccess]
                assert subject in texts[id_]
                assert value in texts[id_]
    assert counts[True] > counts[False] > 0.2 * counts[True]


def test_an_answer_cites_the_snippet_of_the_thought_or_abstains() -> None:
    for row in rows_of("citing"):
        for at, piece in enumerate(row):
            if piece.author != "teacher" or not row[at - 1].text.endswith("<answer>"):
                continue
            opened = max(place for place in range(at) if "Reasoning:" in row[place].text)
            found = [known.text for known in row[opened:at] if known.author == "teacher"]
            claims = tagged(f"<answer>{piece.text}</answer>").claims
            if NOWHERE in found:
                assert piece.text == UNANSWERED
            else:
                assert [f"[{claim.ids[0]}]" for claim in claims] == [known.rsplit(" ", 1)[1] for known in found]


THINKING = REFINERS["thinking"]
CARELESS = 1200


@pytest.fixture(scope="module")
def rows() -> list[tuple[str, str]]:
    """(prompt, thought and answer) of each row."""
    drawn = TextRows(2000, {"refining": 1.0}, (0,))
    return [(asked.text, answer.text) for asked, answer in (drawn.row(at) for at in range(CARELESS))]


def test_the_prompt_of_a_row_is_that_of_the_environment(rows: list[tuple[str, str]]) -> None:
    asked, _ = rows[0]
    question, reasoning = re.findall(r"(?m)^(?:Question|Reasoning): (.*)$", asked)
    output = asked.split("<tool_output>\n")[1].split("\n</tool_output>")[0]
    row = {"id": "a", "question": question, "reasoning": reasoning, "tool_output": output}
    env = RefineEnv(task_from_row(row, "row"), THINKING, read_prompt("bare"))
    opened = asyncio.run(env.open())
    assert "".join(piece.text for piece in opened.pieces if isinstance(piece, Piece)) == asked
