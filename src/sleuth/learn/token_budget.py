"""Updates that fit the memory there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from sleuth.ranks import ALONE, Ranks
from sleuth.types import SleuthError, TransientError

Made = TypeVar("Made")

LEAST_BUDGET = 256
"""A micro-batch of so few tokens that does not fit will not fit in halves either."""


class TokenBudget:
    """Tokens of a micro-batch: halved, for the rest of the run, whenever an update runs out of memory.

    Not so on several ranks: the others wait in the middle of an update for one that has no memory to go on. There the
    run ends, and `note` keeps the tokens that were too many, so that it goes on with half of them when the ranks are
    started again.
    """

    def __init__(
        self,
        tokens: int,
        say: Callable[[str], None],
        ranks: Ranks = ALONE,
        note: Callable[[int], None] = lambda tokens: None,
    ) -> None:
        self.tokens = tokens
        self.say = say
        self.ranks = ranks
        self.note = note

    def run(self, update: Callable[[int], Made]) -> Made:
        """`update` under the largest budget that fits. Raises SleuthError where none does, and TransientError on ranks
        that are to start again."""
        while True:
            try:
                return update(self.tokens)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if not self.ranks.alone:
                    raise self._noted() from None
            # Only here, outside of the handler, does nothing hold on to what the failed update had allocated.
            if self.tokens // 2 < LEAST_BUDGET:
                raise SleuthError(
                    f"out of memory in an update with tokens_per_micro_batch = {self.tokens}: set "
                    "gradient_checkpointing = true, a shorter context, or take a smaller model"
                )
            self.tokens //= 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.say(f"out of memory: the update is made again, and all after it, with {self.tokens} tokens at once")

    def _noted(self) -> SleuthError:
        """What this rank says when it leaves the others."""
        here = f"out of memory on rank {self.ranks.rank} of {self.ranks.world} with {self.tokens} tokens at once"
        if self.tokens // 2 < LEAST_BUDGET:
            return SleuthError(
                f"{here}: go on from the last checkpoint with more ranks or, on cards, with cpu_offload = true, or "
                "begin a new run with gradient_checkpointing = true"
            )
        self.note(self.tokens)
        return TransientError(
            f"{here}: the same command goes on from the last checkpoint, with {self.tokens // 2} tokens at once"
        )


def is_out_of_memory(error: Exception) -> bool:
    """On either kind of machine: torch raises a RuntimeError of its own for each."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
