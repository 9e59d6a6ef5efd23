from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from hostile import ANY_JSON
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from sleuth.retrieval.bm25 import Bm25
from sleuth.retrieval.query_batcher import QueryBatcher
from sleuth.serve.access import Access, Limits
from sleuth.serve.retriever_app import retriever_app
from sleuth.serve.search_handler import IndexLoader
from sleuth.types import Passage, SleuthError

BATCHES = (1, 2, 3, 64)


class Slow:
    """An index that takes its time."""

    batch = 1

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        time.sleep(self.seconds)
        return [[] for _ in queries]


def opened(folder: Path) -> IndexLoader:
    opening = IndexLoader(folder)
    opening.start()
    while opening.index is None:
        assert not opening.error
        time.sleep(0.01)
    return opening


@pytest.fixture(scope="module")
def client(towns: Path) -> Iterator[TestClient]:
    with TestClient(retriever_app(opened(towns), Limits(), Access())) as client:
        yield client


def queries(count: int) -> list[str]:
    return [f"Town {number}" for number in range(count)]


def shown(towns: Path, asked: Sequence[str], k: int) -> list[list[str]]:
    """What the index itself gives, as `"Title"` and text."""
    return [[f'"{p.title}"\n{p.text}' for p in found] for found in Bm25(towns).find(asked, k)]


class Merging:
    """An index that answers many queries at once; `scans` are the queries of each search."""

    batch = 64

    def __init__(self) -> None:
        self.scans: list[list[str]] = []
        self.search = QueryBatcher(self._scan, self.batch).search

    async def _scan(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.scans.append(list(queries))
        await asyncio.sleep(0.05)
        return [[Passage(id=query, title="", text="a text")] for query in queries]


def test_requests_that_arrive_during_a_scan_share_the_next_one(towns: Path) -> None:
    opening, index = opened(towns), Merging()
    opening.index = cast(Any, index)

    async def ask() -> list[str]:
        transport = httpx.ASGITransport(retriever_app(opening, Limits(), Access()))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            asked = (client.post("/retrieve", json={"query": query}) for query in queries(20))
            return [answer.json()["result"][0][0]["id"] for answer in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == queries(20)
    assert len(index.scans) <= 4


# -- the clients of four trainers, as each of them asks and reads ----------------------------------------------------


def search_r1(client: TestClient, asked: list[str]) -> list[list[str]]:
    answer = client.post("/retrieve", json={"queries": asked, "topk": 3, "return_scores": True}).json()["result"]
    return [[item["document"]["contents"] for item in ranked] for ranked in answer]


def slime(client: TestClient, asked: list[str]) -> list[list[str]]:
    """One query a request, and no scores."""
    answers = [
        client.post("/retrieve", json={"queries": [query], "topk": 3, "return_scores": False}).json() for query in asked
    ]
    return [[item["contents"] for item in answer.get("result", [[]])[0]] for answer in answers]


def skyrl(client: TestClient, asked: list[str]) -> list[list[str]]:
    """One query, which is no list."""
    answers = [
        client.post("/retrieve", json={"query": query, "topk": 3, "return_scores": True}).json() for query in asked
    ]
    return [[item["document"]["contents"] for item in ranked] for answer in answers for ranked in answer["result"]]


def research(client: TestClient, asked: list[str]) -> list[list[str]]:
    answer = client.post("/batch_search", json={"query": asked, "top_n": 3}).json()
    return [[line["contents"] for line in ranked] for ranked in answer]


@pytest.mark.parametrize("count", BATCHES)
@pytest.mark.parametrize("trainer", [search_r1, slime, skyrl, research])
def test_every_trainers_client_reads_the_passages_of_the_index(
    client: TestClient, towns: Path, trainer: Any, count: int
) -> None:
    assert trainer(client, queries(count)) == shown(towns, queries(count), 3)


def test_scores_are_those_of_the_index(client: TestClient, towns: Path) -> None:
    best = Bm25(towns).find(["Town 5"], 2)[0]
    answer = client.post("/retrieve", json={"query": "Town 5", "topk": 2, "return_scores": True}).json()
    assert [item["score"] for item in answer["result"][0]] == [p.score for p in best]
    documents, scores = client.post(
        "/batch_search", json={"query": ["Town 5"], "top_n": 2, "return_score": True}
    ).json()
    assert (documents[0][0]["id"], scores) == (best[0].id, [[p.score for p in best]])


# -- what is wrong is said in one line -------------------------------------------------------------------------------

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("path", "body", "line"),
    [
        (
            "/retrieve",
            b"{",
            "body: not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))",
        ),
        ("/retrieve", b"[]", "body: expected a JSON object"),
        ("/retrieve", b"{}", "queries: Field required"),
        ("/retrieve", b'{"query": "a", "queries": ["b"]}', "give `queries` (a list) or `query` (one), not both"),
        ("/retrieve", b'{"query": "a", "topk": 101}', "topk: Input should be less than or equal to 100"),
        ("/batch_search", b'{"query": "a"}', "query: Input should be a valid array"),
    ],
)
def test_a_wrong_body_is_named_by_its_field(client: TestClient, path: str, body: bytes, line: str) -> None:
    answer = client.post(path, content=body, headers=JSON)
    assert (answer.status_code, answer.json()) == (422, {"detail": line})
    assert client.get("/nowhere").json() == {"detail": "Not Found"}
    assert client.get(path).headers["allow"] == "POST"


def test_too_many_queries_or_too_long_ones_are_refused(client: TestClient) -> None:
    for body, words in (
        ({"queries": ["a"] * 4097}, "at most 4096 items"),
        ({"query": "a" * 8001}, "at most 8000 characters"),
    ):
        answer = client.post("/retrieve", json=body)
        assert answer.status_code == 422
        assert words in answer.json()["detail"]
    assert client.post("/retrieve", json={"queries": ["qqqq"] * 4096}).status_code == 200


def test_a_body_over_the_limit_is_refused_announced_or_not(towns: Path) -> None:
    with TestClient(retriever_app(opened(towns), Limits(body_bytes=100), Access())) as client:
        for body in (b"x" * 101, iter([b"x" * 60, b"x" * 60])):
            answer = client.post("/retrieve", content=body, headers=JSON)
            assert (answer.status_code, answer.headers["connection"]) == (413, "close")
            assert answer.json() == {"detail": "the body is larger than 100 bytes; send less at once"}
        assert client.post("/retrieve", json={"query": "lake"}).status_code == 200


def test_a_search_that_takes_too_long_is_ended(towns: Path) -> None:
    opening = opened(towns)
    opening.index = Slow(0.2)  # pyright: ignore[reportAttributeAccessIssue]
    with TestClient(retriever_app(opening, Limits(seconds=0.05), Access())) as client:
        answer = client.post("/retrieve", json={"query": "lake"})
    assert (answer.status_code, answer.json()["detail"]) == (504, "no answer within 0.05 seconds; ask for less at once")


@pytest.mark.parametrize(("works", "moves"), [(True, False), (False, True)])
def test_only_queries_of_long_cpu_time_run_in_a_thread(towns: Path, works: bool, moves: bool) -> None:
    threads: list[str] = []

    class Taking(Slow):
        def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
            threads.append(threading.current_thread().name)
            started = time.thread_time()
            while works and time.thread_time() - started < self.seconds:
                pass
            return super().find(queries, k)  # asleep, as a process is that was interrupted

    opening = opened(towns)
    opening.index = Taking(0.008)  # pyright: ignore[reportAttributeAccessIssue]
    with TestClient(retriever_app(opening, Limits(), Access())) as client:
        for _ in range(3):
            assert client.post("/retrieve", json={"query": "lake"}).status_code == 200
    assert threads[0].startswith("search")  # until it is known
    assert [not name.startswith("search") for name in threads[1:]] == [moves, moves]


# -- readiness and figures -------------------------------------------------------------------------------------------


def test_health_reports_progress_and_searches_are_refused_until_the_index_is_open(towns: Path) -> None:
    opening = IndexLoader(towns)
    with TestClient(retriever_app(opening, Limits(), Access())) as client:
        opening.progress = 0.4
        health, answer = client.get("/health"), client.post("/retrieve", json={"query": "lake"})
        assert (health.status_code, health.json()["status"], health.json()["progress"]) == (503, "opening", 0.4)
        assert (answer.status_code, answer.json()) == (503, {"detail": "the index is being opened, 40% so far"})
        assert "retry-after" in answer.headers
        opening.start()
        while opening.index is None:
            time.sleep(0.01)
        health = client.get("/health")
        assert (health.status_code, health.json()["status"], health.json()["progress"]) == (200, "ready", 1.0)
        assert health.json()["index"]["corpus_sha256"] == opening.card.corpus_sha256


def test_an_index_that_cannot_be_opened_is_reported(towns: Path, tmp_path: Path) -> None:
    with pytest.raises(SleuthError, match="no index here"):
        IndexLoader(tmp_path)
    (tmp_path / "card.json").write_text((towns / "card.json").read_text())
    opening, failed = IndexLoader(tmp_path), []
    opening.start(lambda: failed.append(True))
    with TestClient(retriever_app(opening, Limits(), Access())) as client:
        while not failed:
            time.sleep(0.01)
        assert client.get("/health").json()["status"] == "failed"
        assert "damaged index" in client.post("/retrieve", json={"query": "lake"}).json()["detail"]


# -- whatever is sent ------------------------------------------------------------------------------------------------

FIELDS = ("queries", "query", "topk", "return_scores", "top_n", "return_score")
NEAR = st.dictionaries(
    st.sampled_from(FIELDS), ANY_JSON | st.lists(st.text(max_size=20), max_size=5) | st.integers(-2, 102), max_size=4
)


@settings(max_examples=300, deadline=None)
@given(body=NEAR | ANY_JSON, path=st.sampled_from(["/retrieve", "/batch_search"]))
def test_no_json_breaks_the_server_and_every_answer_is_a_list_or_one_line(
    client: TestClient, body: object, path: str
) -> None:
    answer = client.post(path, content=json.dumps(body).encode(), headers=JSON)
    assert answer.status_code in (200, 422)
    if answer.status_code == 422:
        assert "\n" not in answer.json()["detail"]
    else:
        assert isinstance(answer.json()["result"] if path == "/retrieve" else answer.json(), list)
