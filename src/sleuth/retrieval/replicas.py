"""Which server of a pool to ask next, and how often to ask again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FAILURES_TO_OPEN = 3  # in a row, unless one who asks many at once says otherwise; then it is left alone for a while
FIRST_REST, LONGEST_REST = 0.5, 30.0  # seconds; doubled after every trial that fails
RETRIES_SAVED, RETRIES_A_REQUEST = 100.0, 0.2


@dataclass(slots=True)
class Replica:
    """One server. Its circuit is open, and it is not asked, until `rests_until`; then one request tries it."""

    url: str
    failures_to_open: int = FAILURES_TO_OPEN
    in_flight: int = 0
    failures: int = 0
    rest: float = 0.0
    rests_until: float = 0.0

    @property
    def open(self) -> bool:
        """Whether it failed too often, and has not answered since."""
        return self.failures >= self.failures_to_open


class Replicas:
    """Spreads requests by load over the servers that answer (a circuit breaker for each). Times are seconds."""

    def __init__(
        self,
        urls: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
        failures_to_open: int = FAILURES_TO_OPEN,
    ) -> None:
        self.members = [Replica(url, failures_to_open) for url in urls]
        self._clock = clock

    def pick(self, avoid: Sequence[Replica] = ()) -> Replica | None:
        """The least busy one that may be asked, if possible none of those just tried; None while all rest."""
        able = [replica for replica in self.members if self.is_available(replica)]
        fresh = [replica for replica in able if replica not in avoid]
        return min(fresh or able, key=lambda replica: replica.in_flight, default=None)

    def seconds_until_next(self) -> float:
        """How long until a replica that rests may be tried."""
        return max(0.01, min(replica.rests_until for replica in self.members) - self._clock())

    def succeeded(self, replica: Replica) -> None:
        """It answered: its circuit is closed."""
        replica.failures, replica.rest, replica.rests_until = 0, 0.0, 0.0

    def failed(self, replica: Replica) -> None:
        """It did not answer."""
        replica.failures += 1
        if replica.open and self._clock() >= replica.rests_until:  # the many that were under way count as one
            replica.rest = min(LONGEST_REST, replica.rest * 2 or FIRST_REST)
            replica.rests_until = self._clock() + replica.rest

    def is_available(self, replica: Replica) -> bool:
        """Whether its circuit is closed, or its rest is over and nobody tries it."""
        if not replica.open:
            return True
        return replica.in_flight == 0 and self._clock() >= replica.rests_until


class RetryBudget:
    """Retries may be a fifth of the requests, beyond a store for one bad moment: a pool that is down is not stormed."""

    def __init__(self) -> None:
        self._left = RETRIES_SAVED

    def asked(self) -> None:
        """A request was made."""
        self._left = min(RETRIES_SAVED, self._left + RETRIES_A_REQUEST)

    def spend(self) -> bool:
        """Whether one more retry may be made."""
        if self._left < 1:
            return False
        self._left -= 1
        return True
