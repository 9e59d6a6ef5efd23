"""The servers of a pool, found and examined before anything is asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from transformers import PreTrainedTokenizerFast

from sleuth.engines.remote.capabilities import Member, find_abilities
from sleuth.engines.remote.http_client import Line
from sleuth.engines.remote.server import PROBE_SECONDS, find_server
from sleuth.types import SleuthError


def find_member(url: str, *, tokenizer: PreTrainedTokenizerFast, ends: Collection[int]) -> Member:
    """The server at `url` with what it can do. Raises SleuthError where there is none that can be used."""
    try:
        server, _ = find_server(url, None, served_as=None, tokenizer=tokenizer, ends=ends)
    except SleuthError as error:  # of `sleuth eval`, and in its words
        raise SleuthError(f"engine.urls: {str(error).removeprefix('--engine ')}") from None

    async def examine() -> Member:
        line = Line(server.url, seconds=PROBE_SECONDS)
        try:
            return Member(server=server, abilities=await find_abilities(server, line, tokenizer, ends))
        finally:
            await line.aclose()

    return asyncio.run(examine())


def find_members(
    urls: Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerFast,
    ends: Collection[int],
    context: int,
    temperature: float,
    say: Callable[[str], None],
) -> list[Member]:
    """All servers of a pool, each said as it was found. Raises SleuthError for the first that training cannot use."""
    members = []
    for url in urls:
        member = find_member(url, tokenizer=tokenizer, ends=ends)
        say(f"pool: {member}")
        for problem in member.problems(context=context, temperature=temperature):
            raise SleuthError(f"engine.urls: {member.server.url}: {problem}")
        members.append(member)
    return members
