"""Who may ask: host names, pages of other sites, keys, and the requests of one client, at both servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from listening import listening
from small_agents import agent

from sleuth.cli.http_server import access_of
from sleuth.serve.access import LOOPBACK, Access, Limits, conversation_limits
from sleuth.serve.chat_app import chat_app
from sleuth.serve.retriever_app import retriever_app
from sleuth.serve.search_handler import IndexLoader
from sleuth.types import SleuthError

PATHS = {"chat": "/v1/chat/completions", "retriever": "/retrieve"}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "Where?"}]},
    "retriever": {"queries": ["Town 3"]},
}


SERVERS = ("chat", "retriever")


@contextmanager
def served(kind: str, towns: Path, access: Access | None = None) -> Iterator[str]:
    """The address of a server that is ready."""
    access = access or Access(hosts=LOOPBACK)
    if kind == "chat":
        with listening(chat_app(agent(), conversation_limits(), conversations=4, access=access)) as url:
            yield url
    else:
        loader = IndexLoader(towns)
        loader.start()
        while loader.index is None:
            time.sleep(0.01)
        with listening(retriever_app(loader, Limits(), access), lifespan="off") as url:
            yield url


def ask(kind: str, url: str, **headers: str) -> httpx.Response:
    return httpx.post(url + PATHS[kind], json=BODIES[kind], headers=headers, timeout=20)


def line_of(refused: httpx.Response) -> str:
    told = refused.json()
    return told["detail"] if "detail" in told else told["error"]["message"]


@pytest.mark.parametrize("kind", SERVERS)
def test_loopback_servers_answer_to_their_names_only_and_to_no_page_of_another_site(kind: str, towns: Path) -> None:
    with served(kind, towns) as url:
        assert ask(kind, url).is_success
        assert ask(kind, url, host="localhost:80").is_success
        for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:8000", "[::1", "localhost@evil"):
            rebound = ask(kind, url, host=host)
            assert rebound.status_code == 403, host
            assert "localhost" in line_of(rebound)
        assert httpx.get(f"{url}/health", headers={"host": "evil.example"}).status_code == 403
        own = url.removeprefix("http://")
        assert ask(kind, url, origin=f"http://{own}").is_success
        assert ask(kind, url, **{"sec-fetch-site": "same-origin"}).is_success
        for foreign in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site", "origin": "http://localhost:3000"},
        ):
            assert ask(kind, url, **foreign).status_code == 403
        link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        assert httpx.get(f"{url}/health", headers=link).is_success
        assert ask(kind, url, **link).status_code == 403


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_with_a_key_answers_nobody_without_it(kind: str, towns: Path) -> None:
    with served(kind, towns, Access(key="s3cret")) as url:
        for wrong in ({}, {"authorization": "Bearer s3cre"}, {"authorization": "Basic s3cret"}, {"authorization": ""}):
            refused = ask(kind, url, **wrong)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert "s3cret" not in refused.text
        assert ask(kind, url, authorization="Bearer s3cret").is_success
        assert httpx.get(f"{url}/health").is_success
        assert httpx.post(f"{url}/health").status_code == 401
        for path in ("/v1/models", "/nothing"):
            assert httpx.get(url + path).status_code == 401
        for path in ("/", "/page.js", "/api.js", "/page.css") if kind == "chat" else ():
            assert httpx.get(url + path).is_success  # the page asks for the key


def test_other_machines_need_a_key_or_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def access(host: str, api_key: str | None = None, *, insecure: bool = False) -> Access:
        return access_of(host, api_key=api_key, insecure=insecure)

    monkeypatch.delenv("SLEUTH_API_KEY", raising=False)
    assert access("127.0.0.1").hosts
    assert access("127.0.0.1").key is None
    for host in ("0.0.0.0", "::", "192.168.1.4"):
        with pytest.raises(SleuthError, match="SLEUTH_API_KEY"):
            access(host)
    assert access("0.0.0.0", insecure=True) == Access()
    monkeypatch.setenv("SLEUTH_API_KEY", "s3cret")
    assert access("0.0.0.0") == Access(key="s3cret")
    assert access("127.0.0.1").key == "s3cret"
    monkeypatch.setenv("OTHER", "0ther")
    assert access("0.0.0.0", "OTHER").key == "0ther"
    with pytest.raises(SleuthError) as mistaken:
        access("0.0.0.0", "sk-123456")
    assert "sk-123456" not in str(mistaken.value)
    monkeypatch.setenv("SLEUTH_API_KEY", "two words")
    with pytest.raises(SleuthError, match="printable"):
        access("0.0.0.0")
