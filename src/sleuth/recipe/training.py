"""What every stage that takes optimiser steps is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from sleuth.recipe.strict import Name, Row, StrictModel, combination

AlarmAction = Literal["off", "warn", "pause", "stop"]


class AlarmsRecipe(StrictModel):
    """What happens when a disease shows: it is said ("warn"); or the run saves and ends, and the same command goes on
    ("pause"); or it ends where it last saved ("stop"). Rolling back to the best checkpoint: `sleuth train --roll-back`.
    """

    reward_collapse: AlarmAction = "warn"
    """The reward fell to less than half of the best it had been."""
    entropy_collapse: AlarmAction = "warn"
    """The policy hardly varies any more, and is not good enough for that to be the end of learning."""
    length_runaway: AlarmAction = "warn"
    """What the policy writes became twice as long, and not better."""
    tool_abandonment: AlarmAction = "warn"
    """Episodes used to search, and no longer do."""
    no_signal: AlarmAction = "warn"
    """In no group do the scores differ."""
    judge_divergence: AlarmAction = "warn"
    """The judge that watches agrees less with the one that pays than it did."""
    gamed_reward: AlarmAction = "warn"
    """A known trick is paid no less than an honest answer."""
    hollow_thoughts: AlarmAction = "warn"
    """Thoughts came to say nothing of their text: empty, copied from it, broken, or as good for any other text."""
    mismatch: AlarmAction = "warn"
    """Sampler and learner disagree on the log-probabilities of the same tokens."""
    tiny_updates: AlarmAction = "warn"
    """Updates too small to change the stored weights."""
    not_finite: AlarmAction = "stop"
    """Loss or gradient is no number; "warn" goes on without that update."""


Beta = Annotated[float, Field(ge=0, lt=1)]


class InitRecipe(StrictModel):
    """A model with random weights: the shape of a Qwen3. The vocabulary is its tokenizer's."""

    layers: PositiveInt
    """Blocks of attention and MLP."""
    width: PositiveInt
    """Size of the residual stream."""
    heads: PositiveInt
    """Query heads a layer."""
    kv_heads: PositiveInt
    """Key and value heads a layer; divides `heads`."""
    head_dim: PositiveInt
    """Size of a head; even, for rotary positions."""
    mlp: PositiveInt
    """Hidden size of the MLP."""
    context: PositiveInt
    """Longest sequence in tokens."""
    std: PositiveFloat = 0.02
    """Standard deviation of the initial weights."""
    rope_theta: PositiveFloat = 10_000.0
    """Base of the rotary frequencies (arXiv:2104.09864)."""
    tie: bool = True
    """Input and output embeddings share their weights."""
    induction: bool = False
    """Begin with heads that look up what followed a word before (arXiv:2209.11895), and behind which tag it stands, so
    that reading by name takes hundreds of steps and not many thousands."""

    @property
    def layer_weights(self) -> int:
        """How many weights its blocks have, norms left out."""
        attention = 2 * self.width * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.width * self.mlp)

    @combination
    def _heads_fit(self) -> Iterator[str]:
        if self.heads % self.kv_heads:
            yield f"heads = {self.heads} is no multiple of kv_heads = {self.kv_heads}"
        if self.head_dim % 2:
            yield f"head_dim = {self.head_dim} must be even, for rotary positions"
        if self.induction and not (self.tie and self.layers >= 3 and self.heads >= 3 and self.heads == self.kv_heads):
            yield "induction = true needs tie = true, layers >= 3, heads >= 3 and kv_heads = heads"
        if self.induction and not 40 <= self.head_dim <= self.width:
            yield (
                f"induction = true needs a head_dim of 40 up to width = {self.width}, found {self.head_dim}; a smaller "
                "head cannot tell the latest tag from earlier ones"
            )


class LoraRecipe(StrictModel):
    """Low-rank adapters (arXiv:2106.09685) are trained, and the model's own weights stay; needs
    `pip install "sleuth[lora]"`. Saves hold the model with them added in, and the adapters beside, in peft's format."""

    rank: PositiveInt = 16
    """Rank of the product beside each matrix."""
    alpha: PositiveFloat = 32.0
    """The product counts alpha / rank."""
    targets: Annotated[Row[str], Field(min_length=1)] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """The last names of the layers that get one."""


class TrainingRecipe(StrictModel):
    """The optimiser's numbers and the rhythm of saves."""

    kind: Any
    """Which loop it is: each stage says its own."""
    name: Name
    """What the stage is called in the run folder."""
    steps: PositiveInt
    """Optimiser steps: the schedule's horizon."""
    stop_after: PositiveInt | None = None
    """Ends the stage after so many steps without changing the schedule."""
    optimiser: Literal["adamw", "muon"] = "adamw"
    """AdamW for all weights, or Muon (arXiv:2502.16982) for the hidden matrices and AdamW for the rest."""
    learning_rate: PositiveFloat
    """Peak learning rate."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up."""
    schedule: Literal["constant", "cosine"] = "constant"
    """What follows the warm-up: the peak for ever, or a half cosine down to zero at `steps`."""
    betas: Annotated[tuple[Beta, Beta], Field(strict=False)] = (0.9, 0.95)
    """AdamW's two decay rates."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    max_grad_norm: PositiveFloat = 1.0
    """The gradient's global norm is clipped here."""
    master_weights: bool = True
    """With dtype = "bfloat16": step float32 copies of the weights, in which small steps add up. false steps the weights
    themselves, as some published runs did; a rate that moves too few of them is refused."""
    lora: LoraRecipe | None = None
    """Train adapters instead of the weights; their learning rate is some ten times that of all weights."""
    tokens_per_micro_batch: PositiveInt = 4_096
    """Distinct tokens in one forward and backward pass, with all that they grow out of; changes memory and speed, never
    the result."""
    gradient_checkpointing: bool = False
    """Compute a layer's activations again in the backward pass instead of keeping them, and give freed memory back to
    the system: less memory, a third more work, and on a CPU about twice the time with a model of a few million
    weights."""
    cpu_offload: bool = False
    """On several ranks with a GPU each: what is stepped, its gradients and its moments lie in the memory of processors,
    which step them. Cards hold the model alone, and every pass waits for what is copied to and fro."""
    save_every: PositiveInt = 100
    """Steps between checkpoints; the last step is always saved."""
    keep: PositiveInt = 2
    """How many checkpoints that the stage can go on from are kept, newest first, beside its best one."""
    milestone_every: PositiveInt | None = None
    """Steps between checkpoints whose weights are kept for good."""
    alarms: AlarmsRecipe = AlarmsRecipe()
    """What the run does when something goes wrong."""

    @property
    def last_step(self) -> int:
        """The step it ends with: its horizon, unless `stop_after` comes first."""
        return min(self.steps, self.stop_after or self.steps)

    @combination
    def _steps_fit(self) -> Iterator[str]:
        for key in ("stop_after", "warmup_steps"):
            value = getattr(self, key)
            if value is not None and value > self.steps:
                yield f"{key} = {value} is beyond steps = {self.steps}"
