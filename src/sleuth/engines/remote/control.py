"""What a trainer tells a server besides what to write: one seam, and a file for each server."""

from __future__ import annotations

from typing import Protocol

from sleuth.engines.remote.http_client import HttpClient, HttpClientError
from sleuth.engines.remote.published import Published

FIRST_WEIGHTS = "default"
"""What both servers call the weights that they began with: one that says so was started anew."""

LOAD_SECONDS = 600.0  # for weights to be read; a shared folder may be far away


class NotLoadedError(HttpClientError):
    """The server could not take the weights; the message is in its words."""


class Control(Protocol):
    """One server's way of being told. Everything raises LineError where the server does not do it."""

    with_answers: bool
    """Whether every completion carries the name of the weights that wrote it; else it is asked for."""

    async def weights(self, client: HttpClient) -> str:
        """What the server calls the weights that it has now."""
        ...

    async def load(self, client: HttpClient, published: Published) -> None:
        """Take these weights and their label, and forget what was read with others; nothing is under way."""
        ...

    async def sleep(self, client: HttpClient) -> None:
        """Give the card's memory back, weights too; nothing is under way. What follows is `load`, then `wake`."""
        ...

    async def reserve(self, client: HttpClient) -> None:
        """Between `sleep` and `load`: take memory for the weights."""
        ...

    async def wake(self, client: HttpClient) -> None:
        """After `load`: take the rest of the memory."""
        ...
