"""A cache of verdicts on disk, keyed by the item and the judge, shared by siblings, resumed runs and later runs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, Self

from sleuth.host.connections import CallClock
from sleuth.types import AnySheet, Case, Judge, Pair, SleuthError, Verdict

Item = Case | AnySheet | Pair

FORMAT = 1  # sqlite's user_version
APPLICATION_ID = 0x51E07
BUSY_SECONDS = 30.0  # timeout for another process's write lock
CLAIMED_SECONDS = 0.02  # between looks at verdicts that another rank is asking for


class VerdictCache:
    """An sqlite file of verdicts, each durable against a kill of the process once `put` returns. Several processes may
    share it on a local disk (sqlite's locks do not hold on every network disk); threads of one process always may, and
    whoever is about to pay for verdicts has a claim on them."""

    def __init__(self, path: Path) -> None:
        """Opens or creates `path`. Raises SleuthError if it is another kind of file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._lock, self._claimed = Lock(), set[str]()
        try:
            self._file = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._require_ours(path)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, judge TEXT NOT NULL, verdict TEXT NOT NULL)"
            )
            self._file.execute("CREATE TABLE IF NOT EXISTS calls (judge TEXT PRIMARY KEY, calls INTEGER NOT NULL)")
            self._file.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._file.execute(f"PRAGMA user_version = {FORMAT}")
        except sqlite3.Error as error:
            raise SleuthError(f"{path}: the verdict cache could not be opened: {error}") from None

    def get(self, key: str) -> Verdict | None:
        """The verdict stored under a key; None if there is none."""
        row = self._file.execute("SELECT verdict FROM verdicts WHERE key = ?", (key,)).fetchone()
        return Verdict(**json.loads(row[0])) if row else None

    def claim(self, keys: Sequence[str]) -> list[Verdict] | None:
        """The verdicts under these keys if all are stored. Else none, and the caller has the claim on them until it
        calls `release`; None if another has it."""
        with self._lock:
            if keys[0] in self._claimed:
                return None
            stored = [verdict for key in keys if (verdict := self.get(key)) is not None]
            if len(stored) == len(keys):
                return stored
            self._claimed.add(keys[0])
            return []

    def release(self, keys: Sequence[str]) -> None:
        """Ends a claim, whatever came of it."""
        self._claimed.discard(keys[0])

    def put(self, key: str, judge: str, verdict: Verdict) -> None:
        """Stores a verdict; the first one under a key stays. Raises SleuthError if the disk is full, since to go on
        would mean paying for it twice."""
        row = (key, judge, json.dumps(asdict(verdict)))
        self._write("a verdict could not be stored", "INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?)", row)

    def calls(self, judge: str) -> int:
        """The calls of a judge that `count_call` has counted."""
        row = self._file.execute("SELECT calls FROM calls WHERE judge = ?", (judge,)).fetchone()
        return row[0] if row else 0

    def count_call(self, judge: str, budget: int) -> int:
        """Counts a call of a judge, durably, unless `budget` calls were made; the calls that were made before. Raises
        SleuthError if the disk is full."""
        with self._lock:
            if (made := self.calls(judge)) < budget:
                counted = "INSERT INTO calls VALUES (?, 1) ON CONFLICT (judge) DO UPDATE SET calls = calls + 1"
                self._write("a call could not be counted", counted, (judge,))
            return made

    def _write(self, problem: str, statement: str, row: tuple[str, ...]) -> None:
        try:
            self._file.execute(statement, row)
        except sqlite3.Error as error:
            raise SleuthError(f"{self._path}: {problem}: {error}; free disk space") from None

    def close(self) -> None:
        """Closes the file; every stored verdict is in it already."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _require_ours(self, path: Path) -> None:
        [tables] = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()
        [application] = self._file.execute("PRAGMA application_id").fetchone()
        [version] = self._file.execute("PRAGMA user_version").fetchone()
        if tables and (application, version) != (APPLICATION_ID, FORMAT):
            raise SleuthError(f"{path}: is not a verdict cache of this version; name another file")


class NamedJudge(Judge, Protocol):
    """A judge whose `identity` changes whenever the same case could get another verdict."""

    @property
    def identity(self) -> str: ...


VERDICT_RETRIES = 8
"""Further requests for a missing verdict of a served judge. Missing scores should be rare: answers that need many
verdicts lose their score more often, and the rest of the group would then train the policy to need few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """A missing verdict is requested up to `retries` times more, within `seconds` of the first request: that helps with
    servers that fail now and then, not with questions that they cannot answer."""

    retries: int = 0
    seconds: float = math.inf


NO_RETRIES = RetryLimits()
NOT_CACHED = Verdict(score=None, reason="the verdict is not cached, and no judge may be called")


class CachedJudge:
    """A `Judge`, `SheetJudge` and `PairJudge` that caches the verdicts of another one, as far as that is each of them;
    without a `judge`, an uncached verdict is missing. Sheets are stored as a whole, and both orders of a pair.

    Each question is asked by itself, so that its verdicts are stored as they arrive, and equal ones once. An invalid
    verdict is stored too, since its call was paid for; a missing one is not. `tally` counts the questions.
    """

    def __init__(
        self, judge: Any, cache: VerdictCache, retry_limits: RetryLimits = NO_RETRIES, *, identity: str = ""
    ) -> None:
        self.identity = identity or judge.identity
        self.tally, self.clock = Tally(), CallClock()
        self._judge = judge
        self._cache = cache
        self._retry_limits = retry_limits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: dict[str, asyncio.Task[list[Verdict]]] = {}

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """As `Judge.judge`."""
        return [verdict for [verdict] in await self._get(cases)]

    async def rate(self, sheets: Sequence[AnySheet]) -> list[list[Verdict]]:
        """As `SheetJudge.rate`."""
        return await self._get(sheets)

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """As `PairJudge.compare`."""
        return [verdict for [verdict] in await self._get(pairs)]

    async def _get(self, items: Sequence[Item]) -> list[list[Verdict]]:
        if self._loop is not asyncio.get_running_loop():  # another `asyncio.run`: tasks of the last one never end
            self._loop, self._pending = asyncio.get_running_loop(), {}
        return await asyncio.gather(*(self._verdicts(item) for item in items))

    async def _verdicts(self, item: Item) -> list[Verdict]:
        [first, *_] = keys = self._keys(item)
        if first in self._pending:
            self.tally.cached += 1
        else:
            self._pending[first] = asyncio.ensure_future(self._fetch(keys, item))
        verdicts = await asyncio.shield(self._pending[first])  # another caller may wait for the same task
        return list(map(self.tally.enter, verdicts))

    async def _fetch(self, keys: Sequence[str], item: Item) -> list[Verdict]:
        """The stored verdicts, or else the judge's, once nobody else is asking it for them."""
        pending = self._pending
        try:
            while (stored := self._cache.claim(keys)) is None:
                await asyncio.sleep(CLAIMED_SECONDS)
            self.tally.asked += not stored
            self.tally.cached += bool(stored)
            return stored or await self._paid(keys, item)
        finally:
            del pending[keys[0]]

    async def _paid(self, keys: Sequence[str], item: Item) -> list[Verdict]:
        """The judge's verdicts, stored and no longer claimed."""
        limits = NO_RETRIES if isinstance(item, Pair) else self._retry_limits
        deadline = time.monotonic() + limits.seconds
        try:
            verdicts = await self._ask(item, len(keys))
            for _ in range(limits.retries):
                if all(map(_is_answered, verdicts)) or time.monotonic() > deadline:
                    break
                verdicts = await self._ask(item, len(keys))
            for key, verdict in zip(keys, verdicts, strict=True):
                if _is_answered(verdict):
                    self._cache.put(key, self.identity, verdict)
            return verdicts
        finally:
            self._cache.release(keys)

    async def _ask(self, item: Item, count: int) -> list[Verdict]:
        if self._judge is None:
            return [NOT_CACHED] * count
        with self.clock.waiting():
            if isinstance(item, Case):
                return await self._judge.judge([item])
            if isinstance(item, Pair):
                return await self._judge.compare([item])
            [verdicts] = await self._judge.rate([item])
            return verdicts

    def _keys(self, item: Item) -> list[str]:
        """One key per verdict on the item."""
        parts = [self.identity, type(item).__name__, asdict(item)]
        key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        return [key] if isinstance(item, Case | Pair) else [f"{key}/{index}" for index in range(len(item.cases))]


def _is_answered(verdict: Verdict) -> bool:
    """Whether the judge answered, even if invalidly."""
    return verdict.score is not None or verdict.invalid


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of questions `asked` of the judge or `cached` (stored or pending), and of `missing` and `invalid` verdicts
    on both. A sheet is one question."""

    asked: int = 0
    cached: int = 0
    missing: int = 0
    invalid: int = 0

    def enter(self, verdict: Verdict) -> Verdict:
        """Counts a verdict and returns it."""
        self.missing += verdict.score is None and not verdict.invalid
        self.invalid += verdict.invalid
        return verdict

    def take(self) -> dict[str, int]:
        """The counts since the last call."""
        counts = asdict(self)
        for field in fields(self):
            setattr(self, field.name, 0)
        return counts
