"""Seconds of a run on a card, from its data sheet and assumed utilisation: an estimate, within a factor of two at best.

Judges, retrieval and the first compilation of kernels are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sleuth.host.hardware import Card
from sleuth.plan.episodes import Played
from sleuth.plan.memory import LearnerMemory, Passes

TRAIN_FLOPS, PREFILL_FLOPS, BANDWIDTH = 0.35, 0.4, 0.6
"""Shares of the data sheet's figures that are reached: of arithmetic in training and in prefill, of memory in
decoding."""
LAUNCHES, LAUNCH_SECONDS = 70, 7e-6
"""Kernel launches of a layer in one decode step, as counted, and the time of one, which no step is faster than."""
RAGGED = 1.5
"""Decode steps, over those of sequences that all end together."""
BUS = 25e9
"""Bytes a second between card and host."""
HOST_BANDWIDTH = 50e9
"""Bytes a second of the host's memory, in the optimiser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds of the phases on one card of `ranks`."""

    card: Card
    passes: Passes
    ranks: int

    def generation(self, played: Played, sequences: int, at_once: int) -> float:
        """Seconds to generate `sequences`, of which `at_once` fit the cache together."""
        lengths, weights = played.lengths, self.passes.shape.weights
        read = self.passes.size * weights + at_once * lengths.typical * self.passes.shape.bytes_per_token(
            self.passes.size
        )
        step = max(
            read / (BANDWIDTH * self.card.bandwidth),
            2 * weights * at_once / (PREFILL_FLOPS * self.card.flops),
            self.passes.shape.layers * LAUNCHES * LAUNCH_SECONDS,
        )
        steps = sequences * lengths.sampled / max(1, at_once)
        waves = max(steps, lengths.sampled) * RAGGED
        prefilled = sequences * (lengths.prompt / played.samples + lengths.response - lengths.sampled)
        return waves * step + prefilled * 2 * weights / (PREFILL_FLOPS * self.card.flops)

    def update(self, learner: LearnerMemory, tokens: float) -> float:
        """Seconds of forward and backward passes over `tokens` of all ranks, and of the optimiser's step."""
        flops = 2 * (4 if learner.checkpointed else 3) * self.passes.shape.weights * tokens
        seconds = flops / (TRAIN_FLOPS * self.card.flops) / self.ranks
        # The optimiser reads weight, gradient and two moments, and writes all but the gradient.
        moved = 7 * learner.stepped_size * learner.trained / self.ranks
        if not learner.offload:
            return seconds + moved / (BANDWIDTH * self.card.bandwidth)
        copied = (learner.stepped_size + self.passes.size) * learner.trained / self.ranks
        return seconds + copied / BUS + moved / HOST_BANDWIDTH

    def frozen_pass(self, passes: Passes, tokens: float) -> float:
        """Seconds of a forward pass over `tokens` of all ranks."""
        return 2 * passes.shape.weights * tokens / (PREFILL_FLOPS * self.card.flops) / self.ranks
