"""The application of an emulated server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from emulator.bodies import field, read_body
from emulator.engine import EmulatedEngine, EngineEmulator
from emulator.faults import FaultInjector, Faults, RestartGate
from emulator.sglang import SglangEmulator
from emulator.vllm import VllmEmulator
from sleuth.render import encode
from sleuth.serve.engine_thread import ClientDisconnected
from sleuth.serve.refused import Refused

EMULATORS: dict[str, type[EngineEmulator]] = {"vllm": VllmEmulator, "sglang": SglangEmulator}
CLIENT_LEFT_STATUS = 499


def emulator_app(
    kind: str,
    name: str,
    engine: EmulatedEngine,
    *,
    faults: Faults | None = None,
    raw: bool | None = None,
    broadcast: bool = False,
) -> Starlette:
    """The application. `raw`: log-probabilities are those before temperature; None is the server's own default.
    `broadcast`: weights may come without a folder, as with vLLM's `--weight-transfer-config`.
    `POST /faults` changes the faults; `{"forget": 2.0}` is a restart of two seconds that loses the weights."""
    fault_injector = FaultInjector(faults or Faults())
    fault_injector.apply(engine)
    emulator = EMULATORS[kind](name, engine, fault_injector, raw=raw, broadcast=broadcast)

    @asynccontextmanager
    async def engine_runs(app: Starlette) -> AsyncIterator[None]:
        engine.engine_thread.start()
        yield
        await engine.engine_thread.stop()

    async def models(request: Request) -> Response:
        card = {"id": name, "object": "model", "owned_by": emulator.owner, "root": name}
        adapters = [card | {"id": adapter, "parent": name} for adapter in engine.adapters]
        return JSONResponse({"object": "list", "data": [card | {"max_model_len": engine.context}, *adapters]})

    async def tokenize(request: Request) -> Response:
        table = await read_body(request, ("model", "prompt", "add_special_tokens"))
        tokens = encode(engine.tokenizer, field(table, "prompt", str, ""))
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": engine.context})

    async def change_faults(request: Request) -> Response:
        table = await request.json()
        if (seconds := table.pop("forget", None)) is not None:
            fault_injector.restart(seconds)
            await engine.restart()
        fault_injector.faults = replace(fault_injector.faults, **table)
        fault_injector.apply(engine)
        return JSONResponse({"asked": fault_injector.completions, "turn_seconds": engine.turn_seconds})

    app = Starlette(
        routes=[
            *emulator.routes(),
            Route("/v1/models", models),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/faults", change_faults, methods=["POST"]),
        ],
        exception_handlers={Refused: _refused, ClientDisconnected: _left},
        lifespan=engine_runs,
    )
    app.add_middleware(RestartGate, injector=fault_injector)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error.response()


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT_STATUS)
