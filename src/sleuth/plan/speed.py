"""Seconds of a run on a card, from its data sheet and the shares of it that were measured, or are assumed.

Judges, retrieval and the first compilation of kernels are not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sleuth.host.hardware import Card
from sleuth.plan.memory import LearnerMemory, Passes
from sleuth.plan.phases import Phase, Played, StagePlan, played_by
from sleuth.recipe import TrainingRecipe

RAGGED = 1.5
"""Decode steps, over those of sequences that all end together."""
BUS, HOST_BANDWIDTH = 25e9, 50e9
"""Bytes a second between card and host, and of the host's memory, in the optimiser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of a data sheet's figures that are reached: of arithmetic in updates and in prefill, of memory in
    decoding; and the seconds of a `layer` in a decode step, than which none is faster."""

    update: float
    prefill: float
    decoding: float
    layer: float


ASSUMED = Shares(update=0.35, prefill=0.4, decoding=0.6, layer=70 * 7e-6)  # so many launches
MEASURED: dict[str, Shares] = {
    "h200-141": Shares(update=0.3, prefill=0.4, decoding=0.76, layer=4.3e-05),
}
"""By card; `python -m tools.draw_cards` prints it from benchmarks/results, with which a test compares it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds of the phases on one card of `ranks`."""

    card: Card
    passes: Passes
    ranks: int

    @property
    def shares(self) -> Shares:
        """Those of the card."""
        return MEASURED.get(self.card.name, ASSUMED)

    def decode_step(self, at_once: int, read: float) -> float:
        """Seconds of a step of `at_once` sequences that reads so many bytes of weights, keys and values."""
        computed = self.frozen_pass(self.passes, at_once * self.ranks)
        floor = self.passes.shape.layers * self.shares.layer
        return max(read / (self.shares.decoding * self.card.bandwidth), computed, floor)

    def generation(self, played: Played, sequences: int, at_once: int) -> float:
        """Seconds to generate `sequences`, of which `at_once` fit the cache together."""
        lengths, shape, size = played.lengths, self.passes.shape, self.passes.size
        read = size * shape.weights + at_once * lengths.typical * shape.bytes_per_token(size)
        steps = sequences * lengths.sampled / max(1, at_once)
        waves = max(steps, lengths.sampled) * RAGGED
        prefilled = sequences * (lengths.prompt / played.samples + lengths.response - lengths.sampled)
        return waves * self.decode_step(at_once, read) + self.frozen_pass(self.passes, prefilled * self.ranks)

    def update(self, learner: LearnerMemory, tokens: float, recomputed: int) -> float:
        """Seconds of forward and backward passes over `tokens` of all ranks, in which so many layers are computed
        again, and of the optimiser's step."""
        shape, products = self.passes.shape, 3 - (learner.lora is not None)  # frozen matrices have no gradient
        flops = 2 * (products * shape.weights + recomputed * shape.layer) * tokens
        seconds = flops / (self.shares.update * self.card.flops) / self.ranks
        # The optimiser reads weight, gradient and two moments, and writes all but the gradient.
        moved = 7 * learner.stepped_size * learner.trained / self.ranks
        if not learner.offload:
            return seconds + moved / (self.shares.decoding * self.card.bandwidth)
        copied = (learner.stepped_size + self.passes.size) * learner.trained / self.ranks
        return seconds + copied / BUS + moved / HOST_BANDWIDTH

    def frozen_pass(self, passes: Passes, tokens: float) -> float:
        """Seconds of a forward pass over `tokens` of all ranks."""
        return 2 * passes.shape.weights * tokens / (self.shares.prefill * self.card.flops) / self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Episodes of a stage, and its estimated seconds, in all and of one step by phase; None where the number of
    questions is unknown."""

    name: str
    kind: str
    steps: int
    episodes: int | None
    tokens: int | None = None
    seconds: float | None = None
    step_seconds: dict[str, float] = field(default_factory=dict)


def stage_time(planned: StagePlan, card: Card | None, phases: Sequence[Phase]) -> StageTime:
    """The time of a stage, of which no second is estimated without a `card`."""
    stage, ranks, passes = planned.stage, planned.machine.ranks, planned.passes
    if isinstance(stage, TrainingRecipe) and not stage.plays_before_training:
        prompts, samples = stage.played_per_step
        episodes: int | None = stage.last_step * prompts * samples
    else:
        alone = played_by(planned.recipe, planned.index, 1)
        episodes = 0 if alone is None else alone.sequences
    counts = StageTime(name=stage.name, kind=stage.kind, steps=stage.last_step, episodes=episodes)
    if card is None:
        return counts
    speed = Speed(card=card, passes=passes, ranks=ranks)
    played, generating = planned.played, ranks if stage.trains else 1  # the first rank evaluates
    if (on_servers := planned.on_servers(generating)) is not None:
        played, generating = on_servers, planned.machine.servers
    generation, sampled = None, 0
    if played is not None and (sequences := played.sequences) is not None:
        fitting = (phase.at_once for phase in phases if phase.stage == stage.name and phase.asked)
        at_once = next(fitting, played.at_once)  # servers elsewhere run as many as they are asked
        generation = speed.generation(played, sequences, at_once)
        sampled = sequences * generating * played.lengths.sampled
    if not isinstance(stage, TrainingRecipe):
        return replace(counts, tokens=None if generation is None else sampled, seconds=generation)
    learner, steps, step, once = planned.learner, stage.last_step, dict[str, float](), 0.0
    if generation is not None and stage.plays_before_training:
        once = generation
    elif generation is not None:
        step["rollout"], sampled = generation, sampled * steps
    prompts = played.prompts * generating if played is not None and played.prompts is not None else 0
    trained = stage.trained_tokens(planned.lengths.prompt, planned.lengths.response, prompts)
    again, updates = stage.passes_and_updates
    if learner.reference:
        step["reference pass"] = again * speed.frozen_pass(passes, trained)
    if learner.teacher is not None:
        step["teacher pass"] = again * speed.frozen_pass(learner.teacher, trained)
    recomputed = next(phase.recomputed for phase in phases if phase.stage == stage.name and phase.name == "update")
    step["update"] = again * speed.update(learner, trained, recomputed)
    step["update"] += (updates - again) * speed.update(learner, 0, recomputed)
    seconds = once + steps * sum(step.values())
    return replace(counts, tokens=sampled or round(trained * steps), seconds=seconds, step_seconds=step)
