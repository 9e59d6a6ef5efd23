"""`sleuth serve`: a checkpoint behind HTTP, as an agent that searches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sleuth.cli.http_server import ApiKey, Host, Insecure, PerClient, access_of, address_of, listen, run, server_of
from sleuth.host.threads import PROCESS
from sleuth.terminal import options
from sleuth.terminal.inputs import require_engine, require_inputs, require_passages
from sleuth.training.heavy import import_heavy


def serve(
    model: options.Model,
    index: options.Index = None,
    url: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Search a server such as `sleuth retriever`; repeat it for each replica."),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Questions of which the page offers three. [default: those that its run was evaluated with]",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    host: Host = "127.0.0.1",
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The name of the model for clients. [default: its folder]")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Conversations at once at most.")] = 64,
    cache_memory: options.CacheMemory = None,
    waiting: Annotated[
        int, typer.Option(min=0, help="Conversations that may wait; further ones are refused with 429.")
    ] = 256,
    max_seconds: Annotated[
        float, typer.Option(min=0.001, help="Longest time of a conversation, and of waiting for it.")
    ] = 120.0,
    dialect: options.Dialect = None,
    prompt: options.Prompt = None,
    prompt_role: options.PromptRole = None,
    forced_search: options.ForcedSearch = None,
    context: options.ContextTokens = None,
    dtype: options.Precision = None,
    engine: options.Engine = None,
    served_as: options.ServedAs = None,
    api_key: ApiKey = None,
    insecure: Insecure = False,
    per_client: PerClient = None,
) -> None:
    """Serve a checkpoint: OpenAI's API, and a page to talk to it.

    GET / is the page; POST /v1/chat/completions and /v1/responses ask the agent with its searches; GET /v1/models,
    /health, /metrics, /openapi.json. The protocol is the checkpoint's own. With --engine, an SGLang or vLLM server
    generates.
    """
    require_passages(index, "--url", url or [])
    require_engine(engine, served_as, {"--dtype": dtype, "--cache-memory": cache_memory})
    listening = listen(host, port)
    access = access_of(host, api_key=api_key, insecure=insecure, per_client=per_client)
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
        cache_memory=cache_memory,
        dtype=dtype,
        engine=engine,
        served_as=served_as,
    )
    if access.hosts is None and access.key is None:
        notes.append(f"whoever reaches {host}:{listening.getsockname()[1]} can ask: there is no password")
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    examples = example_questions(model, session.setting.dialect, tasks)
    agent = agent_of(session, name or Path(model).resolve().name, index, examples)
    limits = conversation_limits(seconds=max_seconds, waiting=waiting)
    app = chat_app(agent, limits, conversations=slots, access=access)
    address = address_of(host, listening)
    typer.echo(f"{agent.name}: {agent.dialect.name} dialect, {agent.context} tokens of context, at {address}")
    typer.echo(f"A page to talk to it: {address}/    OpenAI's API: {address}/v1")
    PROCESS.announce()
    run(server_of(app), listening)
