"""Functions as tools: their schemas, the calls, and that whatever goes wrong is read by the policy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from chat_tokenizers import KEEPS, chat_tokenizer
from tool_episodes import call

from sleuth.episodes.calls import CallRecord, EpisodeCalls
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.own.functions import UserCodeError, load_function
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.search.dialects import TOOLS_TEXT
from sleuth.search.tables import ToolEnvRecipe
from sleuth.search.tools import RESULT_CHARACTERS, FunctionTool, ToolEnv
from sleuth.types import (
    Action,
    Episode,
    EpisodeKey,
    Group,
    Passage,
    Reply,
    RetrievalFailed,
    Task,
    Trajectory,
)

TASK = Task(id="q", question="how many?", golden_answers=("6",))
DIALECT = replace(TOOLS_TEXT, searches=3)
SOURCE = '''
import time
from typing import Literal

def add(a: int, b: int = 1, sign: Literal["+", "-"] = "+") -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
        sign: What to do.
    """
    return a + b if sign == "+" else a - b

async def capital(country: str) -> dict:
    """Looks up a capital.

    Args:
        country: Its name.
    """
    return {"capital": "Málaga", "of": country}

def fails() -> str:
    """Fails."""
    raise ValueError("no way")

def hangs() -> str:
    """Hangs."""
    time.sleep(30)

def unhinted(x):
    """Adds.

    Args:
        x: A number.
    """

def undescribed(x: int) -> int:
    """Adds."""

def bare(x: int) -> int:
    return x

def many(**words: str) -> str:
    """Joins.

    Args:
        words: Them.
    """

def keyed() -> dict:
    """Keys by pairs."""
    return {(1, 2): 3}

def half() -> str:
    """A half of a pair."""
    return "\\ud83d"

def book() -> str:
    """A whole one."""
    return "x" * 3_000_000
'''


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, FunctionTool]:
    names = ("add", "capital", "fails", "hangs")
    return {name: tool(name, tmp_path) for name in names}


def tool(name: str, folder: Path) -> FunctionTool:
    file = folder / "called_tools.py"
    if not file.exists():
        file.write_text(SOURCE)
    return FunctionTool(load_function(f"{file}:{name}"), seconds=0.3)


NO_CALL = 'error: a call is {"name": "...", "arguments": {...}}'


def play(env: ToolEnv, *turns: str) -> list[Reply]:
    async def played() -> list[Reply]:
        await env.open()
        return [await env.reply(turn, "stop") for turn in turns]

    return asyncio.run(played())


def results(tools: dict[str, FunctionTool], *turns: str) -> list[str]:
    replies = play(ToolEnv(TASK, replace(DIALECT, searches=99, hints=99), "{question}", tools), *turns)
    return [reply.action.result for reply in replies if reply.action is not None]


def test_the_schema_is_that_of_type_hints_and_docstring(tools: dict[str, FunctionTool]) -> None:
    function = tools["add"].schema["function"]
    assert (function["name"], function["description"]) == ("add", "Adds two numbers.")
    properties = function["parameters"]["properties"]
    assert properties["a"] == {"type": "integer", "description": "The first."}
    assert properties["sign"]["enum"] == ["+", "-"]
    assert function["parameters"]["required"] == ["a"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("unhinted", "missing a type hint"),
        ("undescribed", "no description for the argument 'x'"),
        ("bare", "no docstring"),
        ("many", "takes words without a name"),
    ],
)
def test_a_function_without_hints_or_descriptions_is_no_tool(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserCodeError) as caught:
        tool(name, tmp_path)
    assert reason in str(caught.value)
    assert f": {name}: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_result_is_text_as_it_is_and_json_otherwise(tools: dict[str, FunctionTool]) -> None:
    as_text = json.dumps({"name": "add", "arguments": json.dumps({"a": 1, "b": 1})})
    turns = call("add", a=2, b=4), call("capital", country="X"), call("add", a="3", sign="-")
    assert results(tools, *turns, f"<tool_call>{as_text}</tool_call>") == [
        "6",
        '{"capital": "Málaga", "of": "X"}',
        "2",
        "2",
    ]


def test_odd_results_are_read_by_the_policy_and_long_ones_cut_before_they_are_encoded(tmp_path: Path) -> None:
    tools = {name: tool(name, tmp_path) for name in ("keyed", "half", "book")}
    unknown = '<tool_call>{"name": "\\ud83d", "arguments": {}}</tool_call>'
    unwritable, echoed, nothing, book = results(tools, call("keyed"), call("half"), unknown, call("book"))
    assert unwritable.startswith("error: keyed: the result is not JSON: TypeError")
    assert echoed == "?"
    assert nothing.startswith("error: there is no tool ?")
    assert len(book) == RESULT_CHARACTERS


@pytest.mark.parametrize(
    ("turn", "result"),
    [
        (call("sub", a=2), "error: there is no tool sub; there are add, capital, fails, hangs"),
        (call("add"), "error: add: missing a required argument: 'a'"),
        (call("add", a=1, c=2), "error: add: got an unexpected keyword argument 'c'"),
        (call("add", a="x"), "error: add: a: Input should be a valid integer, unable to parse string as an integer"),
        (call("add", a=1, b=None), "error: add: b: Input should be a valid integer"),
        (call("fails"), "error: fails: ValueError: no way"),
        (call("hangs"), "error: hangs: did not return within 0.3 seconds"),
        ("<tool_call>add 2 and 4</tool_call>", NO_CALL),
        ('<tool_call>{"name": "add", "arguments": 3}</tool_call>', NO_CALL),
    ],
)
def test_whatever_is_wrong_with_a_call_is_its_result_and_the_episode_goes_on(
    turn: str, result: str, tools: dict[str, FunctionTool]
) -> None:
    [reply] = play(ToolEnv(TASK, DIALECT, "{question}", tools), turn)
    assert reply.done is None
    assert reply.action is not None
    assert (reply.action.kind, reply.action.result) == ("call", result)
    assert "".join(piece.text for piece in reply.pieces) == f"\n<tool_response>{result}</tool_response>\n"


def test_after_the_last_call_there_is_one_more_turn(tools: dict[str, FunctionTool]) -> None:
    env = ToolEnv(TASK, replace(DIALECT, searches=1), "{question}", tools)
    first, second = play(env, call("add", a=1), call("add", a=1))
    assert (first.done, second.done) == (None, "turns")
    [end] = play(ToolEnv(TASK, DIALECT, "{question}", tools), "<think>x</think><answer>6</answer>")
    assert end == Reply(action=Action(kind="answer", text="6"), done="answered")


STATEFUL = '''
MADE = []
PAGE = 0

def next_page() -> str:
    """Turns the page."""
    global PAGE
    PAGE += 1
    return f"page {PAGE}"

class Pages:
    def __init__(self, task):
        MADE.append(task.id)
        self.page = 0

    def next_page(self) -> str:
        """Turns the page."""
        self.page += 1
        return f"page {self.page}"

    async def go_to(self, page: int) -> str:
        """Opens a page.

        Args:
            page: Its number.
        """
        self.page = page
        return f"page {page}"
'''


def paging(folder: Path, *names: str, shared: bool = False) -> dict[str, FunctionTool]:
    (folder / "paging.py").write_text(STATEFUL)
    made = [FunctionTool(load_function(f"{folder}/paging.py:{name}"), seconds=5, shared=shared) for name in names]
    return {one.name: one for one in made}


def read_by(tools: dict[str, FunctionTool], keys: Sequence[EpisodeKey], record: CallRecord, *turns: str) -> list[list]:
    """The results of episodes that make the same calls, turn by turn."""

    async def played() -> list[list]:
        dialect = replace(DIALECT, searches=9)
        envs = [ToolEnv(TASK, dialect, "{question}", tools, calls=EpisodeCalls(TASK, key, record)) for key in keys]
        rounds = [await asyncio.gather(*(env.reply(turn, "stop") for env in envs)) for turn in turns]
        return [[replies[at].action.result for replies in rounds] for at in range(len(envs))]

    return asyncio.run(played())


TURN = call("next_page")


def test_each_episode_has_an_object_of_its_own_of_a_class_of_tools(tmp_path: Path) -> None:
    tools = paging(tmp_path, "Pages.next_page", "Pages.go_to")
    assert tools["go_to"].schema["function"]["parameters"]["required"] == ["page"]
    found = read_by(tools, [(0, 0), (0, 1)], CallRecord({}), TURN, TURN, call("go_to", page=7), TURN)
    assert found == [["page 1", "page 2", "page 7", "page 8"]] * 2
    assert load_function(f"{tmp_path}/paging.py:Pages").module.MADE == ["q", "q"]


def test_a_call_is_made_as_often_as_it_is_written_unless_episodes_share_it(tmp_path: Path) -> None:
    """A global variable belongs to the process: the episodes of a step and all later ones count on."""
    tools = paging(tmp_path, "next_page")
    made = read_by(tools, [(0, 0), (0, 1)], CallRecord({}), TURN, TURN)
    assert sorted(made[0] + made[1]) == ["page 1", "page 2", "page 3", "page 4"]
    shared = paging(tmp_path, "next_page", shared=True)
    made = read_by(shared, [(0, 0), (0, 1), (1, 0)], CallRecord({}), TURN, TURN)
    assert made == [["page 5", "page 5"]] * 3


def played_before(*results: str) -> CallRecord:
    """The record of an episode, (4, 1), that turned pages."""
    text = json.dumps({"name": "next_page", "arguments": {}})
    actions = tuple(Action(kind="call", text=text, result=result) for result in results)
    episode = Episode(task=TASK, sample=1, trajectories=(Trajectory(segments=(), actions=actions),))
    return CallRecord({4: Group(task=TASK, episodes=(episode,))})


def test_recorded_calls_are_not_made_again_and_belong_to_their_episode_in_their_order(tmp_path: Path) -> None:
    tools = paging(tmp_path, "Pages.next_page")
    [found] = read_by(tools, [(4, 1)], played_before("one", "two"), TURN, TURN)
    assert found == ["one", "two"]
    assert load_function(f"{tmp_path}/paging.py:Pages").module.MADE == []
    [other] = read_by(tools, [(5, 1)], played_before("one", "two"), TURN, TURN)
    assert other == ["page 1", "page 2"]


def test_an_episode_that_leaves_its_record_finds_its_tools_where_the_record_left_them(tmp_path: Path) -> None:
    tools = paging(tmp_path, "Pages.next_page", "Pages.go_to")
    [found] = read_by(tools, [(4, 1)], played_before("one", "two"), TURN, call("go_to", page=7), TURN)
    assert found == ["one", "page 7", "page 8"]
    [found] = read_by(tools, [(4, 1)], played_before("one", "two"), TURN, TURN, TURN)
    assert found == ["one", "two", "page 3"]


def test_a_class_may_be_made_without_the_task(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(
        'class Bare:\n    def read(self) -> str:\n        """Reads."""\n        return "read"\n'
    )
    tool = FunctionTool(load_function(f"{tmp_path}/bare.py:Bare.read"), seconds=5)
    [reply] = play(ToolEnv(TASK, DIALECT, "{question}", {"read": tool}), call("read"))
    assert reply.action.result == "read"


class Library:
    """One passage for every query; fails for `gone`."""

    async def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        if queries == ["gone"]:
            raise RetrievalFailed
        return [[Passage(id="1", title="Tarn", text=f"about {query}")] for query in queries]


def test_an_index_is_the_tool_search_whose_passages_are_evidence(tools: dict[str, FunctionTool]) -> None:
    env = ToolEnv(TASK, DIALECT, "{question}", tools, retriever=Library())
    found, wrong, unknown = play(env, call("search", query=" Tarn "), call("search", q="x"), call("none"))
    assert found.action == Action(
        kind="search", text="Tarn", passages=(Passage(id="1", title="Tarn", text="about Tarn"),)
    )
    assert "[1] Tarn | about Tarn" in "".join(piece.text for piece in found.pieces)
    assert wrong.action is not None
    assert wrong.action.result == "error: search: query: a text"
    assert unknown.action is not None
    assert unknown.action.result.endswith("there are add, capital, fails, hangs, search")
    [failed] = play(ToolEnv(TASK, DIALECT, "{question}", tools, retriever=Library()), call("search", query="gone"))
    assert failed == Reply(action=Action(kind="search", text="gone"), done="failed")


def chat_episode(template: str, folder: Path, *turns: str) -> Episode:
    tokenizer = chat_tokenizer(template)
    (folder / "prompt.txt").write_text("{question}")
    env = ToolEnvRecipe(
        kind="tools",
        tools=(f"{folder / 'called_tools.py'}:add",),
        prompt=str(folder / "prompt.txt"),
        prompt_role="user",
    )
    setting = env.setting(tokenizer, [TASK])
    script = iter(turns)
    rollout = Rollout(
        engine=ScriptedEngine(tokenizer, lambda text, sampling: next(script)),
        renderer=Renderer(tokenizer),
        context=4096,
        temperature=1.0,
        key=(0,),
    )
    return asyncio.run(rollout.episode(setting.env(TASK), TASK, 0, 0))


def test_a_chat_template_shows_the_tools_and_gets_results_as_messages(tmp_path: Path, tools: dict) -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 4}}\n</tool_call><|im_end|>'
    episode = chat_episode(KEEPS, tmp_path, call, "<answer>6</answer><|im_end|>")
    trajectory = episode.trajectory
    assert '"name": "add"' in trajectory.segments[0].text
    assert [action.kind for action in trajectory.actions] == ["call", "answer"]
    assert (
        "<|im_start|>user\n<tool_response>\n6\n</tool_response><|im_end|>\n<|im_start|>assistant\n" in trajectory.text
    )
    assert (trajectory.stop, len(episode.trajectories)) == ("answered", 1)


def test_all_calls_of_a_message_are_made_in_their_order_as_far_as_the_limit_allows(tmp_path: Path, tools: dict) -> None:
    one, two, three = (call("add", a=a, b=b) for a, b in ((2, 4), (1, 1), (9, 9)))
    episode = chat_episode(KEEPS, tmp_path, f"{one}\n{two}<|im_end|>", "<answer>6</answer><|im_end|>")
    actions = episode.trajectory.actions
    assert [(action.kind, action.result) for action in actions] == [("call", "6"), ("call", "2"), ("answer", None)]
    assert episode.trajectory.action_turns == (0, 0, 1)
    answers = "<tool_response>\n6\n</tool_response>", "<tool_response>\n2\n</tool_response>"
    assert episode.trajectory.text.index(answers[0]) < episode.trajectory.text.index(answers[1])
    read = chat_episode(KEEPS, tmp_path, f"{one}{two}{one}{two}{three}<|im_end|>", "<answer>6</answer><|im_end|>")
    assert [action.result for action in read.trajectory.actions] == [
        "6", "2", "6", "2", "error: this call was not made: none is left", None
    ]  # fmt: skip
    assert "none is left" in read.trajectory.text
