"""`python -m benchmarks.judge_client`: the client of a judge beside a server process that fails in every way.

256 questions in flight; 5 % errors, 2 % hangs, 3 % garbage, 1 % invalid scores. Every verdict is compared with the
truth. The server's own limit is measured on the same server without faults, by a bare client that keeps as many
requests in flight and does not parse the answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from benchmarks.loopback_judge import MODEL, truth
from sleuth.judges.factory import wait_until_served
from sleuth.judges.http import HttpJudge
from sleuth.judges.judge_prompts import question_of
from sleuth.types import Case, SleuthError

AT_ONCE = 256
FAULTS = {"errors": 0.05, "hangs": 0.02, "garbage": 0.03, "range": 0.01}


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge_client", description=__doc__)
    parser.add_argument("--verdicts", type=int, default=20_000)
    parser.add_argument("--slots", type=int, default=96, help="answers that the server computes at once (96)")
    parser.add_argument("--seconds", type=float, default=0.4, help="for each of them (0.4)")
    parser.add_argument("--timeout", type=float, default=4.0, help="seconds of the client for one answer (4)")
    options = parser.parse_args()
    cases = [Case(claim=f"claim number {number}", evidence="It is known.") for number in range(options.verdicts)]
    engine = {"slots": options.slots, "seconds": options.seconds}
    with serving(**engine) as url:
        limit = asyncio.run(bare_rate(url, cases[: len(cases) // 2]))
    with serving(**engine | FAULTS) as url:
        figures = judged(url, cases, options.timeout)
        counts = httpx.get(f"{url}/counts", trust_env=False).json()
    rate = (sum(counts.values()) - counts["hang"]) / figures["seconds"]
    figures |= {
        "server": counts,
        "limit_per_second": round(limit, 1),
        "answers_per_second": round(rate, 1),
        "share_of_limit": round(rate / limit, 3),
    }
    print(json.dumps(figures))


def judged(url: str, cases: list[Case], timeout: float) -> dict[str, Any]:
    """The outcomes of the cases, and the seconds that they took."""
    judge = HttpJudge([url], MODEL, timeout=timeout, at_once=AT_ONCE)
    started = time.perf_counter()
    verdicts = asyncio.run(judge.judge(cases))
    seconds = time.perf_counter() - started
    wrong = sum(v.score is not None and v.score != truth(number) / 2 for number, v in enumerate(verdicts))
    ledger = judge.ledger
    return {
        "verdicts": len(verdicts),
        "scored": ledger.scored,
        "missing": ledger.missing,
        "invalid": ledger.invalid,
        "missing_because": dict(Counter(v.reason for v in verdicts if v.score is None).most_common(3)),
        "wrong": wrong,
        "calls": ledger.calls,
        "failed": ledger.failed,
        "asked_again": ledger.asked_again,
        "seconds": round(seconds, 1),
    }


async def bare_rate(url: str, cases: list[Case]) -> float:
    """Requests a second of `AT_ONCE` connections that only send and wait."""
    waiting = [json.dumps({"messages": [{}, {"content": question_of(case).message}]}).encode() for case in cases]
    port = int(url.rpartition(":")[2])

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while waiting:
            body = waiting.pop()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            head = await reader.readuntil(b"\r\n\r\n")
            [length] = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(length.partition(b":")[2]))
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(connection() for _ in range(AT_ONCE)))
    return len(cases) / (time.perf_counter() - started)


@contextmanager
def serving(**settings: float) -> Iterator[str]:
    """A `loopback_judge` in its own process; yields its address once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.loopback_judge", "--port", str(port), *arguments])
    try:
        while process.poll() is None:
            try:
                wait_until_served([f"http://127.0.0.1:{port}"], MODEL)
                break
            except SleuthError:
                time.sleep(0.05)
        else:
            raise RuntimeError("the server ended")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()  # it would wait for what it never answers
        process.wait()


if __name__ == "__main__":
    main()
