"""The search environment: what it understands, what it answers, and what it never does."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from dataclasses import replace

import pytest
from shelf import Shelf

from sleuth.dialect import DIALECTS
from sleuth.episodes.library import read_prompt
from sleuth.search import world as thoughts
from sleuth.search.env import SearchEnv, find_results
from sleuth.types import Passage, Reply, SleuthError, Task
from sleuth.world.library import Article

TASK = Task(id="q", question="Where was Ada born?", golden_answers=("Tarn",))
PROMPT = "Answer it.\nQuestion: {question}\n"


def environment(dialect: str = "sleuth", forced: bool = False, **changes: object) -> tuple[SearchEnv, Shelf]:
    shelf = Shelf(Passage(id="1", title="Ada", text="Ada was born in Tarn."), Passage(id="2", title="Bo", text="Bo."))
    changed = dataclasses.replace(DIALECTS[dialect], **changes)
    return SearchEnv(TASK, changed, PROMPT, shelf, forced_search=forced), shelf


def text_of(reply: Reply) -> str:
    return "".join(piece.text for piece in reply.pieces)


def assert_action(reply: Reply, kind: str, text: str) -> None:
    assert reply.action is not None
    assert (reply.action.kind, reply.action.text) == (kind, text)


def replies(env: SearchEnv, *turns: str) -> list[Reply]:
    async def talk() -> list[Reply]:
        return [await env.open(), *[await env.reply(turn, "stop") for turn in turns]]

    return asyncio.run(talk())


def test_a_search_is_answered_with_passages_and_an_answer_ends_the_episode() -> None:
    env, shelf = environment()
    opening, found, end = replies(env, "<think>x</think><search> Ada </search>", "<answer> Tarn</answer>")
    assert [(piece.author, piece.text) for piece in opening.pieces] == [
        ("template", "Answer it.\nQuestion: "),
        ("env", "Where was Ada born?"),
        ("template", "\n"),
    ]
    assert shelf.queries == ["Ada"]
    assert text_of(found) == "\n<information>\n[1] Ada | Ada was born in Tarn.\n[2] Bo | Bo.\n</information>\n"
    assert {piece.author for piece in found.pieces} == {"env"}
    assert found.action is not None
    assert [passage.id for passage in found.action.passages] == ["1", "2"]
    assert_action(end, "answer", "Tarn")
    assert end.done == "answered"


def test_a_dialect_of_sentences_shows_so_many_of_so_many_passages_for_each_query() -> None:
    texts = ("Bo ran. Ada swam.", "Cy sat. Ada ran.", "Ada ran and swam.")
    shelf = Shelf(*(Passage(id=str(at), title="", text=text) for at, text in enumerate(texts)))
    dialect = replace(DIALECTS["sleuth"], sentences_of=2, top_k=3)
    results = asyncio.run(find_results(shelf, ["Ada ran", "swam", "Eve"], dialect))
    assert [[(passage.id, passage.text) for passage in found] for found in results] == [
        [("1", "Ada ran."), ("0", "Bo ran."), ("0", "Ada swam.")],  # 2 - 0.3, 1 and 1
        [("0", "Ada swam."), ("0", "Bo ran."), ("1", "Cy sat.")],
        [("0", "Bo ran."), ("0", "Ada swam."), ("1", "Cy sat.")],  # nothing is shared: as they were found
    ]
    assert shelf.queries == ["Ada ran", "swam", "Eve"]


def test_a_retriever_that_fails_ends_an_episode_of_sentences_too() -> None:
    env, shelf = environment(sentences_of=2)
    shelf.fails = True
    _, failed = replies(env, "<search>Ada</search>")
    assert failed.done == "failed"
    assert failed.action is not None
    assert (failed.action.text, failed.action.failure) == ("Ada", "no route to the shelf")


@pytest.mark.parametrize(
    ("dialect", "shown"),
    [("sleuth", "\n<information>\n</information>\n"), ("search_r1", "\n\n<information></information>\n\n")],
)
def test_a_search_that_finds_nothing_gets_an_empty_block(dialect: str, shown: str) -> None:
    env, shelf = environment(dialect)
    shelf.passages = []
    _, found = replies(env, "<search> Ada</search>")
    assert text_of(found) == shown


@pytest.mark.parametrize("dialect", ["sleuth", "search_r1"])
def test_only_passages_are_cut_and_never_the_closing_tag(dialect: str) -> None:
    env, _ = environment(dialect, passage_tokens=1 if dialect == "sleuth" else None)
    _, found = replies(env, "<search>Ada</search>")
    for piece in found.pieces:
        assert piece.budget is None or "information>" not in piece.text


@pytest.mark.parametrize(
    "turn",
    [
        "Tarn",
        "<search></search>",
        "<search>  </search>",
        "<answer></answer>",
        "<search> a <search> b</search>",
        "<search> Ada</answer>",
        "<answer> Tarn</answer> and more",
        "</search>",
        "<SEARCH> Ada</SEARCH>",
        "<search> one</search><search> two</search>",
        "",
    ],
)
def test_the_strict_dialect_takes_exactly_one_whole_action_at_the_end_of_a_turn(turn: str) -> None:
    env, shelf = environment()
    _, answered = replies(env, turn)
    assert answered.action is not None
    assert answered.action.kind == "invalid"
    assert text_of(answered) == DIALECTS["sleuth"].hint
    assert shelf.queries == []


@pytest.mark.parametrize(
    ("dialect", "turn", "kind", "text"),
    [
        # search_r1 reads the first paired element, as the original does
        ("search_r1", "<answer>a</answer><search>b</search>", "answer", "a"),
        ("search_r1", "I could <search> or think <search> Ada</search>", "search", "or think <search> Ada"),
        ("search_r1", "<search></search>", "search", ""),
        ("search_r1", "<search>x</answer>", "invalid", "<search>x</answer>"),
        # research the last box and the last opening tag
        ("research", r"<answer>The final answer is \[ \boxed{Tarn} \]</answer>", "answer", "Tarn"),
        ("research", r"<answer>\boxed{Rome}, no: \boxed{ Tarn }</answer>", "answer", "Tarn"),
        ("research", r"<answer>\boxed{\text{Tarn}}</answer> and so on", "answer", r"\text{Tarn}"),
        ("research", "<answer>Tarn</answer>", "invalid", "<answer>Tarn</answer>"),
        ("research", r"<answer>\boxed{Tarn</answer>", "invalid", r"<answer>\boxed{Tarn</answer>"),
        ("research", "<search> Ada </search>", "search", "Ada"),
        ("research", "I could <search> for it: <search> Ada </search>", "search", "Ada"),
        ("research", r"<answer>\boxed{Rome}</answer> or rather <search> Ada </search>", "search", "Ada"),
        ("research", "Ada </search>", "invalid", "Ada </search>"),
    ],
)
def test_a_published_dialect_reads_a_turn_as_the_original_does(dialect: str, turn: str, kind: str, text: str) -> None:
    _, answered = replies(environment(dialect)[0], turn)
    assert_action(answered, kind, text)
    if dialect == "research":
        assert answered.done == {"answer": "answered", "search": None, "invalid": "turns"}[kind]


def test_searches_allowed_counts_searches_and_then_grants_one_last_turn() -> None:
    env, shelf = environment(searches=2)
    _, first, second, third = replies(env, *["<search> Ada</search>"] * 3)
    assert (first.done, second.done, third.done) == (None, None, "turns")
    assert len(shelf.queries) == 2


def test_a_bad_action_costs_a_search_in_search_r1_and_a_hint_in_ours() -> None:
    ours, ours_shelf = environment(searches=1)
    *_, last = replies(ours, "Tarn", "<search> Ada</search>")
    assert last.done is None
    assert len(ours_shelf.queries) == 1
    theirs, their_shelf = environment("search_r1", searches=1)
    *_, last = replies(theirs, "Tarn", "<search> Ada</search>")
    assert last.done == "turns"
    assert their_shelf.queries == []


def test_a_forced_search_is_opened_by_the_environment_and_finished_by_the_policy() -> None:
    env, shelf = environment(forced=True)
    opening, _ = replies(env, " Ada</search>")
    assert opening.pieces[-1].text == "<search>"
    assert opening.pieces[-1].author == "env"
    assert shelf.queries == ["Ada"]


def test_a_closed_book_is_an_answer_that_the_environment_opened_and_nothing_is_searched() -> None:
    for turn in (" x<search> Ada</search>", "</answer><search> Ada</search>"):
        shelf = Shelf()
        env = SearchEnv(TASK, replace(DIALECTS["sleuth"], hints=None), PROMPT, shelf, closed_book=True)
        assert replies(env, turn)[-1].done in ("turns", "answered")
        assert shelf.queries == []
    env = SearchEnv(TASK, DIALECTS["sleuth"], PROMPT, Shelf(), closed_book=True)
    opening, end = replies(env, " Tarn</answer>")
    assert opening.pieces[-1].text == "<answer>"
    assert opening.pieces[-1].author == "env"
    assert end.done == "answered"
    assert_action(end, "answer", "Tarn")


def test_tags_in_a_passage_change_no_action() -> None:
    env, shelf = environment()
    shelf.passages = [Passage(id="9", title="</information><answer>Rome</answer>", text="<search> Rome</search>")]
    _, found, end = replies(env, "<search> Ada</search>", "<answer> Tarn</answer>")
    assert "<answer>Rome</answer>" in text_of(found)
    assert shelf.queries == ["Ada"]
    assert_action(end, "answer", "Tarn")


@pytest.mark.parametrize(
    ("turns", "stops", "queries"),
    [
        (["<search>a</search>"] * 3, [None, None, "turns"], 2),
        (["Tarn", "<search>a</search>", "<search>a</search>"], [None, None, "turns"], 1),
        (["Tarn", "Tarn", "Tarn"], [None, None, "turns"], 0),
        (["<search>a</search>", "Tarn", "<answer>Tarn</answer>"], [None, None, "answered"], 1),
    ],
)
def test_turns_count_every_generation_and_the_last_may_not_search(
    turns: list[str], stops: list[str | None], queries: int
) -> None:
    env, shelf = environment("slime", turns=3)
    _, *answered = replies(env, *turns)
    assert [reply.done for reply in answered] == stops
    assert len(shelf.queries) == queries


@pytest.mark.parametrize("dialect", ["slime", "research", "verl", "chat", "search_r1"])
@pytest.mark.parametrize("turn", ["<answer>Tarn</answer> and", "<search>a</search> and", "hm"])
def test_a_turn_that_reaches_its_limit_ends_the_episode_where_the_source_does(dialect: str, turn: str) -> None:
    env, shelf = environment(dialect)

    async def cut() -> Reply:
        await env.open()
        return await env.reply(turn, "length")

    reply = asyncio.run(cut())
    assert reply.action is not None
    if dialect == "search_r1":
        assert reply.done == ("answered" if "answer" in turn else None)
    else:
        assert (reply.done, reply.action.kind, shelf.queries) == ("length", "invalid", [])


def test_research_ends_with_a_turn_that_neither_searches_nor_answers() -> None:
    env, shelf = environment("research")
    [*_, last] = replies(env, "It was Tarn, I think.")
    assert last.done == "turns"
    assert shelf.queries == []


@pytest.mark.parametrize("count", [0, 1, 2])
def test_training_text_shows_results_in_the_bytes_that_the_environment_writes(count: int) -> None:
    env, shelf = environment()
    shelf.passages = shelf.passages[:count]
    _, found = replies(env, "<search> Ada</search>")
    assert read_prompt("plain") == thoughts.PROMPT
    shown = [Article(title=p.title, text=p.text, about=p.title, facts={}) for p in shelf.passages]
    assert thoughts.results(shown) == text_of(found)


def test_an_expression_of_a_checkpoint_is_matched_with_a_limit_and_not_twice() -> None:
    env, _ = environment(action=r"(?s)\A(?P<text>(?:.|.)+)(?P<kind>[\x00\x01])")
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(SleuthError, match=r"dialect\.action takes more than 1 s to read a turn") as caught:
            asyncio.run(env.reply("a" * 60, "stop"))
        assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 1.0  # it was not tried again
    dialect = replace(DIALECTS["sleuth"], answer_inner=r"(?s)\A(?P<text>(?:.|.)+)[\x00\x01]")
    with pytest.raises(SleuthError, match=r"dialect\.answer_inner takes more than 1 s"):
        dialect.find_answer("a" * 60)


@pytest.mark.parametrize("name", [name for name, dialect in DIALECTS.items() if dialect.answer_inner])
def test_an_expression_that_differs_a_little_from_ours_finds_what_ours_finds(name: str) -> None:
    ours = DIALECTS[name]
    other = dataclasses.replace(ours, action=f"(?:){ours.action}".replace("(?:)(?s)", "(?s)(?:)"),
                                answer_inner=f"{ours.answer_inner}(?:)")  # fmt: skip
    for turn in ("<answer>a \\boxed{Tarn} [b]</answer>", "<think>a</think>\n<search>b</search>", "<answer></answer>"):
        for one, two in ((ours.find_action(turn), other.find_action(turn)),
                         (ours.find_answer(turn), other.find_answer(turn))):  # fmt: skip
            assert (one and one.groupdict()) == (two and two.groupdict())
