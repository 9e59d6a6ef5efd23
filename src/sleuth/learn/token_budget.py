"""A token budget that shrinks until the passes over a model fit the memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

from sleuth.host.threads import to_stderr
from sleuth.kernels.allocator import is_out_of_memory, release_cached_memory
from sleuth.ranks import ALONE, Ranks
from sleuth.types import SleuthError, TransientError

Result = TypeVar("Result")

MIN_BUDGET = 256
"""Smaller passes are not tried."""


class TokenBudget:
    """Tokens of a pass, halved for all later ones whenever one runs out of memory: in an update and in its reference,
    and where given tokens are scored.

    On several ranks the run ends instead, since the others wait in the middle of the update. `note` stores the budget
    that was too large, so that restarted ranks use half of it.
    """

    def __init__(
        self,
        tokens: int,
        log: Callable[[str], None] = to_stderr,
        ranks: Ranks = ALONE,
        note: Callable[[int], None] = lambda tokens: None,
    ) -> None:
        self.tokens = tokens
        self.log = log
        self.ranks = ranks
        self.note = note

    def run(self, work: Callable[[int], Result]) -> Result:
        """The result of `work` with the largest budget that fits. Raises SleuthError if none does, TransientError if
        the ranks must restart."""
        while True:
            try:
                return work(self.tokens)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if not self.ranks.alone:
                    raise self._restart_error() from None
            # Outside the handler, so that the traceback no longer keeps the tensors of the failed pass alive.
            if self.tokens // 2 < MIN_BUDGET:
                raise SleuthError(
                    f"out of memory with {self.tokens} tokens at once: take shorter texts or a smaller model or, in an "
                    "update, set gradient_checkpointing = true"
                )
            self.tokens //= 2
            gc.collect()
            release_cached_memory()
            self.log(f"out of memory: retrying with {self.tokens} tokens at once, and going on so")

    def _restart_error(self) -> SleuthError:
        here = f"out of memory on rank {self.ranks.rank} of {self.ranks.world} with {self.tokens} tokens at once"
        if self.tokens // 2 < MIN_BUDGET:
            return SleuthError(
                f"{here}: continue from the last checkpoint with more ranks or, on GPUs, with cpu_offload = true, or "
                "start a new run with gradient_checkpointing = true"
            )
        self.note(self.tokens)
        return TransientError(
            f"{here}: the same command continues from the last checkpoint, with {self.tokens // 2} tokens at once"
        )
