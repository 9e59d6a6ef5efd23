"""Load balancing over a pool of servers with circuit breakers, and a retry budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FAILURES_TO_OPEN = 3  # consecutive failures that open the circuit, by default
FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0  # seconds; doubled after every failed trial
MAX_SAVED_RETRIES, RETRIES_PER_REQUEST = 100.0, 0.2


@dataclass(slots=True)
class Replica:
    """One server. While its circuit is open it gets no requests until `open_until`; then one request tries it."""

    url: str
    failures_to_open: int = FAILURES_TO_OPEN
    in_flight: int = 0
    failures: int = 0
    pause: float = 0.0
    open_until: float = 0.0

    @property
    def open(self) -> bool:
        """Whether its circuit is open: it failed too often and has not answered since."""
        return self.failures >= self.failures_to_open


class Replicas:
    """Spreads requests by load over the available servers, with a circuit breaker each. Times are in seconds."""

    def __init__(
        self, urls: Sequence[str], clock: Callable[[], float] = time.monotonic, failures_to_open: int = FAILURES_TO_OPEN
    ) -> None:
        self.members = [Replica(url, failures_to_open) for url in urls]
        self._clock = clock

    def pick(self, avoid: Sequence[Replica] = ()) -> Replica | None:
        """The available replica with the fewest requests in flight, preferably not in `avoid`, or None if all pause."""
        available = [replica for replica in self.members if self.is_available(replica)]
        fresh = [replica for replica in available if replica not in avoid]
        return min(fresh or available, key=lambda replica: replica.in_flight, default=None)

    def seconds_until_next(self) -> float:
        """Seconds until a paused replica may be tried."""
        return max(0.01, min(replica.open_until for replica in self.members) - self._clock())

    def succeeded(self, replica: Replica) -> None:
        """Closes the circuit of a replica that answered."""
        replica.failures, replica.pause, replica.open_until = 0, 0.0, 0.0

    def failed(self, replica: Replica) -> None:
        """Counts a failure, which may open the circuit."""
        replica.failures += 1
        if replica.open and self._clock() >= replica.open_until:  # concurrent failures count once
            replica.pause = min(MAX_PAUSE, replica.pause * 2 or FIRST_PAUSE)
            replica.open_until = self._clock() + replica.pause

    def is_available(self, replica: Replica) -> bool:
        """Whether its circuit is closed, or its pause is over and no request is trying it."""
        if not replica.open:
            return True
        return replica.in_flight == 0 and self._clock() >= replica.open_until


class RetryBudget:
    """Limits retries to a fifth of the requests plus a reserve, so that retries do not overload a pool that is down."""

    def __init__(self) -> None:
        self._left = MAX_SAVED_RETRIES

    def record_request(self) -> None:
        """Adds a request's share to the budget."""
        self._left = min(MAX_SAVED_RETRIES, self._left + RETRIES_PER_REQUEST)

    def spend(self) -> bool:
        """Takes one retry from the budget; returns whether there was one."""
        if self._left < 1:
            return False
        self._left -= 1
        return True
