"""`python -m benchmarks.serving CHECKPOINT INDEX QUESTIONS`: many conversations with `sleuth serve` at once.

Each question has its own client, all start at once, and answers are streamed: seconds to the first event and to the
end. Compared with the same questions in the rollout loop in process; then clients that disconnect early, and how long
their slots stay occupied; then memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.memory import resident_bytes
from benchmarks.served import served
from sleuth.data.questions import load_questions
from sleuth.evaluation.eval_session import open_eval_session
from sleuth.types import Task

TIMEOUT = 600.0  # seconds


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("index", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--leaving", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3, help="of all conversations; the times are those of the best")
    options = parser.parse_args()
    tasks = load_questions(options.questions)[: options.conversations]
    in_process = seconds_in_process(options.checkpoint, options.index, tasks, options.rounds)
    with served(
        "serve", options.checkpoint, "--index", str(options.index), "--slots", str(options.conversations),
        "--max-seconds", f"{TIMEOUT:g}",
    ) as (url, process):  # fmt: skip
        streams(url, tasks[:4])  # warm
        alone = streams(url, tasks[:1])
        memory = [resident_bytes(process.pid)]
        together = [streams(url, tasks) for _ in range(options.rounds)]
        memory.append(resident_bytes(process.pid))
        freed = seconds_to_free(url, tasks, options.leaving)
        for _ in range(options.rounds):
            streams(url, tasks)
        memory.append(resident_bytes(process.pid))
    best = min(together, key=lambda told: max(end for _, end in told))
    first, ends = (np.array(part) for part in zip(*best, strict=True))
    figures = {
        "conversations": len(tasks),
        "lost": sum(len(tasks) - len(told) for told in together),
        "alone_first_ms": ms(alone[0][0]),
        "alone_end_ms": ms(alone[0][1]),
        "first_p50_ms": ms(np.quantile(first, 0.5)),
        "first_p95_ms": ms(np.quantile(first, 0.95)),
        "end_p50_ms": ms(np.quantile(ends, 0.5)),
        "end_p95_ms": ms(np.quantile(ends, 0.95)),
        "all_ms": ms(ends.max()),
        "in_process_all_ms": ms(in_process),
        "left_midway": options.leaving,
        "slots_free_after_ms": ms(freed),
        "resident_mb": [round(size / 2**20) for size in memory],
    }
    print(json.dumps(figures))


def ms(seconds: float) -> float:
    return round(1000 * float(seconds), 1)


def seconds_in_process(checkpoint: str, index: Path, tasks: Sequence[Task], rounds: int) -> float:
    """The best of some rounds, of the same questions in one call of the rollout loop."""
    session, _ = open_eval_session(checkpoint, tasks, index=index, slots=len(tasks))
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        session.ask(tasks, "in process")
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def streams(url: str, tasks: Sequence[Task]) -> list[tuple[float, float]]:
    """Seconds to the first event and to the end of each completed conversation."""

    async def all_of_them() -> list[tuple[float, float] | None]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT, limits=limits, trust_env=False) as client:
            return await asyncio.gather(*(one(client, task) for task in tasks))

    async def one(client: httpx.AsyncClient, task: Task) -> tuple[float, float] | None:
        started, first, finished = time.perf_counter(), None, False
        with suppress(httpx.HTTPError):  # it is lost
            async with aclosing(events(client, task)) as told:
                async for event in told:
                    first = first or time.perf_counter() - started
                    finished = finished or '"kind":"end"' in event
        return (first, time.perf_counter() - started) if finished and first else None

    return [told for told in asyncio.run(all_of_them()) if told is not None]


def seconds_to_free(url: str, tasks: Sequence[Task], count: int) -> float:
    """Clients that disconnect after some events: the seconds from the last of them until all slots are free."""
    rng = random.Random(0)

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT, limits=limits, trust_env=False) as client:
            await asyncio.gather(*(leave(client, tasks[at % len(tasks)], rng.randrange(1, 15)) for at in range(count)))

    async def leave(client: httpx.AsyncClient, task: Task, after: int) -> None:
        async with aclosing(events(client, task)) as told:
            async for _ in told:
                after -= 1
                if not after:
                    return

    with httpx.Client(base_url=url, timeout=TIMEOUT, trust_env=False) as client:
        asyncio.run(all_of_them())
        started = time.perf_counter()
        while (health := client.get("/health").json())["conversations"] or health["waiting"]:
            if time.perf_counter() - started > TIMEOUT:
                raise RuntimeError(f"slots are still taken: {health}")
            time.sleep(0.001)
        return time.perf_counter() - started


async def events(client: httpx.AsyncClient, task: Task) -> Any:
    """The events of one conversation, as text."""
    body = {"messages": [{"role": "user", "content": task.question}], "stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line:
                yield line.removeprefix("data: ")


if __name__ == "__main__":
    main()
