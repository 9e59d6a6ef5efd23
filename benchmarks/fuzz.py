"""`python -m benchmarks.fuzz [--requests N] [--clients N] retriever DIR`, or `... serve CHECKPOINT --index DIR`.

Starts that server and sends requests that Schemathesis generates from its OpenAPI description, valid and invalid ones,
from several clients at once. Exit status 1: a 5xx, no answer in time, an answer that the description does not allow, or
more than 16 MB of memory growth in the second half.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup

from benchmarks.memory import resident_bytes
from benchmarks.served import served
from sleuth.runs.progress import ProgressBar

OF_EACH = 20  # requests of an operation in a round
TIMEOUT = 300.0  # seconds; who has not answered by then hangs: the servers themselves give up earlier
MEMORY_AT = (0.1, 0.5, 1.0)  # of the requests: a server that has answered nothing holds less
GROWTH = 16 * 2**20  # bytes of memory in the second half; less may be a cache that fills up, and a longer run tells
NO_ANSWER = 0  # instead of a status
TOO_LARGE = 413
SHOWN = 4_000  # characters of a finding: some requests are megabytes
LISTED = 5  # findings


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request of `operation`: its status, and the seconds that it took."""

    operation: str
    status: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Results:
    """The answers so far, from any number of threads. A finding is a missing answer, or one that the description does
    not allow."""

    answers: list[Answer] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def main() -> int:
    """Print one table; Ctrl-C ends it early."""
    options = read_options()
    results = Results()
    started = time.perf_counter()
    with (
        served(*options.command) as (url, process),
        ProgressBar("fuzz", options.requests) as bar,
        suppress(KeyboardInterrupt),
    ):
        memory = [resident_bytes(process.pid)]  # and after each round
        for count in rounds(schemathesis.openapi.from_url(f"{url}/openapi.json"), options.clients, results):
            bar.advance(count)
            if process.poll() is not None:
                results.findings.append(f"the server ended with status {process.returncode}")
                break
            memory.append(resident_bytes(process.pid))
            if len(results.answers) >= options.requests:
                break
    slowest = max(results.answers, key=lambda answer: answer.seconds, default=Answer("nothing", NO_ANSWER, 0.0))
    statuses = Counter(f"{answer.operation} {answer.status}" for answer in results.answers)
    failed = sum(answer.status >= 500 for answer in results.answers)
    first, half, last = (memory[int(share * (len(memory) - 1))] for share in MEMORY_AT)
    figures = {
        "requests": len(results.answers),
        "seconds": round(time.perf_counter() - started),
        "5xx": failed,
        "findings": len(results.findings),
        "slowest_ms": round(1000 * slowest.seconds, 1),
        "slowest": slowest.operation,
        "resident_mb": [round(size / 2**20, 1) for size in (first, half, last)],
        "statuses": dict(sorted(statuses.items())),
    }
    print(json.dumps(figures) if options.json else as_table(figures))
    for finding in results.findings[:LISTED]:
        print(f"\n{finding}", file=sys.stderr)
    return int(failed > 0 or bool(results.findings) or last > half + GROWTH)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, metavar="N", help="in all (10,000)")
    parser.add_argument("--clients", type=int, default=8, metavar="N", help="at once (8)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="a server of sleuth with its arguments, but no --port"
    )
    return parser.parse_args()


def as_table(figures: dict[str, Any]) -> str:
    """The figures as lines of text, with the answers by operation and status last."""
    first, half, after = figures["resident_mb"]
    lines = {
        "requests": f"{figures['requests']:,} in {figures['seconds']} s",
        "answered 5xx": str(figures["5xx"]),
        "other findings": str(figures["findings"]),
        "slowest": f"{figures['slowest_ms']:,} ms ({figures['slowest']})",
        "resident memory": f"{first} MB after a tenth, {half} half-way, {after} at the end",
        **{name: f"{count:,}" for name, count in figures["statuses"].items()},
    }
    return "\n".join(f"{name:40}{value}" for name, value in lines.items())


def rounds(schema: schemathesis.BaseSchema, clients: int, results: Results) -> Iterator[int]:
    """Endless rounds in which `clients` clients send valid and invalid requests of every operation of a server; yields
    the number of requests of each round."""
    kinds = [
        found.ok().as_strategy(generation_mode=mode)
        for mode in schemathesis.GenerationMode
        for found in schema.get_all_operations()
    ]
    with ThreadPoolExecutor(clients) as threads:
        for number in itertools.count():
            cases = [case for kind in kinds for case in drawn(kind, number)]
            random.Random(number).shuffle(cases)
            for done in [threads.submit(answer, case, results) for case in cases]:
                done.result()
            yield len(cases)


def drawn(cases: SearchStrategy[schemathesis.Case], number: int) -> list[schemathesis.Case]:
    """The cases of one operation from the seed `number`; one case if a request has no body. Drawn in advance, since the
    generator is not thread-safe."""
    found: list[schemathesis.Case] = []

    @seed(number)
    @settings(
        max_examples=OF_EACH,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def draw(case: schemathesis.Case) -> None:
        found.append(case)

    with suppress(Unsatisfiable):  # there is nothing to get wrong in it
        draw()
    return found


def answer(case: schemathesis.Case, results: Results) -> None:
    """Sends a case and records the answer."""
    name, started = case.operation.label, time.perf_counter()
    try:
        response = case.call(timeout=TIMEOUT)
    except requests.RequestException as error:
        results.findings.append(f"{name}: no answer ({error})\n{case.as_curl_command()}")
        results.answers.append(Answer(name, NO_ANSWER, time.perf_counter() - started))
        return
    results.answers.append(Answer(name, response.status_code, time.perf_counter() - started))
    try:
        # a body above the limit is refused for its size, whatever is in it: a status that no schema names
        errors_alone = response.status_code == TOO_LARGE
        case.validate_response(response, checks=[not_a_server_error] if errors_alone else None)
    except FailureGroup as problems:
        results.findings.append(f"{name}: {str(problems)[:SHOWN]}")


if __name__ == "__main__":
    sys.exit(main())
