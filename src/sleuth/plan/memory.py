"""Bytes that a learner, its engine and a reference model take on a device, by part, from shapes alone.

Letters: P weights, T trained ones, V vocabulary, w width, d bytes of an element in computation. tests/plan compares the
sums with real allocations on a CPU. On a card the same formulas have the card's constants below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sleuth.kernels.card_pass import CARD_CHUNK_ROWS, FP32, PAGE, CardPass
from sleuth.plan.shapes import ModelShape
from sleuth.recipe.training import LoraRecipe

SIZES = {"float32": 4, "bfloat16": 2}
Bytes = dict[str, int]
"""Bytes by part, such as `{"weights": 1_200_000_000}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Constants of a kind of device: `prefill` tokens of one forward pass of the engine,
    `chunk` rows of logits in the learner, or more of a vocabulary with which they are fewer than `chunk_logits`, and
    what a process takes before it has a model (on a card: context, libraries and communication buffers)."""

    name: Literal["cuda", "cpu"]
    prefill: int
    chunk: int
    chunk_logits: int
    libraries: int

    def rows(self, words: int) -> int:
        """Rows of logits that the learner computes at once, for a vocabulary of `words`."""
        return max(self.chunk, self.chunk_logits // words)


CUDA = Device(name="cuda", prefill=8_192, chunk=CARD_CHUNK_ROWS, chunk_logits=0, libraries=1_000_000_000)
CPU = Device(name="cpu", prefill=512, chunk=128, chunk_logits=2**21, libraries=600_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The memory of forward and backward passes of a model with elements of `size` bytes."""

    shape: ModelShape
    device: Device
    size: int

    @property
    def compiled(self) -> bool:
        """Whether norms and gates are the compiled ones, which keep less for the backward pass."""
        return self.device.name == "cpu" and self.size == FP32

    def card_pass(self, *, trains_words: bool = True) -> CardPass:
        """The same on a card."""
        names = ("layers", "width", "heads", "queries", "keys", "mlp", "qk_norm")
        sizes = {name: getattr(self.shape, name) for name in names}
        return CardPass(**sizes, words=self.shape.vocabulary, size=self.size, trains_words=trains_words)

    @property
    def layer(self) -> int:
        """Bytes of a token that one layer keeps for its backward pass."""
        if self.device.name == "cuda":
            return self.card_pass().layer
        shape, size = self.shape, self.size
        # A norm keeps its inputs and outputs; transformers' own keeps fp32 inputs, and normalised ones too.
        norm = 2 * FP32 if self.compiled else FP32 + 2 * size
        qk_norm = (FP32 if self.compiled else FP32 + size) * (shape.queries + shape.keys) * shape.qk_norm
        attention = size * (shape.queries + 2 * shape.keys + shape.queries) + FP32 * shape.heads
        gate = size * shape.mlp * (3 if self.compiled else 4)
        return 2 * norm * shape.width + qk_norm + attention + gate

    @property
    def layer_work(self) -> int:
        """Bytes of a token in one layer's backward pass: what the layer kept, and the gradients under way."""
        return self.layer + self.card_pass().under_way

    @property
    def forward_work(self) -> int:
        """Bytes of a token in a forward pass without gradient: residual stream, and the widest block of a layer."""
        shape = self.shape
        attention = self.size * (2 * shape.queries + 2 * shape.keys) + FP32 * shape.queries * shape.qk_norm
        return (2 * self.size + FP32) * shape.width + max(attention, 3 * self.size * shape.mlp)

    def activations(self, tokens: int, kept: int) -> int:
        """Bytes that `kept` layers keep of `tokens`, the inputs of the others, and the last hidden states with their
        gradients."""
        layers = kept * self.layer + (self.shape.layers - kept) * self.size * self.shape.width
        return tokens * (layers + (3 * self.size + 2 * FP32) * self.shape.width)

    def logits(self, rows: int, *, graded: bool) -> int:
        """Bytes of the learner's logits and of what is computed from them, a chunk at a time. `graded`: with their
        gradient."""
        if self.device.name == "cuda":
            return self.card_pass().logits(rows)
        logits = min(rows, self.device.rows(self.shape.vocabulary)) * self.shape.vocabulary
        if self.size == FP32:
            return FP32 * logits
        return (self.size + FP32 + self.size * graded) * logits  # in computation, in fp32, and the gradient

    def sampling(self, rows: int) -> int:
        """Bytes of the engine's work on one step: a forward pass over prompts, and the logits of `rows` requests."""
        row = FP32 if self.compiled else self.size + 2 * FP32
        return max(self.device.prefill, rows) * self.forward_work + rows * row * self.shape.vocabulary

    @property
    def packed_weights(self) -> int:
        """Bytes of the copies of matrices and head in the layout that decoding is fast with; only fp32 on a CPU."""
        matrices = self.shape.layers * self.shape.layer_matrices + self.shape.embedding
        return FP32 * matrices if self.compiled else 0

    def page(self) -> int:
        """Bytes of a page of the cache."""
        return self.shape.bytes_per_token(self.size) * PAGE

    def pages(self, tokens: int) -> int:
        """Pages of a sequence of `tokens`."""
        return math.ceil(tokens / PAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerMemory:
    """What a training stage holds. `masters`: fp32 copies are stepped; `reference`: a frozen copy of the model is kept;
    `teacher`: another frozen model's passes; `ranks` hold the trained state in shards; `offload`: that state, and fp32
    gradients, are in host memory."""

    passes: Passes
    lora: LoraRecipe | None
    masters: bool
    muon: bool
    reference: bool
    teacher: Passes | None
    checkpointed: bool
    ranks: int
    offload: bool

    @property
    def weights(self) -> int:
        """Bytes of the whole model as it computes, adapters included."""
        shape = self.passes.shape
        return self.passes.size * (shape.weights + (shape.adapters(self.lora) if self.lora else 0))

    @property
    def trained(self) -> int:
        """Number of trained weights."""
        shape = self.passes.shape
        return shape.adapters(self.lora) if self.lora else shape.weights

    @property
    def stepped_size(self) -> int:
        """Bytes of an element that the optimiser steps."""
        return FP32 if self.masters else self.passes.size

    @property
    def moments(self) -> int:
        """Bytes of the optimiser's moments: two of each weight, or one where Muon steps a hidden matrix."""
        shape = self.passes.shape
        by_muon = 0
        if self.muon:
            by_muon = self.trained if self.lora else shape.layers * shape.layer_matrices
        return self.stepped_size * (2 * self.trained - by_muon)

    def state(self) -> tuple[Bytes, Bytes]:
        """What is held between updates on the device, and on the host: (weights, masters, optimiser, frozen
        models)."""
        shard = self.stepped_size * self.trained // self.ranks
        # Shards, and tensors on the host, are copies beside the whole model.
        masters = shard if self.masters or self.ranks > 1 or self.offload else 0
        frozen = (self.weights - self.passes.size * self.trained) // self.ranks if self.ranks > 1 else 0
        state = {"masters": masters + frozen, "optimiser": self.moments // self.ranks}
        kept = {"reference": self.passes if self.reference else None, "teacher": self.teacher}
        models = {
            name: passes.size * passes.shape.weights // self.ranks
            for name, passes in kept.items()
            if passes is not None
        }
        if not self.offload:
            return {"weights": self.weights} | state | models, {}
        if self.ranks > 1:
            return {"weights": self.weights}, state | models
        return {"weights": self.weights} | models, state

    def kept_layers(self, tokens: int, memory: int) -> int:
        """How many layers keep their activations in a pass over `tokens`, with `memory` bytes for all: a whole model on
        a card that recomputes keeps those that fit."""
        if not self.checkpointed:
            return self.passes.shape.layers
        if self.passes.device.name == "cpu" or self.ranks > 1:
            return 0
        summed = 0 if self.offload else self.stepped_size * self.trained
        card_pass = self.passes.card_pass(trains_words=self.lora is None)
        return card_pass.kept_layers(tokens, memory - total(self.state()[0]) - summed)

    def update(self, tokens: int, rows: int, kept_layers: int = 0) -> tuple[Bytes, Bytes]:
        """The peak of forward and backward passes over `tokens`, of which `rows` are predicted; on the device and on
        the host. Gradients of earlier passes are there already. `kept_layers` of those that may recompute do not."""
        held, host = self.state()
        passes, shape, size = self.passes, self.passes.shape, self.passes.size
        summed = self.stepped_size * self.trained // self.ranks
        kept = 0 if self.offload else summed
        if self.offload:
            host |= {"gradients": summed}
        if self.ranks > 1:  # the root and two layers are gathered; the whole model is freed
            held["weights"] = size * (shape.root + 2 * shape.layer)
        card = passes.device.name == "cuda"
        embedding = 0 if self.lora else shape.embedding  # as far as it is trained
        head = size * embedding if card or self.masters else 0  # its gradient, before the layers' backward passes
        head_sum = FP32 * embedding if card else head  # beside that of other passes; on a CPU it is added in place
        # A pass's gradients at its end, and what is beside them while they are added to the others, largest first.
        own = size * self.trained if self.masters or self.offload else 0
        largest = FP32 * embedding if self.masters and not self.offload else size * embedding * card
        if self.ranks > 1:  # of root and layer: as computed, and in fp32 to be summed over ranks
            own, largest = 0 if self.lora else (size + FP32) * (shape.root + shape.layer), 0
        work = tokens * passes.layer_work
        logits = passes.logits(rows, graded=True)
        kept_layers = kept_layers if self.checkpointed else shape.layers
        activations = passes.activations(tokens, kept_layers)
        layer = work - tokens * passes.layer if kept_layers else work
        moments = (
            {"gradients": kept + head_sum, "activations": activations, "vocabulary": logits},
            {"gradients": kept + head, "activations": activations + layer},  # the last layer
            {"gradients": kept + own, "activations": work},  # the first layer
            {"gradients": kept + own + largest},  # the embedding, and the sum in fp32
        )
        return held | max(moments, key=total), host

    def optimiser_step(self) -> tuple[Bytes, Bytes]:
        """The peak while the optimiser steps the weights."""
        held, host = self.state()
        summed = self.stepped_size * self.trained // self.ranks
        (host if self.offload else held).update({"gradients": summed})
        if self.passes.device.name == "cuda" and not self.offload:  # the largest tensor before and after, and a mask
            largest = max(self.passes.shape.embedding, self.passes.shape.mlp * self.passes.shape.width)
            largest = largest if self.lora is None else self.lora.rank * self.passes.shape.mlp
            held["optimiser"] += (2 * self.passes.size + 1) * largest // self.ranks
        if self.ranks > 1:
            held.pop("weights")
        return held, host

    def frozen_pass(self, tokens: int, rows: int, passes: Passes) -> tuple[Bytes, Bytes]:
        """The peak while a frozen model with these `passes` scores `tokens`, before a pass of the learner that is not
        the first."""
        held, host = self.state()
        shape = passes.shape
        if self.ranks > 1:
            held["weights"] = passes.size * (shape.root + 2 * shape.layer)
        if not self.offload:
            held["gradients"] = self.stepped_size * self.trained // self.ranks
        activations = tokens * (passes.forward_work + passes.size * shape.width)
        return held | {"activations": activations, "vocabulary": passes.logits(rows, graded=False)}, host

    def save(self) -> tuple[Bytes, Bytes]:
        """What is held while a checkpoint is written: on the device what it held before, on the host of a card one
        tensor at a time, and on the first of several ranks the whole state."""
        held, host = self.state()
        if self.passes.device.name == "cpu":  # one process
            return held, host
        whole = (self.stepped_size * self.trained if self.masters else 0) + self.moments
        largest = FP32 * self.passes.shape.embedding
        return held, host | {"checkpoint": whole if self.ranks > 1 else largest}


def total(parts: Mapping[str, int]) -> int:
    """The sum of all parts."""
    return sum(parts.values())
