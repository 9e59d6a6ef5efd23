"""A retriever over HTTP: `sleuth retriever`, or any server with Search-R1's `/retrieve` and scores."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from sleuth.host.connections import Replica, Replicas, RequestFailedError, RetryBudget, ask, ask_within, key_headers
from sleuth.host.escapes import replace_surrogates
from sleuth.retrieval.corpus import parse_contents
from sleuth.retrieval.index_card import identity_of
from sleuth.retrieval.query_batcher import QueryBatcher
from sleuth.types import UNKNOWN_RETRIEVER, Passage, RetrievalFailed, Retriever, RetrieverIdentity, SleuthError

ATTEMPTS = 4
SEARCH_SECONDS = 30.0  # of one server; then another one is asked
QUERY_BATCH = 32  # per request
REQUESTS_AT_ONCE = 64
HEALTH_SECONDS = 5.0
PROBE_SECONDS = 60.0  # the first query may be slow
BUSY = 429
OTHER_SHAPES = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What reading an answer of another shape raises."""


class Remote:
    """A `Retriever` over a pool of replicas of one index.

    A failed request (no connection, no answer within `timeout` seconds, status 5xx, malformed answer) is retried on
    another replica, up to `ATTEMPTS` attempts and within a retry budget; a replica that keeps failing is paused. The
    final failure is `RetrievalFailed`, never an empty result. Identical queries in flight or recently answered are sent
    once. `search` may be called from any event loop.
    """

    def __init__(self, urls: Sequence[str], timeout: float) -> None:
        self._timeout = timeout
        self._headers = key_headers()
        self._replicas = Replicas([base_url(url) for url in urls])
        self._budget = RetryBudget()
        self._batcher = QueryBatcher(self._search_each, QUERY_BATCH, REQUESTS_AT_ONCE)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most k passages for each query, in the server's order. Raises RetrievalFailed if there is no answer."""
        if k < 1:
            return [[] for _ in queries]
        return await self._batcher.search(queries, k)

    async def _search_each(self, queries: Sequence[str], k: int) -> list[list[Passage] | RetrievalFailed]:
        try:
            return [*await self._request(queries, k)]
        except _RefusedError as error:
            if len(queries) == 1:
                return [RetrievalFailed(str(error))]
            # In halves, one after the other: only one of them may be refused, and the batch counts as one request.
            half = len(queries) // 2
            return [*await self._search_each(queries[:half], k), *await self._search_each(queries[half:], k)]
        except RetrievalFailed as error:
            return [error for _ in queries]

    async def _request(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """One request with its retries."""
        tried: list[Replica] = []
        reason = "every replica is paused after failures"
        deadline = time.monotonic() + self._timeout * ATTEMPTS
        self._budget.record_request()
        while len(tried) < ATTEMPTS and (replica := await self._next(tried, deadline)) is not None:
            if tried and not self._budget.spend():
                reason += "; the retry budget is exhausted"
                break
            tried.append(replica)
            replica.in_flight += 1
            try:
                answer = await self._post(replica, queries, k)
            except _AttemptError as error:
                self._replicas.failed(replica)
                reason = f"{replica.url}: {error}"
            else:
                self._replicas.succeeded(replica)
                return answer
            finally:
                replica.in_flight -= 1
        raise RetrievalFailed(f"no passages after {len(tried)} attempts: {reason}")

    async def _next(self, tried: Sequence[Replica], deadline: float) -> Replica | None:
        """The next replica, waiting while all are paused; None at the deadline."""
        while (replica := self._replicas.pick(tried[-1:])) is None:
            pause = self._replicas.seconds_until_next()
            if time.monotonic() + pause > deadline:
                return None
            await asyncio.sleep(pause)
        return replica

    async def _post(self, replica: Replica, queries: Sequence[str], k: int) -> list[list[Passage]]:
        body = _request_body(list(map(replace_surrogates, queries)), k)
        try:
            async with asyncio.timeout(self._timeout):
                answer = await ask("POST", f"{replica.url}/retrieve", body=body, headers=self._headers)
        except (RequestFailedError, TimeoutError) as error:
            raise _AttemptError(str(error) or f"no answer within {self._timeout:g} seconds") from None
        if 300 <= answer.status < 400 and "location" in answer.headers:
            to = answer.headers["location"][:200]
            raise _AttemptError(f"redirected with status {answer.status} to {to}, which is not followed")
        if 400 <= answer.status < 500 and answer.status != BUSY:
            self._replicas.succeeded(replica)
            raise _RefusedError(f"{replica.url}: refused with {answer.status}: {answer.detail()}")
        if answer.status != HTTPStatus.OK:
            raise _AttemptError(f"status {answer.status}: {answer.detail()}")
        try:
            return [ranked[:k] for ranked in _rankings(answer.json(), len(queries))]
        except OTHER_SHAPES as error:
            raise _AttemptError(f"an answer of another shape ({type(error).__name__}: {error})") from None


class RecordedRetriever:
    """A `Retriever` for the episodes of one step: `source` is asked once for equal queries, and not at all for those
    that it answered when the step was played before. `recorded` has the passages of all queries of an action, whose
    text is the queries, one a line."""

    def __init__(self, source: Retriever, recorded: Mapping[str, Sequence[Passage]]) -> None:
        self.source = source
        self._recorded = recorded
        self._asked: dict[str, asyncio.Future[list[list[Passage]]]] = {}

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """See `Retriever`. A failure is not kept: the next search of these queries asks again."""
        text = "\n".join(queries)
        found = self._recorded.get(text)
        if found is not None and len(queries) == 1:
            return [list(found)]
        if found is not None and len(found) == k * len(queries):  # fewer do not say which query found them
            return [list(found[start : start + k]) for start in range(0, len(found), k)]
        if text not in self._asked:
            self._asked[text] = asyncio.ensure_future(self.source.search(queries, k))
        asked = self._asked[text]
        try:
            return await asyncio.shield(asked)
        except RetrievalFailed:
            if self._asked.get(text) is asked:
                del self._asked[text]
            raise


class _AttemptError(Exception):
    """This replica did not answer; another may."""


class _RefusedError(RetrievalFailed):
    """The server rejected the request as invalid."""


def base_url(url: str) -> str:
    """The address without a trailing `/retrieve`: `http://host:8000`."""
    return url.rstrip("/").removesuffix("/retrieve").rstrip("/")


def wait_until_ready(
    urls: Sequence[str], log: Callable[[str], None] = lambda line: None, pause: float = 2.0
) -> tuple[str | None, RetrieverIdentity]:
    """Waits while replicas open their index; returns the hash of their corpus, None if unknown, and their identity.

    A server that does not report its corpus is probed with one query. Raises SleuthError if a URL does not answer like
    a retriever, or if two of them serve different corpora or search in different ways.
    """
    hashes: dict[str, str] = {}
    identities: dict[RetrieverIdentity, str] = {}
    for url in map(base_url, urls):
        while (health := _health(url)).get("status") == "opening":
            log(f"{url}: opening its index, {health.get('progress', 0):.0%}")
            time.sleep(pause)
        index = health.get("index")
        identities[identity_of(index) if isinstance(index, dict) else UNKNOWN_RETRIEVER] = url
        if isinstance(index, dict) and isinstance(index.get("corpus_sha256"), str):
            hashes[index["corpus_sha256"]] = url
        else:
            _probe(url)
    if len(hashes) > 1:
        raise SleuthError(
            f"urls: {' and '.join(hashes.values())} serve different corpora; expected replicas of one index"
        )
    (first, url), *others = identities.items()
    for identity, other in others:
        if difference := identity.difference(first):
            raise SleuthError(f"urls: {other} has {difference} as {url}; expected replicas of one index")
    return next(iter(hashes), None), UNKNOWN_RETRIEVER if others else first


def _health(url: str) -> dict[str, Any]:
    try:
        answer = ask_within(HEALTH_SECONDS, "GET", f"{url}/health", headers=key_headers())
    except (RequestFailedError, TimeoutError, ValueError) as error:
        raise SleuthError(f"urls: {url} does not answer ({error}); start it with `sleuth retriever DIR`") from None
    try:
        health = answer.json()
    except (ValueError, RecursionError):
        return {}
    if isinstance(health, dict) and health.get("status") == "failed":
        raise SleuthError(f"urls: {url} could not open its index: {health.get('detail')}")
    return health if isinstance(health, dict) else {}


def _probe(url: str) -> None:
    """Sends one query, so that a wrong address fails now and not as missing scores. Raises SleuthError."""
    body = _request_body(["anything"], 1)
    try:
        answer = ask_within(PROBE_SECONDS, "POST", f"{url}/retrieve", body=body, headers=key_headers())
        if answer.status != HTTPStatus.OK:
            raise ValueError(f"status {answer.status}")
        _rankings(answer.json(), 1)
    except (RequestFailedError, TimeoutError, *OTHER_SHAPES) as error:
        raise SleuthError(
            f"urls: {url} does not answer POST /retrieve with scores like a retriever "
            f"({type(error).__name__}: {error}); start one with `sleuth retriever DIR`"
        ) from None


def _request_body(queries: list[str], k: int) -> dict[str, Any]:
    return {"queries": queries, "topk": k, "return_scores": True}


def _rankings(answer: dict[str, Any], count: int) -> list[list[Passage]]:
    """The passages of each of `count` queries. Raises one of `OTHER_SHAPES`."""
    rankings = answer["result"]
    if not isinstance(rankings, list) or len(rankings) != count:
        raise ValueError(f"expected {count} results")
    return [[_passage(row) for row in ranked] for ranked in rankings]


def _passage(row: dict[str, Any]) -> Passage:
    document, score = row["document"], float(row["score"])
    if not math.isfinite(score):
        raise ValueError("a score that is not finite")
    plain = parse_contents(replace_surrogates(str(document["id"])), replace_surrogates(document["contents"]))
    return replace(plain, score=score)
