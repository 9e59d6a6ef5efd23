"""`sleuth serve --speak`: a model behind the endpoints of vLLM or SGLang."""

from __future__ import annotations

import socket
from pathlib import Path

import typer

from sleuth.cli.heavy import import_heavy
from sleuth.cli.listening import address_of, run, server_of
from sleuth.types import SleuthError


def speak(
    spoken: str,
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
    from sleuth.build import context_of, load_model
    from sleuth.serve.known_host import known_names
    from sleuth.serve.speak.app import speaking_app, speaking_limits
    from sleuth.serve.speak.faults import faults_of
    from sleuth.serve.speak.writer import Writer

    trouble = faults_of(faults)
    loaded, tokenizer = load_model(model, dtype=dtype, device="auto")
    holds = context_of(loaded)
    if context is not None and context > holds:
        raise SleuthError(f"--context {context}: the model holds {holds} tokens; serve with that or fewer")
    limits = speaking_limits(seconds=seconds, waiting=waiting)
    writer = Writer(loaded.eval(), tokenizer, slots=slots, context=context or holds, limits=limits)
    names = known_names(host)
    if names is None:
        typer.echo(
            f"note: whoever reaches {host}:{listening.getsockname()[1]} can ask it, and change its weights: there is "
            "no password",
            err=True,
        )
    raw = None if logprobs is None else logprobs == "raw"
    called = name or (str(Path(model).resolve()) if Path(model).exists() else model)
    app = speaking_app(spoken, called, writer, limits, hosts=names, faults=trouble, raw=raw)
    here = address_of(host, listening)
    typer.echo(f"{called}: speaks as {spoken}, {writer.context} tokens of context, {slots} slots, at {here}")
    run(server_of(app), listening)
