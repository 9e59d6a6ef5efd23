"""Fault injection for emulated servers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sleuth.serve.refused import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults to inject; none by default. `error_every = 7`: every seventh completion fails."""

    latency: float = 0.0  # seconds added to every completion
    token_seconds: float = 0.0  # that each token of a completion takes, however many are written at once
    tail: float = 0.0  # of a log-normal factor of these seconds, drawn for each completion: its sigma
    error_every: int = 0  # every n-th completion gets status 500
    hang_every: int = 0  # every n-th completion never returns
    cut_every: int = 0  # every n-th answer is cut off in the middle
    stale: bool = False  # loading weights reports success and changes nothing


class FaultInjector:
    """Injects the faults, by the number of the completion."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.completions = 0
        self._starts_until = 0.0

    def apply(self, engine: Any) -> None:
        """Sets what is the engine's part of the faults."""
        for name in ("stale", "token_seconds", "tail"):
            setattr(engine, name, getattr(self.faults, name))

    def restart(self, seconds: float) -> None:
        """Refuses all requests for this long."""
        self._starts_until = time.monotonic() + seconds

    @property
    def starting(self) -> bool:
        """Whether an emulated restart is in progress."""
        return time.monotonic() < self._starts_until

    async def before(self) -> int:
        """Injects the faults of a completion before it runs; returns its number, raises `Refused` or never returns."""
        self.completions += 1
        number, faults = self.completions, self.faults
        if faults.latency:
            await asyncio.sleep(faults.latency)
        if faults.hang_every and number % faults.hang_every == 0:
            await asyncio.Event().wait()
        if faults.error_every and number % faults.error_every == 0:
            raise Refused(500, f"completion {number} fails, as error_every = {faults.error_every} asks")
        return number

    def after(self, number: int, answer: Response) -> Response:
        """The answer to completion `number`, cut off if its fault says so."""
        cut = self.faults.cut_every and number % self.faults.cut_every == 0
        return TruncatedResponse(answer) if cut else answer


class RestartGate:
    """Middleware that refuses all requests but `/faults` during an emulated restart."""

    def __init__(self, app: ASGIApp, injector: FaultInjector) -> None:
        self._app = app
        self._injector = injector

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._injector.starting and scope["path"] != "/faults":
            return await Refused(503, "it is starting").response()(scope, receive, send)
        await self._app(scope, receive, send)


class TruncatedResponse(Response):
    """The head and the first half of an answer; then the connection closes."""

    def __init__(self, full: Response) -> None:
        super().__init__(full.body, full.status_code, media_type=full.media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        half = bytes(self.body)[: len(self.body) // 2]
        await send({"type": "http.response.body", "body": half, "more_body": True})
