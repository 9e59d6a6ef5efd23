"""Verdicts by what was judged and by whom: what was paid for once is not paid for again, in a run that was killed, in
the next one, and among siblings that claim the same."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from sleuth.types import Case, Judge, Pair, PairJudge, Sheet, SheetJudge, SleuthError, Verdict

Item = TypeVar("Item", Case, Sheet, Pair)
Ask = Callable[[Sequence[Item]], Awaitable[list[list[Verdict]]]]
"""Who is asked: the verdicts on each item."""

FORMAT = 1  # sqlite's user_version
MARK = 0x51E07  # sqlite's application_id
BUSY_SECONDS = 30.0  # to wait for another process that writes


class VerdictCache:
    """An sqlite file of verdicts. Each is in it when `put` returns, and stays if the process is killed the next moment.
    Several processes may share it, on a disk of the machine (sqlite's locks do not hold on every network disk)."""

    def __init__(self, path: Path) -> None:
        """Opens `path`, or makes it. Raises SleuthError where it is something else."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        try:
            self._file = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._require_ours(path)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, judge TEXT NOT NULL, verdict TEXT NOT NULL)"
            )
            self._file.execute(f"PRAGMA application_id = {MARK}")
            self._file.execute(f"PRAGMA user_version = {FORMAT}")
        except sqlite3.Error as error:
            raise SleuthError(f"{path}: no cache of verdicts could be opened there: {error}") from None

    def get(self, key: str) -> Verdict | None:
        """The verdict of a key, if it is known."""
        row = self._file.execute("SELECT verdict FROM verdicts WHERE key = ?", (key,)).fetchone()
        return Verdict(**json.loads(row[0])) if row else None

    def put(self, key: str, judge: str, verdict: Verdict) -> None:
        """Keep a verdict; the first one of a key stays. Raises SleuthError where there is no room for it: to go on
        would be to pay for it twice."""
        row = (key, judge, json.dumps(asdict(verdict)))
        try:
            self._file.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?)", row)
        except sqlite3.Error as error:
            raise SleuthError(f"{self._path}: a verdict could not be kept there: {error}; make room") from None

    def close(self) -> None:
        """What was put is in the file already."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _require_ours(self, path: Path) -> None:
        [tables] = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()
        [mark] = self._file.execute("PRAGMA application_id").fetchone()
        [version] = self._file.execute("PRAGMA user_version").fetchone()
        if tables and (mark, version) != (MARK, FORMAT):
            raise SleuthError(f"{path}: is no cache of verdicts of this version; name another file")


class NamedJudge(Judge, Protocol):
    """A judge whose `identity` changes whenever the same case could get another verdict."""

    @property
    def identity(self) -> str: ...


class NamedSheetJudge(SheetJudge, Protocol):
    """As `NamedJudge`, of sheets."""

    @property
    def identity(self) -> str: ...


class NamedPairJudge(PairJudge, Protocol):
    """As `NamedJudge`, of pairs."""

    @property
    def identity(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """A verdict that is missing is asked for up to `again` times more, but not once `seconds` have gone by since it was
    first asked for: that helps with servers that fail now and then, and not with questions that they cannot answer."""

    again: int = 0
    seconds: float = math.inf


NONE = RetryLimits()


class CachedJudge:
    """A `Judge` that remembers what another one said; `tally` counts what it was asked."""

    def __init__(self, judge: NamedJudge, cache: VerdictCache, retry_limits: RetryLimits = NONE) -> None:
        self.identity = judge.identity
        self.tally = Tally()
        self._verdicts = _Remembered(_singly(judge.judge), judge.identity, cache, self.tally, retry_limits)

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """As `Judge.judge`; asks for what is not known yet."""
        return [verdict for [verdict] in await self._verdicts.of(cases)]


class CachedSheetJudge:
    """A `SheetJudge` that remembers what another one said, of each sheet as a whole; `tally` counts the sheets."""

    def __init__(self, judge: NamedSheetJudge, cache: VerdictCache, retry_limits: RetryLimits = NONE) -> None:
        self.identity = judge.identity
        self.tally = Tally()
        self._verdicts = _Remembered(judge.rate, judge.identity, cache, self.tally, retry_limits)

    async def rate(self, sheets: Sequence[Sheet]) -> list[list[Verdict]]:
        """As `SheetJudge.rate`; asks for what is not known yet."""
        return await self._verdicts.of(sheets)


class CachedPairJudge:
    """A `PairJudge` that remembers what another one said, of each order by itself; `tally` counts the orders."""

    def __init__(self, judge: NamedPairJudge, cache: VerdictCache) -> None:
        self.identity = judge.identity
        self.tally = Tally()
        self._verdicts = _Remembered(_singly(judge.compare), judge.identity, cache, self.tally, NONE)

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """As `PairJudge.compare`; asks for what is not known yet."""
        return [verdict for [verdict] in await self._verdicts.of(pairs)]


def _singly(ask: Callable[[Sequence[Item]], Awaitable[list[Verdict]]]) -> Ask[Item]:
    """As one who may be asked for many verdicts on an item, and gives one."""

    async def asked(items: Sequence[Item]) -> list[list[Verdict]]:
        return [[verdict] for verdict in await ask(items)]

    return asked


class _Remembered(Generic[Item]):
    """Asks for each item by itself, so that what is said of it is kept as it comes, and for equal items once. An
    invalid verdict is kept too, for the judge was asked and paid; a missing one is not."""

    def __init__(
        self, ask: Ask[Item], identity: str, cache: VerdictCache, tally: Tally, retry_limits: RetryLimits
    ) -> None:
        self._ask = ask
        self._retry_limits = retry_limits
        self._identity = identity
        self._cache = cache
        self._tally = tally
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: dict[str, asyncio.Task[list[Verdict]]] = {}

    async def of(self, items: Sequence[Item]) -> list[list[Verdict]]:
        if self._loop is not asyncio.get_running_loop():  # another `asyncio.run`: nothing of the last one can end
            self._loop, self._under_way = asyncio.get_running_loop(), {}
        return await asyncio.gather(*(self._verdicts(item) for item in items))

    async def _verdicts(self, item: Item) -> list[Verdict]:
        [first, *_] = keys = self._keys(item)
        verdicts = None if first in self._under_way else self._known(keys)
        fresh = first not in self._under_way and verdicts is None
        self._tally.asked += fresh
        self._tally.cached += not fresh
        if fresh:
            self._under_way[first] = asyncio.ensure_future(self._fetch(keys, item))
        if verdicts is None:  # one who gives up leaves it to the others
            verdicts = await asyncio.shield(self._under_way[first])
        return list(map(self._tally.enter, verdicts))

    def _known(self, keys: Sequence[str]) -> list[Verdict] | None:
        """What is kept under all of the keys; None where anything is not."""
        found = [verdict for key in keys if (verdict := self._cache.get(key)) is not None]
        return found if len(found) == len(keys) else None

    async def _fetch(self, keys: Sequence[str], item: Item) -> list[Verdict]:
        until = time.monotonic() + self._retry_limits.seconds
        try:
            [verdicts] = await self._ask([item])
            for _ in range(self._retry_limits.again):
                if all(map(_is_given, verdicts)) or time.monotonic() > until:
                    break
                [verdicts] = await self._ask([item])
            for key, verdict in zip(keys, verdicts, strict=True):
                if _is_given(verdict):
                    self._cache.put(key, self._identity, verdict)
            return verdicts
        finally:
            del self._under_way[keys[0]]

    def _keys(self, item: Item) -> list[str]:
        """A key for each verdict on the item."""
        named = [self._identity, type(item).__name__, asdict(item)]
        key = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
        return [f"{key}/{at}" for at in range(len(item.criteria))] if isinstance(item, Sheet) else [key]


def _is_given(verdict: Verdict) -> bool:
    """Whether the judge answered, be it with what is no verdict."""
    return verdict.score is not None or verdict.invalid


@dataclass(slots=True, kw_only=True)
class Tally:
    """Questions that were `asked` of the judge, or `cached`, because it had been asked already, a moment ago or in
    another run; and of the verdicts on both, `missing` and `invalid` ones. A sheet is one question."""

    asked: int = 0
    cached: int = 0
    missing: int = 0
    invalid: int = 0

    def enter(self, verdict: Verdict) -> Verdict:
        """Count how a verdict turned out."""
        self.missing += verdict.score is None and not verdict.invalid
        self.invalid += verdict.invalid
        return verdict

    def take(self) -> dict[str, int]:
        """What was counted since this was last called."""
        counts = asdict(self)
        for field in fields(self):
            setattr(self, field.name, 0)
        return counts
