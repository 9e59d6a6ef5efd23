"""`python -m benchmarks.retrieval INDEX QUESTIONS`: how fast a BM25 index answers, in process and through HTTP.

Every question is asked once, so that no cache answers. In process: one thread on one core, beside tantivy alone (the
same words, the same passages read, nothing sorted or made into records). Through HTTP: `sleuth retriever` on that same
core, and 32 clients that each wait for an answer before they ask again, on the others. What a request costs the
processor is told for the server and for the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tantivy

from sleuth.data.questions import load_questions
from sleuth.retrieval.bm25 import Bm25

CLIENTS, K = 32, 3
WARM_UP = 300  # questions; not timed
HEAD = "POST /retrieve HTTP/1.1\r\nhost: x\r\ncontent-type: application/json"


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval", description=__doc__)
    parser.add_argument("index", type=Path)
    parser.add_argument("questions", type=Path, nargs="+")
    options = parser.parse_args()
    questions = list(dict.fromkeys(task.question for path in options.questions for task in load_questions(path)))
    first, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {first})
    ours, searching = rate(Bm25(options.index).find, questions)
    alone, _ = rate(tantivy_alone(options.index), questions)
    with server(options.index, first) as (port, process):
        os.sched_setaffinity(0, set(others) or {first})
        asyncio.run(ask_all(port, questions[:WARM_UP]))
        worked, asked, started = cpu_seconds(process), time.process_time(), time.perf_counter()
        seconds = asyncio.run(ask_all(port, questions[WARM_UP:]))
        http = len(seconds) / (time.perf_counter() - started)
        worked, asked = cpu_seconds(process) - worked, time.process_time() - asked
    p50, p99 = np.quantile(seconds, [0.5, 0.99])
    figures = {
        "questions": len(questions) - WARM_UP,
        "in_process_per_second": round(ours),
        "tantivy_alone_per_second": round(alone),
        "http_per_second": round(http),
        "http_share": round(http / ours, 3),
        "http_p50_ms": round(p50 * 1000, 1),
        "http_p99_ms": round(p99 * 1000, 1),
        "http_p99_over_p50": round(p99 / p50, 2),
        "in_process_cpu_ms_a_query": round(searching * 1000, 3),
        "server_cpu_ms_a_request": round(worked / len(seconds) * 1000, 3),
        "clients_cpu_ms_a_request": round(asked / len(seconds) * 1000, 3),
    }
    print(json.dumps(figures))


def rate(find: Callable[[Sequence[str], int], object], questions: Sequence[str]) -> tuple[float, float]:
    """Single queries a second, and the seconds of the processor that one takes."""
    for question in questions[:WARM_UP]:
        find([question], K)
    count, worked, started = len(questions) - WARM_UP, time.process_time(), time.perf_counter()
    for question in questions[WARM_UP:]:
        find([question], K)
    return count / (time.perf_counter() - started), (time.process_time() - worked) / count


def tantivy_alone(folder: Path) -> Callable[[Sequence[str], int], object]:
    """The library with nothing of ours around it but the words of a query."""
    index = tantivy.Index.open(str(folder))
    searcher, schema, words_of = index.searcher(), index.schema, Bm25(folder)._telling_words

    def find(queries: Sequence[str], k: int) -> None:
        for query in queries:
            terms = [tantivy.Query.term_query(schema, "words", word, "freq") for word in set(words_of.analyze(query))]
            parts = [(tantivy.Occur.Should, term) for term in terms]
            for _, address in searcher.search(tantivy.Query.boolean_query(parts), limit=k, count=False).hits:
                searcher.doc(address)

    return find


@contextmanager
def server(folder: Path, core: int) -> Iterator[tuple[int, int]]:
    """`sleuth retriever` on one core; yields its port and its process id once it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = f"import os, sys; os.sched_setaffinity(0, {{{core}}}); from sleuth.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "retriever", str(folder), "--port", str(port)], stdout=subprocess.DEVNULL
    )
    try:
        while b"ready" not in asyncio.run(ask(port, b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")):
            if process.poll() is not None:
                raise RuntimeError("the server ended")
            time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def cpu_seconds(process: int) -> float:
    """What a process has had of the processor so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ask(port: int, request: bytes) -> bytes:
    """One request on a connection of its own; empty where nobody listens yet."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return b""
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def ask_all(port: int, questions: Sequence[str]) -> list[float]:
    """Seconds of each request; the clients share the questions. Plain sockets: it is the server that is measured."""
    waiting, seconds = iter(questions), []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for question in waiting:
            body = json.dumps({"queries": [question], "topk": K, "return_scores": True}).encode()
            head = (
                f"POST /retrieve HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
            )
            started = time.perf_counter()
            writer.write(f"{head}\r\n\r\n".encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            if b" 200 " not in answer.split(b"\r\n")[0]:
                raise RuntimeError(answer.decode())
            await reader.readexactly(int(answer.split(b"content-length: ")[1].split(b"\r\n")[0]))
            seconds.append(time.perf_counter() - started)
        writer.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return seconds


if __name__ == "__main__":
    main()
