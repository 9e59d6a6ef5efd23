"""`sleuth serve`: a checkpoint for people and programs to ask."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sleuth.cli.emulate import emulate as serve_as
from sleuth.cli.heavy import import_heavy
from sleuth.cli.listening import address_of, listen, run, server_of
from sleuth.cli.modes import Mode
from sleuth.cli.options import ContextTokens, Dialect, ForcedSearch, Index, Precision, Prompt, PromptRole
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.evaluation.eval_session import EvalSession

SERVED = frozenset({"port", "host", "name", "slots", "waiting", "max_seconds", "context", "dtype"})
AGENT = Mode(
    uses=SERVED | {"index", "url", "dialect", "prompt", "prompt_role", "forced_search"},
    why="is for --emulate vllm or --emulate sglang",
)
BARE = Mode(
    uses=SERVED | {"emulate", "fault", "logprobs"},
    why="is for an agent; --emulate serves the bare model, without an environment",
)


def serve(
    typed: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint, a model folder or a hub id.", show_default=False)
    ],
    index: Index = None,
    url: Annotated[
        list[str] | None, typer.Option(help="Instead: a server of an index, such as `sleuth retriever`; repeatable.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="0.0.0.0 lets other machines ask.")] = "127.0.0.1",
    name: Annotated[str | None, typer.Option(help="What clients call the model. [default: its folder]")] = None,
    slots: Annotated[int, typer.Option(min=1, help="Conversations at once; fewer take less memory.")] = 64,
    waiting: Annotated[int, typer.Option(min=0, help="How many more may wait; the next is sent away with 429.")] = 256,
    max_seconds: Annotated[float, typer.Option(min=0.001, help="For one conversation, and to wait for it.")] = 120.0,
    dialect: Dialect = None,
    prompt: Prompt = None,
    prompt_role: PromptRole = None,
    forced_search: ForcedSearch = None,
    context: ContextTokens = None,
    dtype: Precision = None,
    emulate: Annotated[
        Literal["vllm", "sglang"] | None,
        typer.Option(help="Instead: the bare model behind that server's endpoints, to try a pool of them."),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="With --emulate: latency=0.2, error-every=7, hang-every=9, cut-every=9 or stale; repeatable."
        ),
    ] = None,
    logprobs: Annotated[
        Literal["raw", "scaled"] | None,
        typer.Option(help="With --emulate: before temperature, or after. [default: what that server does]"),
    ] = None,
) -> None:
    """Serve a checkpoint over HTTP under the protocol it carries: OpenAI's API, and a page to talk to it.

    GET / is the page; POST /v1/chat/completions asks the agent with its searches, POST /v1/completions the bare model;
    GET /v1/models, /health, /metrics, /openapi.json.

    With --emulate, the bare model behind the endpoints that training needs of vLLM or SGLang (docs/how-to/pool.md).
    """
    (AGENT if emulate is None else BARE).require(typed)
    _require_passages(index, url or [])
    listening = listen(host, port)
    _require_there(model, index)
    if emulate is not None:
        return serve_as(
            emulate,
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

    import_heavy()
    from sleuth.evaluation.eval_session import open_eval_session

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
    )
    if index is None and not url:
        notes.append("without --index or --url, searches find nothing")
    called = name or Path(model).resolve().name
    _serve_agent(session, notes, called, index, listening, host, seconds=max_seconds, waiting=waiting, slots=slots)


def _serve_agent(
    session: EvalSession,
    notes: list[str],
    called: str,
    index: Path | None,
    listening: socket.socket,
    host: str,
    *,
    seconds: float,
    waiting: int,
    slots: int,
) -> None:
    """Serve until told to stop."""
    from sleuth.serve.chat.agent import agent_of
    from sleuth.serve.chat.app import chat_app
    from sleuth.serve.http.known_host import known_names
    from sleuth.serve.http.limits import conversation_limits

    names = known_names(host)
    if names is None:
        notes.append(f"whoever reaches {host}:{listening.getsockname()[1]} can ask: there is no password")
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    agent = agent_of(session, called, index)
    app = chat_app(agent, conversation_limits(seconds=seconds, waiting=waiting), conversations=slots, hosts=names)
    here = address_of(host, listening)
    typer.echo(f"{agent.name}: {agent.dialect.name} dialect, {agent.context} tokens of context, at {here}")
    typer.echo(f"A page to talk to it: {here}/    OpenAI's API: {here}/v1")
    run(server_of(app), listening)


def _require_there(model: str, index: Path | None) -> None:
    from sleuth.model_path import require_model
    from sleuth.plan.inputs import require_index

    require_model(model)
    if index is not None:
        require_index(index)


def _require_passages(index: Path | None, urls: list[str]) -> None:
    if index is not None and urls:
        raise SleuthError("--index and --url are both given: passages come from one of them")
    for address in urls:
        if not address.startswith(("http://", "https://")):
            raise SleuthError(f"--url {address}: expected http://HOST:PORT")
