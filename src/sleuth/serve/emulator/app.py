"""`sleuth serve --kind`: our engine behind the endpoints of another server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sleuth.render import encode
from sleuth.serve.emulator.bodies import body_of, field
from sleuth.serve.emulator.engine import EmulatedEngine, EngineEmulator
from sleuth.serve.emulator.faults import Faults, Restarting, Trouble
from sleuth.serve.emulator.sglang import SglangEmulator
from sleuth.serve.emulator.vllm import VllmEmulator
from sleuth.serve.http.event_stream import ClientLeft
from sleuth.serve.http.known_host import KnownHost
from sleuth.serve.http.limits import BodyLimit, Limits, RequestLimit
from sleuth.serve.http.refused import Refused, refusal

EMULATORS: dict[str, type[EngineEmulator]] = {"vllm": VllmEmulator, "sglang": SglangEmulator}
OTHER_REQUESTS = 64  # at once, beyond completions: questions about the server, and bodies that still arrive
LEFT = 499


def emulator_limits(*, seconds: float = 600.0, waiting: int = 1024) -> Limits:
    """A body holds a prompt of some hundred thousand tokens; a trainer's requests all come at once."""
    return Limits(body_bytes=4 * 2**20, seconds=seconds, waiting=waiting)


def emulator_app(
    kind: str,
    name: str,
    engine: EmulatedEngine,
    limits: Limits,
    *,
    hosts: Collection[str] | None,
    faults: Faults | None = None,
    raw: bool | None = None,
) -> Starlette:
    """The application. `raw` says whether log-probabilities are those before temperature; None is the server's own
    default. `POST /faults` changes what goes wrong; `{"forget": 2.0}` is a restart of two seconds that forgets the
    weights."""
    trouble = Trouble(faults or Faults())
    engine.stale = trouble.faults.stale
    emulator = EMULATORS[kind](name, engine, trouble, raw=raw)

    @asynccontextmanager
    async def engine_runs(app: Starlette) -> AsyncIterator[None]:
        engine.room.start()
        yield
        await engine.room.stop()

    async def models(request: Request) -> Response:
        card = {
            "id": name,
            "object": "model",
            "owned_by": emulator.owner,
            "root": name,
            "max_model_len": engine.context,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def tokenize(request: Request) -> Response:
        asked = await body_of(request, ("model", "prompt", "add_special_tokens"))
        tokens = encode(engine.tokenizer, field(asked, "prompt", str, ""))
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": engine.context})

    async def change_faults(request: Request) -> Response:
        asked: dict[str, Any] = await request.json()
        if (seconds := field(asked, "forget", float, None)) is not None:
            trouble.restart(seconds)
            await engine.forget()
            del asked["forget"]
        trouble.faults = trouble.faults.changed(asked)
        engine.stale = trouble.faults.stale
        return JSONResponse({"asked": trouble.asked})

    app = Starlette(
        routes=[
            *emulator.routes(),
            Route("/v1/models", models),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/faults", change_faults, methods=["POST"]),
        ],
        exception_handlers={Refused: _refused, HTTPException: _wrong_request, ClientLeft: _left},
        lifespan=engine_runs,
    )
    app.add_middleware(Restarting, trouble=trouble)
    app.add_middleware(BodyLimit, limits=limits, refusal=refusal)
    if hosts is not None:
        app.add_middleware(KnownHost, names=hosts)
    app.add_middleware(RequestLimit, most=limits.waiting + OTHER_REQUESTS)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error.response()


async def _wrong_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, str(error.detail), error.headers)


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=LEFT)
