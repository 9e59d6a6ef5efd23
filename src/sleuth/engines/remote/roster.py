"""Which servers a pool should have while it is used, by a list of URLs that may change meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from threading import Thread

from sleuth.engines.remote.server import DiscoveredServer
from sleuth.types import SleuthError

RETRY_SECONDS = 10.0
"""Before a server that could not be used is asked again."""


class Roster:
    """The servers that `read` lists at any time. New ones are asked by `discover` what they can do, each in a thread of
    its own, so that one that hangs delays nobody. Both raise SleuthError; a reason is logged once."""

    def __init__(
        self,
        read: Callable[[], Sequence[str]],
        discover: Callable[[str], DiscoveredServer],
        log: Callable[[str], None],
    ) -> None:
        self._read, self._discover, self._log = read, discover, log
        self._asked: dict[str, Future[DiscoveredServer]] = {}
        self._refused: dict[str, tuple[str, float]] = {}  # why, and when to ask again
        self._problem = ""  # of the list, as it was read last

    def changes(self, members: Collection[str]) -> tuple[list[str], list[DiscoveredServer]]:
        """Of a pool of the servers `members` those that are no longer listed, and servers that can join it. Returns at
        once. A list that cannot be read changes nothing."""
        try:
            listed = self._read()
        except SleuthError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._log(f"pool: {error}; its servers stay as they are until that is mended")
            return [], []
        self._problem = ""
        self._refused = {url: refused for url, refused in self._refused.items() if url in listed}
        for url in listed:
            if url not in members and url not in self._asked and time.monotonic() >= self._refused.get(url, ("", 0))[1]:
                self._asked[url] = asked = Future()
                Thread(target=self._ask, args=(url, asked), name=f"asks {url}", daemon=True).start()
        joining = []
        for url in [url for url, asked in self._asked.items() if asked.done()]:
            asked = self._asked.pop(url)
            if (error := asked.exception()) is not None:
                self.refuse(url, str(error))
            elif url in listed:
                joining.append(asked.result())
        return [url for url in members if url not in listed], joining

    def refuse(self, url: str, reason: str) -> None:
        """Logs why a server does not join, unless that was logged before. It is asked again later."""
        if self._refused.get(url, ("", 0))[0] != reason:
            self._log(f"pool: {reason.removeprefix('engine.urls: ')}; it does not join until that is mended")
        self._refused[url] = reason, time.monotonic() + RETRY_SECONDS

    def _ask(self, url: str, asked: Future[DiscoveredServer]) -> None:
        try:
            asked.set_result(self._discover(url))
        except Exception as error:  # raised where the result is asked for
            asked.set_exception(error)
