"""Request metrics in Prometheus' text format 0.0.4."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TEXT = "text/plain"
CONTENT_TYPE = f"{TEXT}; version=0.0.4; charset=utf-8"


class Counters:
    """Counts answers by path and status, with a histogram of their seconds. Paths not in `paths` count as "other",
    because clients can invent any number of them."""

    def __init__(self, paths: Collection[str]) -> None:
        self._paths = paths
        self._answers: Counter[tuple[str, int]] = Counter()
        self._buckets = [0] * (len(SECONDS) + 1)
        self._seconds = 0.0

    def record(self, path: str, status: int, seconds: float) -> None:
        """Counts one answer, at its end or at the start of a stream."""
        self._answers[path if path in self._paths else "other", status] += 1
        self._buckets[bisect_left(SECONDS, seconds)] += 1
        self._seconds += seconds

    def text(self, *, totals: Mapping[str, float], gauges: Mapping[str, float]) -> str:
        """All metrics, with further `totals` (counters) and `gauges`."""
        lines = ["# TYPE sleuth_requests_total counter"]
        for (path, status), count in sorted(self._answers.items()):
            lines.append(f'sleuth_requests_total{{path="{path}",status="{status}"}} {count}')
        for name, value in totals.items():
            lines += [f"# TYPE {name} counter", f"{name} {value:.0f}"]
        lines.append("# TYPE sleuth_request_seconds histogram")
        total = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self._buckets, strict=True):
            total += count
            lines.append(f'sleuth_request_seconds_bucket{{le="{bound}"}} {total}')
        lines += [f"sleuth_request_seconds_sum {self._seconds:.6f}", f"sleuth_request_seconds_count {total}"]
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


class CountAnswers:
    """Middleware that records every answer of an application in `counters`."""

    def __init__(self, app: ASGIApp, counters: Counters) -> None:
        self._app = app
        self._counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counters.record(scope["path"], message["status"], time.perf_counter() - started)
            await send(message)

        await self._app(scope, receive, counted)
