"""The servers of a pool, found and examined before anything is asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from transformers import PreTrainedTokenizerFast

from sleuth.engines.remote.capabilities import DiscoveredServer, find_capabilities
from sleuth.engines.remote.http_client import HttpClient
from sleuth.engines.remote.server import PROBE_SECONDS, find_server
from sleuth.types import SleuthError


def discover_server(url: str, *, tokenizer: PreTrainedTokenizerFast, ends: Collection[int]) -> DiscoveredServer:
    """The server at `url` with what it can do. Raises SleuthError where there is none that can be used."""
    try:
        server, _ = find_server(url, None, served_as=None, tokenizer=tokenizer, ends=ends)
    except SleuthError as error:  # of `sleuth eval`, and in its words
        raise SleuthError(f"engine.urls: {str(error).removeprefix('--engine ')}") from None

    async def probe_capabilities() -> DiscoveredServer:
        client = HttpClient(server.url, seconds=PROBE_SECONDS)
        try:
            return DiscoveredServer(
                server=server, capabilities=await find_capabilities(server, client, tokenizer, ends)
            )
        finally:
            await client.aclose()

    return asyncio.run(probe_capabilities())


def discover_servers(
    urls: Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerFast,
    ends: Collection[int],
    context: int,
    temperature: float,
    say: Callable[[str], None],
) -> list[DiscoveredServer]:
    """All servers of a pool, each said as it was found. Raises SleuthError for the first that training cannot use."""
    servers = []
    for url in urls:
        discovered = discover_server(url, tokenizer=tokenizer, ends=ends)
        say(f"pool: {discovered}")
        for problem in discovered.problems(context=context, temperature=temperature):
            raise SleuthError(f"engine.urls: {discovered.server.url}: {problem}")
        servers.append(discovered)
    return servers
