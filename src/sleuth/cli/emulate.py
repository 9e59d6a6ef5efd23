"""`sleuth serve --emulate`: a model behind the endpoints of vLLM or SGLang."""

from __future__ import annotations

import socket
from pathlib import Path

import typer

from sleuth.cli.heavy import import_heavy
from sleuth.cli.listening import address_of, run, server_of
from sleuth.types import SleuthError


def emulate(
    kind: str,
    model: str,
    listening: socket.socket,
    host: str,
    *,
    name: str | None,
    slots: int,
    waiting: int,
    seconds: float,
    context: int | None,
    dtype: str | None,
    faults: list[str],
    logprobs: str | None,
) -> None:
    """Serve until told to stop."""
    import_heavy()
    from sleuth.factories import context_of, load_model
    from sleuth.serve.emulator.app import emulator_app, emulator_limits
    from sleuth.serve.emulator.engine import EmulatedEngine
    from sleuth.serve.emulator.faults import parse_faults
    from sleuth.serve.http.known_host import known_names

    trouble = parse_faults(faults)
    loaded, tokenizer = load_model(model, dtype=dtype, device="auto")
    holds = context_of(loaded)
    if context is not None and context > holds:
        raise SleuthError(f"--context {context}: the model holds {holds} tokens; serve with that or fewer")
    limits = emulator_limits(seconds=seconds, waiting=waiting)
    engine = EmulatedEngine(loaded.eval(), tokenizer, slots=slots, context=context or holds, limits=limits)
    names = known_names(host)
    if names is None:
        typer.echo(
            f"note: whoever reaches {host}:{listening.getsockname()[1]} can ask it, and change its weights: there is "
            "no password",
            err=True,
        )
    raw = None if logprobs is None else logprobs == "raw"
    called = name or (str(Path(model).resolve()) if Path(model).exists() else model)
    app = emulator_app(kind, called, engine, limits, hosts=names, faults=trouble, raw=raw)
    here = address_of(host, listening)
    typer.echo(f"{called}: speaks as {kind}, {engine.context} tokens of context, {slots} slots, at {here}")
    run(server_of(app), listening)
