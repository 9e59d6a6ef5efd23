"""An index as tools of the Model Context Protocol: real clients over HTTP, bounds, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.memory import create_connected_server_and_client_session
from mcp.types import CallToolResult
from tool_episodes import call, played
from verb import sleuth

from sleuth.episodes.mcp_server import ServerTool, _loop, tool_server
from sleuth.render import load_tokenizer
from sleuth.retrieval.bm25 import Bm25, build_index
from sleuth.search.tables import ToolEnvRecipe
from sleuth.serve.access import Limits
from sleuth.serve.mcp_server import FOUND_CHARACTERS, OPENED_CHARACTERS, mcp_server
from sleuth.serve.search_handler import IndexLoader, RequestHandler
from sleuth.types import SleuthError, Task

COMMAND = [sys.executable, "-m", "sleuth", "retriever"]
Conversation = Callable[[ClientSession], Awaitable[Any]]


def over_http(url: str, talk: Conversation, **headers: str) -> Any:
    """What an official client says to a server that runs."""

    async def connected() -> Any:
        async with (
            httpx.AsyncClient(headers=headers) as client,
            streamable_http_client(f"{url}/mcp", http_client=client) as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            return await talk(session)

    return asyncio.run(connected())


def in_memory(loader: IndexLoader, talk: Conversation, *, seconds: float = 20.0) -> Any:
    """What an official client says to the server's object."""

    async def connected() -> Any:
        server = mcp_server(RequestHandler(loader, Limits(seconds=seconds)))
        async with create_connected_server_and_client_session(server) as session:
            return await talk(session)

    return asyncio.run(connected())


@contextmanager
def listening(index: Path, **variables: str) -> Iterator[str]:
    """The command over HTTP."""
    command = [*COMMAND, str(index), "--mcp", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables})
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    while True:
        try:
            if httpx.get(f"{url}/health").is_success:
                break
        except httpx.HTTPError:
            assert process.poll() is None
        time.sleep(0.05)
    try:
        yield url
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture(scope="module")
def url(towns: Path) -> Iterator[str]:
    with listening(towns) as url:
        yield url


async def conversation(session: ClientSession) -> tuple[list[str], CallToolResult, CallToolResult, CallToolResult]:
    """The names of the tools, two results and an error."""
    tools = (await session.list_tools()).tools
    found = await session.call_tool("search", {"query": "Town 5 lake", "k": 2})
    opened = await session.call_tool("open", {"id": "17"})
    return [tool.name for tool in tools], found, opened, await session.call_tool("open", {"id": "1000"})


def text_of(result: CallToolResult) -> str:
    [block] = result.content
    assert block.type == "text"
    return block.text


def error_of(result: CallToolResult) -> str:
    text = text_of(result)
    assert result.isError
    assert "\n" not in text
    return text


def test_an_official_client_searches_and_opens(towns: Path, url: str) -> None:
    names, found, opened, error = over_http(url, conversation)
    assert names == ["search", "open"]
    [best] = Bm25(towns).find(["Town 5 lake"], 2)
    assert found.structuredContent is not None
    assert [(one["id"], one["score"]) for one in found.structuredContent["passages"]] == [(p.id, p.score) for p in best]
    assert text_of(found) == "\n\n".join(f"[{at}] {p.title} (id {p.id})\n{p.text}" for at, p in enumerate(best, 1))
    assert text_of(opened) == "Town 17 (id 17)\nTown 17 lies by lake 3."
    assert opened.structuredContent == {"id": "17", "title": "Town 17", "text": "Town 17 lies by lake 3.", "cut": 0}
    assert error_of(error) == "id: there is no passage '1000'; take an id from the results of a search"


# -- bounds and errors -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loader(towns: Path) -> IndexLoader:
    loader = IndexLoader(towns)
    loader.start()
    return loader


def called(loader: IndexLoader, name: str, seconds: float = 20.0, **arguments: object) -> CallToolResult:
    return in_memory(loader, lambda session: session.call_tool(name, arguments), seconds=seconds)


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("search", {"query": " \n"}, "query: is empty; write what to look for, in words"),
        ("search", {}, "query: Field required"),
        ("search", {"query": "x" * 8001}, "query: String should have at most 8000 characters"),
        ("search", {"query": "Town", "k": 21}, "k: Input should be less than or equal to 20"),
        ("search", {"query": "Town", "topk": 3}, "topk: Extra inputs are not permitted"),
        ("open", {"id": "a\nb"}, r"id: there is no passage 'a\nb'; take an id from the results of a search"),
        ("open", {"id": "x" * 1001}, "id: String should have at most 1000 characters"),
        ("close", {}, "there is no tool 'close'; there are search, open"),
    ],
)
def test_a_wrong_call_is_an_error_of_one_line(loader: IndexLoader, name: str, arguments: dict, line: str) -> None:
    assert error_of(called(loader, name, **arguments)) == line


def test_no_error_repeats_a_long_argument(loader: IndexLoader) -> None:
    long = "x" * 100_000
    for name, arguments in (("search", {long: 1, "query": "a"}), (long, {}), ("open", {"id": long[:1000]})):
        assert len(error_of(called(loader, name, **arguments))) < 300


def test_long_passages_are_cut_and_the_cut_is_told(tmp_path: Path) -> None:
    text = "lake " * 25_000
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": "1", "contents": f'"Long"\n{text}'}))
    build_index(tmp_path / "corpus.jsonl", tmp_path / "index")
    loader = IndexLoader(tmp_path / "index")
    loader.start()
    found, opened = called(loader, "search", query="lake"), called(loader, "open", id="1")
    assert text_of(found) == f"[1] Long (id 1)\n{text[:FOUND_CHARACTERS]} [123,000 more characters: open 1]"
    assert text_of(opened) == f"Long (id 1)\n{text[:OPENED_CHARACTERS]}\n[25,000 more characters]"
    assert opened.structuredContent is not None
    assert opened.structuredContent["cut"] == 25_000


def test_a_call_waits_for_the_index_but_not_longer_than_an_answer_may_take(towns: Path) -> None:
    loader = IndexLoader(towns)
    late = "the index is being opened, 0% so far"
    assert error_of(called(loader, "search", query="Town 3", seconds=0.05)) == late

    async def talk(session: ClientSession) -> CallToolResult:
        call = asyncio.create_task(session.call_tool("search", {"query": "Town 3", "k": 1}))
        await asyncio.sleep(0.1)
        assert not call.done()
        loader.start()
        return await call

    assert text_of(in_memory(loader, talk)).startswith("[1] Town 3 ")


def test_without_the_package_a_line_says_how_to_install_it(towns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mcp.server.lowlevel", "mcp.types"):
        monkeypatch.setitem(sys.modules, name, None)
    refused = sleuth("retriever", towns, "--mcp", "--port", 0)
    assert refused.exit_code == 2
    assert refused.stderr == (
        "error: a server of the Model Context Protocol needs the package mcp: pip install 'sleuth[mcp]'\n"
    )


# -- over HTTP -------------------------------------------------------------------------------------------------------

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "open", "arguments": {"id": "3"}}}
ACCEPT = {"accept": "application/json, text/event-stream"}


def test_the_route_has_the_rules_of_the_other_routes(url: str) -> None:
    def status(**headers: str) -> int:
        return httpx.post(f"{url}/mcp", json=CALL, headers=ACCEPT | headers).status_code

    assert status() == 200
    assert status(host="evil.example") == 403
    assert status(origin="https://evil.example") == 403
    assert status(**{"sec-fetch-site": "cross-site"}) == 403
    assert status(**{"content-type": "text/plain"}) == 400
    assert httpx.get(f"{url}/mcp", headers=ACCEPT).status_code == 405
    assert httpx.delete(f"{url}/mcp").status_code == 405
    assert httpx.post(f"{url}/mcp", content=b"x" * 1_100_000, headers=ACCEPT).status_code == 413
    assert httpx.post(f"{url}/retrieve", json={"query": "Town 3"}).is_success


# -- our own client --------------------------------------------------------------------------------------------------

TASK = Task(id="q", question="By which lake lies Town 17?", golden_answers=("lake 3",))


def test_an_episode_of_a_recipe_searches_and_opens_with_our_own_client(url: str) -> None:
    env = ToolEnvRecipe.model_validate({"kind": "tools", "tools": [{"mcp": f"{url}/mcp"}], "prompt": "plain"})
    tools = dict(env.setting(load_tokenizer("models/tiny-base"), [TASK]).tools)
    assert list(tools) == ["search", "open"]
    turns = (call("search", query="Town 17", k=1), call("open", id="17"), call("open", id="x"))
    group = played(TASK, tools, *turns, "<answer>lake 3</answer>")
    assert group.scores[0].value == 1.0
    results = [action.result for action in group.episodes[0].trajectory.actions if action.kind == "call"]
    assert results == [
        "[1] Town 17 (id 17)\nTown 17 lies by lake 3.",
        "Town 17 (id 17)\nTown 17 lies by lake 3.",
        "error: open: id: there is no passage 'x'; take an id from the results of a search",
    ]


def test_our_own_client_sends_its_key_to_a_server_over_http(towns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(towns, SLEUTH_API_KEY="s3cret") as url:
        assert over_http(url, conversation, authorization="Bearer s3cret")[0] == ["search", "open"]
        monkeypatch.delenv("SLEUTH_CLIENT_KEY", raising=False)
        with pytest.raises(SleuthError, match="401") as refused:
            tool_server(f"{url}/mcp")
        assert "\n" not in str(refused.value)
        monkeypatch.setenv("SLEUTH_CLIENT_KEY", "s3cret")
        server = tool_server(f"{url}/mcp")
        tools = {tool.name: ServerTool(server, tool, seconds=20) for tool in server.listed}
        group = played(TASK, tools, call("open", id="17"), "<answer>lake 3</answer>")
        assert group.scores[0].value == 1.0
        asyncio.run_coroutine_threadsafe(server.close(), _loop()).result()
