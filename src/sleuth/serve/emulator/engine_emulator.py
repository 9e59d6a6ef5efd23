"""What both servers that we speak as have in common."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sleuth.serve.emulator.engine import EmulatedEngine
from sleuth.serve.emulator.faults import Trouble
from sleuth.types import Completion, Sampling


class EngineEmulator(ABC):
    """The endpoints of a server, over a `engine` that is called `name`. `raw` log-probabilities are those before
    temperature; None is as that server has it."""

    owner: ClassVar[str]
    """Whom its list of models names."""
    raw_by_default: ClassVar[bool]

    def __init__(self, name: str, engine: EmulatedEngine, trouble: Trouble, *, raw: bool | None = None) -> None:
        self.name = name
        self.engine = engine
        self.trouble = trouble
        self.raw = self.raw_by_default if raw is None else raw
        self.numbers = itertools.count()  # of completions, for those without a seed

    @abstractmethod
    def routes(self) -> list[Route]:
        """All that is spoken."""

    async def health(self, request: Request) -> Response:
        """Whether it can be asked: no words."""
        return Response(status_code=200 if self.engine.room.is_open else 503)

    async def logprobs(self, prompt: Sequence[int], written: Completion, sampling: Sampling) -> Sequence[float]:
        """Those of a completion, as this server tells them; of greedy ones both tell them at temperature 1."""
        if self.raw and sampling.temperature not in (0.0, 1.0):
            return await self.engine.raw_logprobs(prompt, written.tokens)
        return written.logprobs or ()
