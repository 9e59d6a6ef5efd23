"""Tools of real MCP servers: their schemas and results, and what happens when a server is slow, broken or gone."""

from __future__ import annotations

import asyncio
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tool_episodes import call, played

from sleuth.episodes import mcp_server
from sleuth.episodes.calls import EpisodeCalls
from sleuth.episodes.function import env_code_in
from sleuth.episodes.mcp_server import ServerTool, tool_server, tools_sha256
from sleuth.render import load_tokenizer
from sleuth.search.tables import ToolEnvRecipe
from sleuth.types import SleuthError, Task

SERVER = Path(__file__).with_name("number_server.py")
COMMAND = shlex.join([sys.executable, str(SERVER)])
TASK = Task(id="q", question="how many?", golden_answers=("6",))


def recipe(*tools: object, **keys: object) -> ToolEnvRecipe:
    return ToolEnvRecipe.model_validate({"kind": "tools", "tools": list(tools), "prompt": "plain", **keys})


def tools_at(address: str, seconds: float = 20) -> dict[str, ServerTool]:
    server = tool_server(address)
    return {tool.name: ServerTool(server, tool, seconds=seconds) for tool in server.listed}


def called(tools: dict[str, ServerTool], name: str, **arguments: object) -> str:
    return asyncio.run(tools[name](arguments, EpisodeCalls(TASK)))


@pytest.fixture(scope="module")
def tools() -> dict[str, ServerTool]:
    return tools_at(COMMAND)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A server over HTTP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SERVER), str(port)])
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/mcp"
    process.kill()
    process.wait()


def test_the_tools_are_those_of_the_server_with_its_schemas(tools: dict[str, ServerTool]) -> None:
    assert list(tools)[:2] == ["add", "fails"]
    function = tools["add"].schema["function"]
    assert (function["name"], function["description"]) == ("add", "Adds two numbers.")
    assert function["parameters"]["properties"]["a"]["type"] == "integer"
    assert function["parameters"]["required"] == ["a"]


def test_a_call_returns_text_and_an_error_of_the_tool_is_read_by_the_policy(tools: dict[str, ServerTool]) -> None:
    assert called(tools, "add", a=2, b=40) == "42"
    assert called(tools, "fails").startswith("error: fails: ")
    assert "no such number" in called(tools, "fails")
    assert called(tools, "add", a="many").startswith("error: add: ")
    assert called(tools, "picture") == "[image]"


def test_the_keys_of_our_servers_are_not_given_to_a_server_of_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLEUTH_API_KEY", "SLEUTH_CLIENT_KEY", "ITS_OWN_KEY"):
        monkeypatch.setenv(name, "secret")
    seen = called(tools_at(f"{COMMAND} "), "variables").split()
    assert "ITS_OWN_KEY" in seen
    assert not {"SLEUTH_API_KEY", "SLEUTH_CLIENT_KEY"} & set(seen)


def test_what_a_server_prints_is_reported_in_a_line(
    tools: dict[str, ServerTool], capfd: pytest.CaptureFixture[str]
) -> None:
    assert called(tools, "prints") == "said"
    printed = capfd.readouterr().err
    assert "the tool server prints other text than messages to stdout" in printed
    assert "Traceback" not in printed


def test_a_server_that_ends_is_started_again_and_the_call_made_again(
    tools: dict[str, ServerTool], tmp_path: Path
) -> None:
    marker = str(tmp_path / "ended")
    assert called(tools, "ends_once", marker=marker) == f"back after {marker}"
    assert called(tools, "add", a=1) == "2"


def test_a_slow_call_is_an_observation_whether_it_blocks_its_server_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "PING_SECONDS", 0.5)
    tools = tools_at(COMMAND, seconds=0.5)
    assert called(tools, "waits") == "error: waits: did not return within 0.5 seconds"
    assert called(tools, "blocks") == "error: blocks: did not return within 0.5 seconds"
    assert called(tools_at(COMMAND), "add", a=1) == "2"


def test_a_server_that_is_gone_makes_the_score_missing_with_the_reason(tools: dict[str, ServerTool]) -> None:
    [score] = played(TASK, tools, call("ends"), "<answer>6</answer>").scores
    assert score.value is None
    assert score.note.startswith(f"{COMMAND}: the tool server ended twice during a call of ends")
    [score] = played(TASK, tools, call("add", a=5), "<answer>6</answer>").scores
    assert score.value == 1.0


def counted(address: str, *, shared: bool) -> list[list[str]]:
    """What the tool `counts` returns in two episodes that call it in turn."""
    server = tool_server(address)
    [tool] = (ServerTool(server, tool, seconds=20, shared=shared) for tool in server.offered(["counts"]))

    async def played() -> list[list[str]]:
        episodes = [EpisodeCalls(TASK) for _ in range(2)]
        found = [[await tool({}, episode) for episode in episodes] for _ in range(2)]
        return [list(of_episode) for of_episode in zip(*found, strict=True)]

    return asyncio.run(played())


def test_each_episode_has_a_session_of_its_own_of_a_server_at_a_url(address: str) -> None:
    assert counted(address, shared=False) == [["1", "2"], ["1", "2"]]
    assert counted(address, shared=False) == [["1", "2"], ["1", "2"]]
    assert counted(address, shared=True) == [["1", "3"], ["2", "4"]]


def test_episodes_share_the_one_process_of_a_command_and_a_line_says_so_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = f"{COMMAND}  "
    table, tokenizer = {"mcp": command, "only": ["counts"]}, load_tokenizer("models/tiny-base")
    recipe(table | {"shared": True}).setting(tokenizer, [TASK])
    assert "one process" not in capsys.readouterr().err
    for _ in range(2):
        recipe(table).setting(tokenizer, [TASK])
    assert capsys.readouterr().err == (
        f"{command}: one process of this tool server serves all episodes, which share what it remembers: set shared = "
        "true if it remembers nothing, or serve it at a URL: each episode has a session of its own\n"
    )
    assert counted(command, shared=False) == [["1", "3"], ["2", "4"]]


def test_an_episode_whose_session_is_lost_has_no_score(address: str) -> None:
    """The server could be asked again, but would have forgotten the episode's first call."""
    tools = tools_at(address, seconds=3)
    [score] = played(TASK, tools, call("counts"), call("ends"), "<answer>6</answer>").scores
    assert score.value is None
    assert score.note.startswith(f"{address}: the tool server lost the session of an episode at a call of ends")


def test_a_recipe_offers_functions_and_tools_of_servers_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "more.py").write_text(
        'def halve(x: float) -> float:\n    """Halves.\n\n    Args:\n        x: It.\n    """\n'
    )
    env = recipe(f"{tmp_path}/more.py:halve", {"mcp": COMMAND, "only": ["add"]})
    setting = env.setting(load_tokenizer("models/tiny-base"), [TASK])
    assert list(setting.tools) == ["halve", "add"]
    code = env_code_in(env)
    assert code is not None
    assert code.functions == ("more:halve", COMMAND)
    only = tool_server(COMMAND).offered(["add"])
    assert code.sources[f"tools of {COMMAND}"] == tools_sha256(only) != tools_sha256(tool_server(COMMAND).listed)


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ({"mcp": "no-such-program --now"}, "no-such-program --now: the tool server cannot be started: No such file"),
        ({"mcp": f"{sys.executable} -c pass"}, "ended before it listed its tools"),
        ({"mcp": "http://127.0.0.1:9/mcp"}, "http://127.0.0.1:9/mcp: the tool server "),
        ({"mcp": COMMAND, "only": ["subtract"]}, "has no tool 'subtract'; it has add, fails"),
    ],
)
def test_a_server_without_the_tools_is_refused_in_a_line(tools: dict[str, object], reason: str) -> None:
    with pytest.raises(SleuthError) as refusal:
        recipe(tools).setting(load_tokenizer("models/tiny-base"), [TASK])
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(SleuthError, match="tools has add twice"):
        recipe({"mcp": COMMAND}, {"mcp": COMMAND, "only": ["add"]}).setting(None, [TASK])


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({}, "mcp or function: name one of them"),
        ({"mcp": COMMAND, "function": "a:b"}, "mcp or function: name one of them"),
        ({"function": "a:b", "only": ["b"]}, "folder and only are for a server"),
        ({"mcp": "http://x/mcp", "folder": "."}, "folder has no effect for a URL"),
    ],
)
def test_a_table_names_a_server_or_a_function(table: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        recipe(table)


def test_a_function_in_a_table_may_be_shared(tmp_path: Path) -> None:
    (tmp_path / "asked.py").write_text('def now() -> str:\n    """Tells the time."""\n')
    name = f"{tmp_path}/asked.py:now"
    assert recipe({"function": name}).functions() == recipe(name).functions() == (name,)
    setting = recipe({"function": name, "shared": True}).setting(load_tokenizer("models/tiny-base"), [TASK])
    assert setting.tools["now"].shared
