"""`sleuth serve`: a checkpoint for people and programs to ask."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sleuth.cli.listening import address_of, listen, run, server_of
from sleuth.cli.speak import speak as serve_as
from sleuth.types import SleuthError


def serve(
    model: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint, a model folder or a hub id.", show_default=False)
    ],
    index: Annotated[Path | None, typer.Option(help="The index to search; without one, searches find nothing.")] = None,
    url: Annotated[
        list[str] | None, typer.Option(help="Instead: a server of an index, such as `sleuth retriever`; repeatable.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="0.0.0.0 lets other machines ask.")] = "127.0.0.1",
    name: Annotated[str | None, typer.Option(help="What clients call the model. [default: its folder]")] = None,
    slots: Annotated[int, typer.Option(min=1, help="Conversations at once; fewer take less memory.")] = 64,
    waiting: Annotated[int, typer.Option(min=0, help="How many more may wait; the next is sent away with 429.")] = 256,
    max_seconds: Annotated[float, typer.Option(min=0.001, help="For one conversation, and to wait for it.")] = 120.0,
    dialect: Annotated[
        str | None, typer.Option(help="Search protocol, for a model that carries none, or to try another.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="A prompt by its name, or a file, likewise.")] = None,
    prompt_role: Annotated[
        Literal["raw", "user", "system"] | None,
        typer.Option(help="The prompt as it is, or as a message of the chat template, likewise."),
    ] = None,
    forced_search: Annotated[
        bool | None, typer.Option(help="Open the first search for the model. [default: as it was trained]")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Longest episode in tokens. [default: what the model was trained with]")
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(help="Precision. [default: float32 on a CPU, what the weights are stored in on a GPU]"),
    ] = None,
    speak: Annotated[
        Literal["vllm", "sglang"] | None,
        typer.Option(help="Instead: the bare model behind that server's endpoints, to try a pool of them."),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(help="With --speak: latency=0.2, error-every=7, hang-every=9, cut-every=9 or stale; repeatable."),
    ] = None,
    logprobs: Annotated[
        Literal["raw", "scaled"] | None,
        typer.Option(help="With --speak: before temperature, or after. [default: what that server does]"),
    ] = None,
) -> None:
    """Serve a checkpoint over HTTP under the protocol it carries: OpenAI's API, and a page to talk to it.

    GET / is the page; POST /v1/chat/completions asks the agent with its searches, POST /v1/completions the bare model;
    GET /v1/models, /health, /metrics, /openapi.json.

    With --speak, the bare model behind the endpoints that training needs of vLLM or SGLang (docs/pools.md).
    """
    if index is not None and url:
        raise SleuthError("--index and --url are both given: passages come from one of them")
    for address in url or ():
        if not address.startswith(("http://", "https://")):
            raise SleuthError(f"--url {address}: expected http://HOST:PORT")
    if speak is None and (fault or logprobs):
        raise SleuthError(f"{'--fault' if fault else '--logprobs'} is for --speak vllm or --speak sglang")
    listening = listen(host, port)
    if speak is not None:
        _require_bare(index, url, dialect, prompt, prompt_role, forced_search)
        return serve_as(
            speak,
            model,
            listening,
            host,
            name=name,
            slots=slots,
            waiting=waiting,
            seconds=max_seconds,
            context=context,
            dtype=dtype,
            faults=fault or [],
            logprobs=logprobs,
        )

    from sleuth.serve.agent import agent_of
    from sleuth.serve.chat_app import chat_app
    from sleuth.serve.known_host import known_names
    from sleuth.serve.limits import conversation_limits
    from sleuth.stages.examination import examination_of

    examination, notes = examination_of(
        model,
        [],
        index=index,
        urls=url or (),
        dialect=dialect,
        prompt=prompt,
        prompt_role=prompt_role,
        forced_search=forced_search,
        context=context,
        slots=slots,
        dtype=dtype,
    )
    if index is None and not url:
        notes.append("without --index or --url, searches find nothing")
    names = known_names(host)
    if names is None:
        notes.append(f"whoever reaches {host}:{listening.getsockname()[1]} can ask: there is no password")
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    agent = agent_of(examination, name or Path(model).resolve().name, index)
    app = chat_app(agent, conversation_limits(seconds=max_seconds, waiting=waiting), seats=slots, hosts=names)
    here = address_of(host, listening)
    typer.echo(f"{agent.name}: {agent.dialect.name} dialect, {agent.context} tokens of context, at {here}")
    typer.echo(f"A page to talk to it: {here}/    OpenAI's API: {here}/v1")
    run(server_of(app), listening)


def _require_bare(*protocol: object) -> None:
    names = ("--index", "--url", "--dialect", "--prompt", "--prompt-role", "--forced-search")
    given = [name for name, value in zip(names, protocol, strict=True) if value]
    if given:
        raise SleuthError(f"{given[0]} is for an agent; --speak serves the bare model, without an environment")
