"""`python -m benchmarks.retrieval INDEX QUESTIONS`: how fast a BM25 index answers, in process and through HTTP.

Every question is asked once, so that no cache answers. In process: one thread on one core, compared with bare tantivy
(the same words, and rows in place of passages). Through HTTP: `sleuth retriever` on that same core, and 32
clients, which each wait for an answer before the next request, on the others. The CPU time of a request is reported for
server and clients; `http_share_by_processor` compares it, and hardly depends on other load of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import tantivy
import uvloop

from benchmarks.served import served
from sleuth.data.questions import load_questions
from sleuth.retrieval.bm25 import Bm25, analyser

CLIENTS, K = 32, 3
WARM_UP = 300  # questions; not timed
HEAD = b"POST /retrieve HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json"


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval", description=__doc__)
    parser.add_argument("index", type=Path)
    parser.add_argument("questions", type=Path, nargs="+")
    options = parser.parse_args()
    questions = list(dict.fromkeys(task.question for path in options.questions for task in load_questions(path)))
    first, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {first})
    ours, searching, times = rate(Bm25(options.index).find, questions)
    alone, _, _ = rate(tantivy_alone(options.index), questions)
    with served("retriever", str(options.index), core=first) as (url, process):
        port = int(url.rpartition(":")[2])
        os.sched_setaffinity(0, set(others) or {first})
        ask_all(port, questions[:WARM_UP])
        worked, asked, started = cpu_seconds(process.pid), time.process_time(), time.perf_counter()
        seconds = ask_all(port, questions[WARM_UP:])
        http = len(seconds) / (time.perf_counter() - started)
        worked, asked = cpu_seconds(process.pid) - worked, time.process_time() - asked
    p50, p99 = np.quantile(seconds, [0.5, 0.99])
    figures = {
        "questions": len(questions) - WARM_UP,
        "in_process_per_second": round(ours),
        "in_process_cpu_p50_ms": round(np.quantile(times, 0.5) * 1000, 2),
        "in_process_cpu_p99_ms": round(np.quantile(times, 0.99) * 1000, 2),
        "tantivy_alone_per_second": round(alone),
        "http_per_second": round(http),
        "http_share": round(http / ours, 3),
        "http_share_by_processor": round(searching / (worked / len(seconds)), 3),
        "http_p50_ms": round(p50 * 1000, 1),
        "http_p99_ms": round(p99 * 1000, 1),
        "http_p99_over_p50": round(p99 / p50, 2),
        "in_process_cpu_ms_a_query": round(searching * 1000, 3),
        "server_cpu_ms_a_request": round(worked / len(seconds) * 1000, 3),
        "clients_cpu_ms_a_request": round(asked / len(seconds) * 1000, 3),
    }
    print(json.dumps(figures))


def rate(find: Callable[[Sequence[str], int], object], questions: Sequence[str]) -> tuple[float, float, list[float]]:
    """Single queries per second, the CPU seconds of one, and the CPU seconds of each."""
    for question in questions[:WARM_UP]:
        find([question], K)
    count, worked, started = len(questions) - WARM_UP, time.process_time(), time.perf_counter()
    seconds = list[float]()
    for question in questions[WARM_UP:]:
        asked = time.thread_time()
        find([question], K)
        seconds.append(time.thread_time() - asked)
    return count / (time.perf_counter() - started), (time.process_time() - worked) / count, seconds


def tantivy_alone(folder: Path) -> Callable[[Sequence[str], int], object]:
    """Bare tantivy, with the words of our query."""
    index = tantivy.Index.open(str(folder))
    searcher, schema, words_of = index.searcher(), index.schema, analyser(stop_words=False)

    def find(queries: Sequence[str], k: int) -> None:
        for query in queries:
            terms = [tantivy.Query.term_query(schema, "words", word, "freq") for word in set(words_of.analyze(query))]
            parts = [(tantivy.Occur.Should, term) for term in terms]
            hits = searcher.search(tantivy.Query.boolean_query(parts), limit=k, count=False).hits
            searcher.fast_field_values("row", [address for _, address in hits])

    return find


def cpu_seconds(process: int) -> float:
    """The CPU seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Client(asyncio.Protocol):
    """Sends the shared `requests` on one connection, waits for each answer, and appends its time to `seconds`. It does
    no more than that, since the server is measured."""

    def __init__(self, requests: Iterator[bytes], seconds: list[float]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests = requests
        self._seconds = seconds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, _, body = self._answer.partition(b"\r\n\r\n")
        if b"content-length: %d\r\n" % len(body) not in head + b"\r\n":
            return  # there is more to come
        self._seconds.append(time.perf_counter() - self._started)
        if not head.startswith(b"HTTP/1.1 200 "):
            self.done.set_exception(RuntimeError(self._answer.decode()))
        else:
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or RuntimeError("the server closed the connection"))

    def _ask(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self.done.set_result(None)
            return self._transport.close()
        self._answer, self._started = b"", time.perf_counter()
        self._transport.write(request)


def ask_all(port: int, questions: Sequence[str]) -> list[float]:
    """The seconds of each request."""
    requests, seconds = iter([request_of(question) for question in questions]), list[float]()

    async def clients() -> None:
        loop = asyncio.get_running_loop()
        connected = [
            await loop.create_connection(lambda: Client(requests, seconds), "127.0.0.1", port) for _ in range(CLIENTS)
        ]
        await asyncio.gather(*(client.done for _, client in connected))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(clients())
    return seconds


def request_of(question: str) -> bytes:
    """The request of Search-R1's client as bytes."""
    body = json.dumps({"queries": [question], "topk": K, "return_scores": True}).encode()
    return b"%s\r\ncontent-length: %d\r\n\r\n%s" % (HEAD, len(body), body)


if __name__ == "__main__":
    main()
