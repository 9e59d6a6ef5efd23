"""What ranks tell each other."""

from __future__ import annotations

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.util import Finalize
from pathlib import Path
from threading import Lock
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed as dist
import typer
from forked import forking
from processes import on_ranks

from sleuth.cli.train import on_ranks as on_ranks_of_a_verb
from sleuth.ranks import Ranks
from sleuth.runs.interruption import StopRequest
from sleuth.training import group
from sleuth.training.group import RAISED_BY_FIRST, join_ranks, store_of_this_start
from sleuth.types import SleuthError


class UnsendableError(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("why it went wrong")
        self.held = lambda: None


def told(ranks: Ranks) -> dict[str, Any]:
    """What each method gives on this rank."""
    asked: list[int] = []
    return {
        "agreed": ranks.broadcast(lambda: asked.append(ranks.rank) or {"by": ranks.rank}),
        "asked": asked,
        "gathered": ranks.all_gather([ranks.rank] * ranks.rank),
        "total": ranks.all_reduce({"b": 0.5, "a": float(ranks.rank)}),
    }


def raised(ranks: Ranks, sendable: bool) -> tuple[str, list[str]]:
    """What every rank hears of an error on the first, and what is noted with it."""

    def fail() -> None:
        raise SleuthError("no such file") if sendable else UnsendableError()

    with pytest.raises((SleuthError, UnsendableError)) as error:
        ranks.broadcast(fail)
    return str(error.value), getattr(error.value, "__notes__", [])


def test_broadcast_runs_work_on_rank_0_and_returns_its_result_on_all():
    first, *others = on_ranks(3, told)
    assert first["asked"] == [0]
    assert all(other["asked"] == [] for other in others)
    for one in (first, *others):
        assert one["agreed"] == {"by": 0}
        assert one["gathered"] == [1, 2, 2]
        assert one["total"] == {"a": 3.0, "b": 1.5}


class Counter:
    """Of one rank, which others count with."""

    def __init__(self) -> None:
        self.count, self.lock = 0, Lock()

    def add(self, number: int) -> int:
        with self.lock:
            self.count += number
            return self.count


def counted(ranks: Ranks, stranger: bytes | None) -> int:
    """The sum of the numbers of the ranks, at which a stranger was the first to call."""
    served, callers = group._served, []

    def after_a_stranger(*arguments: Any, **options: Any) -> tuple[int, bytes]:
        port, secret = served(*arguments, **options)
        caller = socket.create_connection(("127.0.0.1", port))
        if stranger is None:
            caller.close()
        else:
            caller.sendall(stranger)
            callers.append(caller)  # which stays open
        time.sleep(0.2)
        return port, secret

    with patch.object(group, "_served", after_a_stranger):
        counter = ranks.shared(Counter)
    counter.add(ranks.rank)
    ranks.all_gather([])
    return counter.add(0)


@pytest.mark.parametrize("stranger", [None, b"", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\4nono"])
def test_an_object_of_rank_0_is_called_by_all_ranks_whoever_else_finds_its_port(stranger):
    """One who hangs up, who says nothing, who takes it for a web server, and who has another key."""
    assert on_ranks(3, counted, stranger) == [3, 3, 3]


def signalled(ranks: Ranks, number: int, when: tuple[int | None, ...]) -> list[int | None]:
    """What is agreed at each of three steps, at which a rank gets the signal when it is told."""
    agreed: list[int | None] = []
    with StopRequest(print) as request:
        for step in range(3):
            if step == when[ranks.rank]:
                os.kill(os.getpid(), number)
            agreed.append(request.agreed(ranks))
    return agreed


def test_ranks_stop_at_the_same_step_whichever_got_the_signal():
    assert on_ranks(2, signalled, signal.SIGTERM, (0, 1)) == [[signal.SIGTERM] * 3] * 2
    assert on_ranks(2, signalled, signal.SIGINT, (None, 1)) == [[None, signal.SIGINT, signal.SIGINT]] * 2


def threads_of_gloo() -> int:
    names = (task.read_text() for task in Path("/proc/self/task").glob("*/comm"))
    return sum(name.startswith("pt_gloo") for name in names)


def parted(ranks: Ranks, counts: Any) -> None:
    """Puts the rank, and how many threads of gloo it has before and after the ranks part. Somebody keeps `ranks`."""
    ranks.broadcast(lambda: "last")
    before = threads_of_gloo()
    Finalize(None, lambda: counts.put((ranks.rank, before, threads_of_gloo())), exitpriority=10)


def test_ranks_that_have_parted_leave_no_thread_of_gloo_that_would_abort_python_at_its_end():
    """One that releases the tensors of the last message when Python has ended cannot take its lock, and aborts."""
    with forking().Manager() as manager:
        counts = manager.Queue()
        on_ranks(2, parted, counts)
        assert sorted(counts.get(timeout=60) for _ in range(2)) == [(0, 4, 0), (1, 4, 0)]  # two of each of two groups


def test_a_world_of_one_returns_its_own_values():
    assert told(Ranks()) == {"agreed": {"by": 0}, "asked": [0], "gathered": [], "total": {"a": 0.0, "b": 0.5}}


def test_an_error_of_rank_0_is_raised_on_all_ranks_and_marked_as_printed_there():
    assert on_ranks(2, raised, True) == [("no such file", []), ("no such file", [RAISED_BY_FIRST])]
    (mine, _), (theirs, _) = on_ranks(2, raised, False)
    assert mine == "why it went wrong"
    assert theirs == "UnsendableError: why it went wrong"


@pytest.mark.parametrize(("note", "raised"), [(RAISED_BY_FIRST, typer.Exit), ("another", SleuthError)])
def test_an_error_that_rank_0_prints_is_not_printed_again(monkeypatch, note, raised):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("sleuth.cli.train.OTHER_RANK_DELAY", 0.0)
    error = SleuthError("no such file")
    error.add_note(note)
    with pytest.raises(raised), on_ranks_of_a_verb():
        raise error


def test_an_incomplete_launcher_environment_is_refused_with_the_missing_variable(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join_ranks() as ranks:
        assert ranks.alone
    monkeypatch.setenv("WORLD_SIZE", "8")
    expected = r"WORLD_SIZE = 8 .* RANK is not: start the processes with torchrun"
    with pytest.raises(SleuthError, match=expected), join_ranks():
        pass


def test_restarted_ranks_do_not_read_the_store_of_the_previous_start():
    """As torchrun does it: one store for all starts, and the others are there before the first."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    met = []
    for start in range(3):
        clients = [dist.TCPStore("127.0.0.1", store.port) for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            others = [pool.submit(store_of_this_start, clients[rank], rank, 3) for rank in (1, 2)]
            time.sleep(0.2)
            first = store_of_this_start(clients[0], 0, 3)
            first.set("where", str(start))
            assert [other.result(timeout=20).get("where") for other in others] == [str(start).encode()] * 2
        met.append(first)
    assert met[0].get("where") == b"0", "each start has a part of its own"
