"""Updates that fit the memory there is, in one process and on ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sleuth.learn.token_budget import MIN_BUDGET, TokenBudget
from sleuth.ranks import Ranks
from sleuth.runs.disk import Shortages
from sleuth.types import SleuthError, TransientError


def short_of(most: int) -> Callable[[int], int]:
    """An update that has room for so many tokens at once."""

    def update(tokens: int) -> int:
        if tokens > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return tokens

    return update


def test_one_process_halves_the_budget_until_it_fits_and_stores_nothing() -> None:
    said: list[str] = []
    noted: list[int] = []
    budget = TokenBudget(4_096, said.append, note=noted.append)
    assert budget.run(short_of(1_500)) == 1_024
    assert (len(said), noted) == (2, [])


def test_on_ranks_the_failed_budget_is_stored_and_the_run_ends(tmp_path: Path) -> None:
    shortages = Shortages(tmp_path / "out_of_memory")
    for tokens in (4_096, 2_048):
        assert shortages.fitting("grpo", 4_096) == tokens
        budget = TokenBudget(tokens, print, Ranks(rank=5, world=8), lambda count: shortages.note("grpo", count))
        with pytest.raises(
            TransientError, match=rf"on rank 5 of 8 with {tokens} tokens at once.* with {tokens // 2} tok"
        ):
            budget.run(short_of(1_500))
    assert shortages.fitting("grpo", 4_096) == 1_024
    assert shortages.fitting("grpo", 512) == 512, "fewer than did not fit are left as they are"
    assert shortages.fitting("supervised", 4_096) == 4_096, "each stage has its own"


def test_below_the_minimum_budget_nothing_is_stored_and_no_restart_helps() -> None:
    noted: list[int] = []
    budget = TokenBudget(2 * MIN_BUDGET - 1, print, Ranks(rank=0, world=2), noted.append)
    with pytest.raises(SleuthError, match="with more ranks") as caught:
        budget.run(short_of(1))
    assert not isinstance(caught.value, TransientError)
    assert noted == []


def test_other_errors_are_raised_unchanged() -> None:
    def fail(tokens: int) -> None:
        raise RuntimeError("another thing")

    with pytest.raises(RuntimeError, match="another thing"):
        TokenBudget(4_096, print, Ranks(rank=0, world=2)).run(fail)
