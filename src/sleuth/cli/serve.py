"""`sleuth serve` and `sleuth retriever`: a checkpoint as an agent that searches, and an index, behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from sleuth.cli.http_server import (
    LOOPBACK,
    ApiKey,
    Host,
    Insecure,
    access_of,
    address_of,
    listen,
    run,
    server_of,
)
from sleuth.host.threads import PROCESS
from sleuth.terminal import options
from sleuth.terminal.inputs import require_engine, require_inputs, require_passages
from sleuth.terminal.tables import print_notes
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError

PORT = 8000


def serve(
    model: options.Model,
    index: options.Index = None,
    url: options.Retrievers = None,
    questions: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Questions of which the page offers three. [default: those that its run was evaluated with]",
        ),
    ] = None,
    port: Annotated[int, Option(min=0, max=65535, help="0 takes a free one.")] = PORT,
    host: Host = LOOPBACK,
    name: Annotated[
        str | None, Option(metavar="NAME", help="The name of the model for clients. [default: its folder]")
    ] = None,
    slots: Annotated[int, Option(min=1, help="Conversations at once at most.")] = 64,
    waiting: Annotated[
        int, Option(min=0, help="Conversations that may wait; further ones are refused with 429.")
    ] = 256,
    max_seconds: Annotated[
        float, Option(min=0.001, help="Longest time of a conversation, and of waiting for it.")
    ] = 120.0,
    dialect: options.Dialect = None,
    prompt: options.Prompt = None,
    prompt_role: options.PromptRole = None,
    forced_search: options.ForcedSearch = None,
    context: options.ContextTokens = None,
    dtype: options.Precision = None,
    engine: options.Engine = None,
    served_as: options.ServedAs = None,
    allow_code: options.AllowCode = False,
    api_key: ApiKey = None,
    insecure: Insecure = False,
) -> None:
    """Serve a checkpoint: OpenAI's API, and a page to talk to it.

    GET / is the page; POST /v1/chat/completions asks the agent with its searches; GET /v1/models, /health. The protocol
    is the checkpoint's own. With --engine, a server generates.
    """
    require_passages(index, "--url", url or [])
    require_engine(engine, served_as, {"--dtype": dtype})
    listening = listen(host, port)
    access = access_of(host, api_key=api_key, insecure=insecure)
    require_inputs([model], questions=questions, index=index)
    from sleuth.data.questions import load_questions

    tasks = load_questions(questions) if questions is not None else []
    import_heavy()
    from sleuth.evaluation.eval_session import open_eval_session
    from sleuth.serve.access import conversation_limits
    from sleuth.serve.agent import agent_of, example_questions
    from sleuth.serve.chat_app import chat_app

    session, notes = open_eval_session(
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
        engine=engine,
        served_as=served_as,
        allow_code=allow_code,
        without_agent=True,
    )
    if access.hosts is None and access.key is None:
        notes.append(f"whoever reaches {host}:{listening.getsockname()[1]} can ask: there is no password")
    print_notes(notes)
    examples = example_questions(model, session.setting.dialect, tasks)
    agent = agent_of(session, name or Path(model).resolve().name, index, examples)
    limits = conversation_limits(seconds=max_seconds, waiting=waiting)
    app = chat_app(agent, limits, conversations=slots, access=access)
    address = address_of(host, listening)
    typer.echo(f"{agent.name}: {agent.dialect.name} dialect, {agent.context} tokens of context, at {address}")
    typer.echo(f"A page to talk to it: {address}/    OpenAI's API: {address}/v1")
    PROCESS.announce()
    run(server_of(app), listening)


def retriever(
    folder: Annotated[Path, Argument(metavar="DIR", help="An index.")],
    port: Annotated[int, Option(min=0, max=65535, help="0 takes a free one.")] = PORT,
    host: Host = LOOPBACK,
    mcp: Annotated[bool, Option("--mcp", help="Tools for clients of MCP too.")] = False,
    max_seconds: Annotated[
        float, Option(min=0.001, help="Longest time of an answer; a larger index needs more.")
    ] = 60.0,
    device: Annotated[
        Literal["cpu", "cuda"], Option(help="Where flat vectors are searched: cuda splits them over all cards.")
    ] = "cpu",
    api_key: ApiKey = None,
    insecure: Insecure = False,
) -> None:
    """Serve an index over HTTP, for Sleuth and other trainers.

    In the dialects of Search-R1, slime, SkyRL and ReSearch: POST /retrieve, POST /batch_search; GET /health.
    With --mcp the tools search(query, k) and open(id) for agents, at /mcp.
    """
    from sleuth.serve.access import Limits
    from sleuth.serve.retriever_app import retriever_app
    from sleuth.serve.search_handler import IndexLoader

    limits = Limits(seconds=max_seconds)
    opening = IndexLoader(folder, device)
    listening = listen(host, port)
    access = access_of(host, api_key=api_key, insecure=insecure)
    server = server_of(retriever_app(opening, limits, access, mcp=mcp))
    opening.start(failed=lambda: setattr(server, "should_exit", True))
    address = address_of(host, listening)
    typer.echo(f"{folder}: {opening.card.count:,} passages, {opening.card.kind}, at {address}")
    typer.echo(f"Ready when {address}/health says so. Search-R1, slime, SkyRL: {address}/retrieve")
    if mcp:
        typer.echo(f"Clients of MCP: {address}/mcp")
    run(server, listening)
    if opening.error:
        raise SleuthError(opening.error)
