"""What was judged once is not paid for again."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from chat_server import MODEL, ChatServer, right

from sleuth.judges.cache import CachedJudge, RetryLimits, VerdictCache
from sleuth.judges.http import HttpJudge
from sleuth.types import Case, Pair, SleuthError, Verdict

CASES = 200
CHILD = """
import asyncio, sys
from pathlib import Path
from sleuth.judges.cache import CachedJudge, VerdictCache
from sleuth.judges.http import HttpJudge
from sleuth.types import Case
url, model, file, cases = sys.argv[1:]
judge = CachedJudge(HttpJudge([url], model, at_once=8), VerdictCache(Path(file)))
asyncio.run(judge.judge([Case(claim=f"<{n}>", evidence="<3>") for n in range(int(cases))]))
"""


class Counting:
    """Says that claims of one letter are supported, and counts; fails or is invalid when told to."""

    def __init__(self, identity: str = "counting", fate: Verdict | None = None) -> None:
        self.identity = identity
        self.fate = fate
        self.asked: list[Case | Pair] = []

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        self.asked += cases
        await asyncio.sleep(0)
        return [self.fate or Verdict(score=float(len(case.claim) == 1), reason="letters") for case in cases]

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.asked += pairs
        return [Verdict(score=float(pair.first > pair.second)) for pair in pairs]


def case(claim: str) -> Case:
    return Case(claim=claim, evidence="")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "verdicts.sqlite"


def test_equal_claims_of_siblings_are_asked_once_and_known_the_next_time(file: Path) -> None:
    inner = Counting()
    with VerdictCache(file) as cache:
        first = asyncio.run(CachedJudge(inner, cache).judge([case("a"), case("bb"), case("a")]))
    assert [verdict.score for verdict in first] == [1.0, 0.0, 1.0]
    with VerdictCache(file) as cache:
        judge = CachedJudge(inner, cache)
        assert asyncio.run(judge.judge([case("bb"), case("a"), case("c")])) == [
            first[1],
            first[0],
            Verdict(score=1.0, reason="letters"),
        ]
    assert inner.asked == [case("a"), case("bb"), case("c")]


DOWN, NONE = Verdict(score=None, reason="down"), Verdict(score=None, reason="no number", invalid=True)


@pytest.mark.parametrize(
    ("fate", "fails", "limits", "asked"),
    [
        (DOWN, 2, RetryLimits(retries=2), 3),
        (DOWN, 2, RetryLimits(retries=1), 2),
        (DOWN, 0, RetryLimits(retries=4), 1),
        (DOWN, 3, RetryLimits(retries=4, seconds=0.0), 1),  # it would hold a step up as often as it may be asked
        (NONE, 9, RetryLimits(retries=4), 1),  # the judge answered already, twice
    ],
)
def test_only_a_missing_verdict_is_asked_for_again_within_its_limits(
    file: Path, fate: Verdict, fails: int, limits: RetryLimits, asked: int
) -> None:
    class Halting(Counting):
        async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
            verdicts = await super().judge(cases)
            return [fate if len(self.asked) <= fails else verdict for verdict in verdicts]

    inner = Halting()
    with VerdictCache(file) as cache:
        judge = CachedJudge(inner, cache, limits)
        [verdict] = asyncio.run(judge.judge([case("a")]))
    assert len(inner.asked) == asked
    assert verdict == (fate if asked <= fails else Verdict(score=1.0, reason="letters"))
    assert judge.tally.take()["missing"] == (verdict == DOWN)


def test_every_field_of_a_case_counts(file: Path) -> None:
    inner = Counting()
    cases = [case("a"), Case(claim="", evidence="a"), Case(claim="a", evidence="", question="q")]
    cases.append(Case(claim="a", evidence="", criterion="q"))
    with VerdictCache(file) as cache:
        asyncio.run(CachedJudge(inner, cache).judge([*cases, *cases]))
    assert inner.asked == cases


def test_a_missing_verdict_is_not_stored_and_an_invalid_one_is(file: Path) -> None:
    for fate, asked in ((DOWN, 2), (NONE, 1)):
        inner = Counting(identity=fate.reason, fate=fate)
        with VerdictCache(file) as cache:
            judge = CachedJudge(inner, cache)
            assert [asyncio.run(judge.judge([case("a")])) for _ in range(2)] == [[fate]] * 2
        assert len(inner.asked) == asked


def test_one_who_gives_up_leaves_the_verdict_to_the_others(file: Path) -> None:
    inner = Counting()

    async def siblings() -> list[Verdict]:
        judge = CachedJudge(inner, cache)
        first, second = (asyncio.create_task(judge.judge([case("a")])) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    with VerdictCache(file) as cache:
        assert asyncio.run(siblings())[0].score == 1.0
    assert len(inner.asked) == 1


def test_a_run_that_is_killed_while_scoring_pays_again_only_for_what_was_under_way(
    file: Path, server: ChatServer
) -> None:
    server.answer = lambda body: (time.sleep(0.02), right(body))[1]
    arguments = [sys.executable, "-c", CHILD, server.url, MODEL, str(file), str(CASES)]
    child = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    while len(server.asked) < CASES // 2:
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    time.sleep(0.1)  # what the server has begun it ends
    before = len(server.asked)
    assert CASES // 2 <= before < CASES
    with VerdictCache(file) as cache:
        judge = CachedJudge(HttpJudge([server.url], MODEL, at_once=8), cache)
        verdicts = asyncio.run(judge.judge([Case(claim=f"<{n}>", evidence="<3>") for n in range(CASES)]))
    assert [n for n, verdict in enumerate(verdicts) if verdict.score] == [3]
    assert len(server.asked) <= CASES + 2 * 8  # as many asked at once, and as many answered and not yet written
    assert sqlite3.connect(file).execute("SELECT count(*) FROM verdicts").fetchone() == (CASES,)


def test_a_file_that_is_something_else_is_left_as_it_is(file: Path) -> None:
    file.write_text("Dear diary, today I trained a model and nothing was lost.")
    with pytest.raises(SleuthError, match=r"verdicts.sqlite: the verdict cache could not be opened"):
        VerdictCache(file)
    assert file.read_text().startswith("Dear diary")
    other = file.with_name("other.sqlite")
    made = sqlite3.connect(other)
    made.execute("CREATE TABLE verdicts (x)")
    made.close()
    with pytest.raises(SleuthError, match="is not a verdict cache of this version; name another file"):
        VerdictCache(other)


def test_a_verdict_for_which_there_is_no_room_is_one_line(tmp_path: Path) -> None:
    with VerdictCache(tmp_path / "verdicts.sqlite") as cache:
        cache.put("a", "judge", Verdict(score=1.0))
        [pages] = cache._file.execute("PRAGMA page_count").fetchone()
        cache._file.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(SleuthError, match=r"verdicts\.sqlite: a verdict could not be stored: .* is full"):
            cache.put("b", "judge", Verdict(score=1.0, reason="long " * 100_000))
        assert cache.get("a") == Verdict(score=1.0)
