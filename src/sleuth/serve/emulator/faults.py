"""What can go wrong with a server, on demand."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, fields, replace
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sleuth.serve.http.refused import Refused, refusal
from sleuth.types import SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Nothing is wrong by default. `error_every = 7`: each seventh completion is not given."""

    latency: float = 0.0
    """Seconds that every completion is late."""
    error_every: int = 0
    """Each n-th completion is status 500."""
    hang_every: int = 0
    """Each n-th completion never comes."""
    cut_every: int = 0
    """Each n-th answer breaks off in its middle."""
    stale: bool = False
    """New weights are said to be taken, and the old ones go on writing."""

    def changed(self, table: dict[str, Any]) -> Faults:
        """With other values. Raises `Refused` for what is no fault, or no value of it."""
        defaults = {field.name: field.default for field in fields(Faults)}
        for name, value in table.items():
            if name not in defaults:
                raise Refused(400, f"{name} is no fault; there are {', '.join(defaults)} and forget")
            whole = isinstance(defaults[name], float) and type(value) is int
            if (type(value) is not type(defaults[name]) and not whole) or value < 0:
                raise Refused(400, f"{name} = {value!r}: expected such a value as {defaults[name]!r}")
        return replace(self, **table)


def faults_of(words: list[str]) -> Faults:
    """`["latency=0.2", "error_every=7", "stale"]`. Raises a one-line SleuthError."""
    table: dict[str, Any] = {}
    for word in words:
        name, _, value = word.replace("-", "_").partition("=")
        try:
            table[name] = True if name == "stale" and not value else float(value) if "." in value else int(value)
        except ValueError:
            raise SleuthError(f"--fault {word}: expected such as latency=0.2, error-every=7 or stale") from None
    try:
        return Faults().changed(table)
    except Refused as refused:
        raise SleuthError(f"--fault: {refused}") from None


class Trouble:
    """Makes the faults happen, by the number of the completion."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.asked = 0
        self._starts_until = 0.0

    def restart(self, seconds: float) -> None:
        """Nobody is let in for so long."""
        self._starts_until = time.monotonic() + seconds

    @property
    def starting(self) -> bool:
        """Whether a restart is under way."""
        return time.monotonic() < self._starts_until

    async def before(self) -> int:
        """What befalls a completion before it is written; its number. Raises `Refused`, or never returns."""
        self.asked += 1
        number, faults = self.asked, self.faults
        if faults.latency:
            await asyncio.sleep(faults.latency)
        if faults.hang_every and number % faults.hang_every == 0:
            await asyncio.Event().wait()
        if faults.error_every and number % faults.error_every == 0:
            raise Refused(500, f"completion {number} fails, as error_every = {faults.error_every} asks")
        return number

    def after(self, number: int, answer: Response) -> Response:
        """The answer to completion `number`, or only the beginning of it."""
        cut = self.faults.cut_every and number % self.faults.cut_every == 0
        return TruncatedResponse(answer) if cut else answer


class Restarting:
    """Turns everybody away while a restart is under way, but those who ask for faults."""

    def __init__(self, app: ASGIApp, trouble: Trouble) -> None:
        self._app = app
        self._trouble = trouble

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._trouble.starting and scope["path"] != "/faults":
            return await refusal(503, "it is starting")(scope, receive, send)
        await self._app(scope, receive, send)


class TruncatedResponse(Response):
    """The head and the first half of an answer; then the connection ends."""

    def __init__(self, whole: Response) -> None:
        super().__init__(whole.body, whole.status_code, media_type=whole.media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        half = bytes(self.body)[: len(self.body) // 2]
        await send({"type": "http.response.body", "body": half, "more_body": True})  # and no more: it ends there
