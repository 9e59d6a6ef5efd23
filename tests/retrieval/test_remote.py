"""A pool of servers that fail in every way: what comes back is passages or a failure that is counted, never nothing."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import pytest
from chat_server import Answer, ChatServer, closed_url

from sleuth.host.connections import FAILURES_TO_OPEN, Replicas, RetryBudget
from sleuth.retrieval.remote import RecordedRetriever, Remote, base_url, wait_until_ready
from sleuth.types import UNKNOWN_RETRIEVER, Passage, RetrievalFailed, RetrieverIdentity, SleuthError


def found(body: dict[str, Any]) -> tuple[int, object]:
    """One passage for each query, which names it."""
    document = lambda query: {"id": f"id of {query}", "contents": f'"T"\nabout {query}'}  # noqa: E731
    return 200, {"result": [[{"document": document(query), "score": 1.5}] for query in body["queries"]]}


@dataclass
class Server(ChatServer):
    """One of passages."""

    answer: Answer = found
    models: tuple[int, object] = (404, {"detail": "Not Found"})
    path: str = "/retrieve"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server().running() as server:
        yield server


def searched(retriever: Remote, *queries: str, k: int = 3) -> list[list[Passage]]:
    return asyncio.run(retriever.search(queries, k))


def failure(retriever: Remote, query: str = "sea") -> str:
    with pytest.raises(RetrievalFailed) as caught:
        searched(retriever, query)
    return str(caught.value)


def test_passages_come_back_as_from_an_index_of_this_machine(server: Server) -> None:
    [[passage], [other]] = searched(Remote([f"{server.url}/retrieve/"], 5), "sea", "\udcff")
    assert passage == Passage(id="id of sea", title="T", text="about sea", score=1.5)
    assert other.id == "id of ?"
    assert base_url("http://h:1/retrieve") == base_url("http://h:1/") == "http://h:1"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda body: (500, {"detail": "broken"}), 'status 500: {"detail": "broken"}'),
        (lambda body: (200, b"<html>"), "an answer of another shape (JSONDecodeError"),
        (lambda body: (200, {"result": []}), "an answer of another shape (ValueError: expected 1 results"),
        (lambda body: (200, []), "an answer of another shape"),
        (lambda body: (200, {"result": [[{"id": "1", "contents": "x"}]]}), "an answer of another shape (KeyError"),
        (lambda body: (200, b'{"result": [[{"document": {"id": "1", "contents": "x"}, "score": NaN}]]}'), "not finite"),
    ],
)
def test_a_missing_answer_is_a_failure_and_never_an_empty_result(server: Server, answer: Answer, words: str) -> None:
    server.answer = answer
    assert words in failure(Remote([server.url], 5))


def test_a_failed_request_is_retried_on_another_replica(server: Server) -> None:
    with Server(answer=lambda body: (503, {})).running() as sick:
        retriever = Remote([sick.url, server.url, closed_url()], 5)
        for number in range(30):
            assert searched(retriever, f"q{number}")[0][0].id == f"id of q{number}"
        assert len(sick.asked) <= FAILURES_TO_OPEN + 3  # then its circuit was open, but for a trial now and then


def test_a_hanging_server_times_out(server: Server) -> None:
    release = Event()
    with Server(answer=lambda body: (release.wait(20), (500, {}))[1]).running() as hanging:
        retriever = Remote([hanging.url, server.url], 0.2)
        assert searched(retriever, "a")[0][0].id == "id of a"
        assert "no answer within 0.2 seconds" in failure(Remote([hanging.url], 0.2))
        release.set()


def test_a_server_that_comes_back_is_found_again() -> None:
    server = Server()
    with server.running():
        retriever = Remote([server.url], 5)
        searched(retriever, "a")
    failure(Remote([server.url], 0.1))

    async def meanwhile() -> list[list[Passage]]:
        search = asyncio.create_task(retriever.search(["b"], 3))
        await asyncio.sleep(0.3)
        with server.running():
            return await search

    assert asyncio.run(meanwhile())[0][0].id == "id of b"


def test_a_refused_query_does_not_fail_the_others_of_its_batch(server: Server) -> None:
    server.answer = lambda body: (422, {"detail": "too long"}) if "bad" in body["queries"] else found(body)
    retriever = Remote([server.url], 5)

    async def together() -> list[Any]:
        searches = (retriever.search([query], 3) for query in ("a", "bad", "b"))
        return await asyncio.gather(*searches, return_exceptions=True)

    a, bad, b = asyncio.run(together())
    assert (a[0][0].id, b[0][0].id) == ("id of a", "id of b")
    assert "refused with 422" in str(bad)
    assert [body["queries"] for body in server.asked] == [["a", "bad", "b"], ["a"], ["bad", "b"], ["bad"], ["b"]]


# -- the pool --------------------------------------------------------------------------------------------------------


def test_a_circuit_opens_after_failures_in_a_row_and_one_request_tries_it_again() -> None:
    now = [0.0]
    pool = Replicas(["a", "b"], clock=lambda: now[0])
    a, b = pool.members
    for _ in range(FAILURES_TO_OPEN):
        assert pool.pick() is a
        pool.failed(a)
    assert pool.pick() is b
    b.in_flight = 50
    assert pool.pick() is b
    now[0] = 0.5
    assert pool.pick() is a
    a.in_flight = 1
    assert pool.pick() is b  # one trial at a time
    a.in_flight = 0
    pool.failed(a)
    now[0] = 1.4
    assert pool.pick() is b  # twice as long
    now[0] = 1.5
    assert pool.pick() is a
    pool.succeeded(a)
    assert not a.open


def test_retries_are_a_fifth_of_the_requests_beyond_the_reserve() -> None:
    budget = RetryBudget()
    spent = 0
    while budget.spend():
        spent += 1
    assert spent == 100
    for _ in range(11):
        budget.record_request()
    assert [budget.spend(), budget.spend(), budget.spend()] == [True, True, False]


def test_a_pool_that_is_down_is_not_flooded_with_retries() -> None:
    with Server(answer=lambda body: (500, {})).running() as sick:
        retriever = Remote([sick.url], 0.05)
        for number in range(8):
            failure(retriever, f"q{number}")
        assert len(sick.asked) < 8 + FAILURES_TO_OPEN


# -- before a run ----------------------------------------------------------------------------------------------------


def ready(**card: object) -> tuple[int, object]:
    return 200, {"status": "ready", "progress": 1.0, "index": {"corpus_sha256": "8c1f", "kind": "bm25"} | card}


def test_a_pool_reports_its_corpus_and_its_retriever(server: Server) -> None:
    assert wait_until_ready([server.url]) == (None, UNKNOWN_RETRIEVER)  # a server without /health
    server.models = ready()
    bm25 = RetrieverIdentity(kind="bm25")
    assert wait_until_ready([server.url, server.url]) == ("8c1f", bm25)
    other = Server(models=ready(corpus_sha256="77aa"))
    with other.running(), pytest.raises(SleuthError, match="serve different corpora"):
        wait_until_ready([server.url, other.url])
    other = Server(models=ready(kind="dense", encoder={"model": "a/b"}))
    with other.running(), pytest.raises(SleuthError, match=r"has kind 'dense', not 'bm25' as http.*; expected"):
        wait_until_ready([server.url, other.url])
    silent = Server()
    with silent.running():
        assert wait_until_ready([server.url, silent.url]) == ("8c1f", UNKNOWN_RETRIEVER)


@pytest.mark.parametrize(
    "answer",
    [(200, b"hello"), (200, b"[" * 100_000), (200, {"result": [[{"id": "1"}]]}), (404, {"detail": "Not Found"})],
)
def test_a_server_that_is_not_a_retriever_fails_before_the_first_question(
    server: Server, answer: tuple[int, object]
) -> None:
    server.answer = lambda body: answer
    with pytest.raises(SleuthError, match="does not answer POST /retrieve with scores like") as told:
        wait_until_ready([server.url])
    assert "\n" not in str(told.value)
    assert len(server.asked) == 1


def test_an_opening_pool_is_awaited_and_an_unreachable_one_fails(server: Server) -> None:
    said: list[str] = []
    server.models = (503, {"status": "opening", "progress": 0.4})

    def say(line: str) -> None:
        said.append(line)
        server.models = (200, {"status": "ready", "index": {"corpus_sha256": "8c1f"}})

    assert wait_until_ready([server.url], say, pause=0)[0] == "8c1f"
    assert said == [f"{server.url}: opening its index, 40%"]
    with pytest.raises(SleuthError, match=r"does not answer .*; start it with `sleuth retriever DIR`"):
        wait_until_ready([closed_url()])
    server.models = (503, {"status": "failed", "detail": "damaged index"})
    with pytest.raises(SleuthError, match="could not open its index: damaged index"):
        wait_until_ready([server.url])


@pytest.mark.parametrize("begun", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n{"])
def test_a_health_that_drips_bytes_does_not_hold_the_start(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sleuth.retrieval.remote.HEALTH_SECONDS", 0.5)
    ended = Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            client, _ = listener.accept()
            with client, suppress(OSError):
                client.sendall(begun)
                while not ended.wait(0.05):
                    client.sendall(b"a")

        thread = Thread(target=drip, daemon=True)
        thread.start()
        started = time.monotonic()
        with pytest.raises(SleuthError, match=r"does not answer \(no answer within 0.5 seconds\); start it with"):
            wait_until_ready([f"http://127.0.0.1:{listener.getsockname()[1]}"])
        assert time.monotonic() - started < 5
        ended.set()
        thread.join(5)


class Fickle:
    """Answers otherwise each time, and fails at first if it is `failing`."""

    def __init__(self, failing: int = 0) -> None:
        self.asked, self.failing = 0, failing

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.asked <= self.failing:
            raise RetrievalFailed("gone")
        return [[Passage(id=f"{query} {self.asked} {at}", title="", text="") for at in range(k)] for query in queries]


def test_equal_queries_of_a_step_find_the_same_and_recorded_ones_are_not_asked_again() -> None:
    before = {one: Passage(id=one, title="", text="") for one in "abcd"}
    recorded = {"Ada": [before["a"]], "Ada\nTarn": [before[one] for one in "abcd"], "x\ny": [before["a"]]}
    source = Fickle()
    retriever = RecordedRetriever(source, recorded)

    async def ask() -> None:
        assert await retriever.search(["Ada"], 2) == [[before["a"]]]
        assert await retriever.search(["Ada", "Tarn"], 2) == [[before["a"], before["b"]], [before["c"], before["d"]]]
        assert source.asked == 0
        await retriever.search(["x", "y"], 2)  # one passage does not say which query found it
        assert source.asked == 1
        one, other = await asyncio.gather(retriever.search(["new"], 2), retriever.search(["new"], 2))
        assert one == other == await retriever.search(["new"], 2)
        assert source.asked == 2

    asyncio.run(ask())


def test_a_failed_search_is_recorded_for_nobody() -> None:
    retriever = RecordedRetriever(Fickle(failing=1), {})

    async def ask() -> None:
        failures = await asyncio.gather(*(retriever.search(["Ada"], 1) for _ in range(2)), return_exceptions=True)
        assert [str(failure) for failure in failures] == ["gone", "gone"]
        [[passage]] = await retriever.search(["Ada"], 1)
        assert passage.id == "Ada 2 0"

    asyncio.run(ask())
