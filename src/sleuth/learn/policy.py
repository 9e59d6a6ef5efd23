"""The policy under training: a model, its optimiser, and one optimiser step over a batch."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sleuth.learn import losses
from sleuth.learn.batch import Batch
from sleuth.learn.dpo import PAIR, dpo_objective
from sleuth.learn.heap import keep_freed_memory, return_freed_memory
from sleuth.learn.logprobs import tree_attention
from sleuth.learn.masters import Holding, MasterWeights
from sleuth.learn.objective import PolicyLoss, policy_objective
from sleuth.learn.optim import Optimisation, Optimiser
from sleuth.learn.prefix_tree import Pack, pack, packed
from sleuth.learn.rank_sharding import shard_packs
from sleuth.learn.targets import PassFigures, TokenLoss
from sleuth.types import SleuthError

ONE_ROW = 1
"""The budget of packs under which every row is computed by itself, as padded batches do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one optimiser step did. Means are over the trained tokens, by their weights in the loss.

    `kl` is to the reference model and None without one; `sampler_learner_kl` is None if the sampler told no
    log-probabilities, `masked_fraction` without a sequence mask.
    `gradient_norm` is before the clip. `tokens_computed` counts the learner's own pass, each distinct prefix once;
    `tokens_dense` what the rows hold.
    """

    loss: float
    entropy: float
    clip_fraction: float = 0.0
    kl: float | None = None
    sampler_learner_kl: float | None = None
    masked_fraction: float | None = None
    gradient_norm: float
    learning_rate: float
    changed_weights_fraction: float
    tokens_trained: int
    tokens_computed: int
    tokens_dense: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceUpdate(Update):
    """What one step on pairs did: besides, the mean over the pairs of what `dpo_objective` tells of each."""

    margin: float
    accuracy: float
    chosen_gain: float
    rejected_gain: float


Made = TypeVar("Made", bound=Update)


def no_update(kind: type[Update] = Update) -> dict[str, Any]:
    """The figures of an `Update` that was not made."""
    counts = ("changed_weights_fraction", "tokens_trained", "tokens_computed", "tokens_dense")
    return dict.fromkeys(field.name for field in dataclasses.fields(kind)) | dict.fromkeys(counts, 0)


class NotFiniteError(SleuthError):
    """A loss or a gradient is no number. The weights were left as they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """`share` tells what rows add to the loss, and per-token statistics (R, T) by name, of their log-probabilities and
    those of the reference model, which is read where it is `measured`. Most are a `sum_over_tokens`; one that is not
    needs all of a row first."""

    share: TokenLoss
    sum_over_tokens: bool = True
    measured: bool = False


class Policy:
    """A causal language model that learns. Dropout stays off: the learner must be the policy that was sampled.

    Only parameters that require a gradient are stepped. `reference`, if given, is a frozen model (see `frozen_copy`)
    that every update measures the KL to. With `gradient_checkpointing` a layer's activations are computed again in the
    backward pass instead of being kept, and freed memory goes back to the system: the same gradients in less memory,
    for a third more work, and on a CPU the time in which the system gives pages anew. `holding` says how models
    are held: whole, in this process, or in shards over ranks. Then every rank makes the same updates of the same
    batches, computes its share of each, and `model` has the new weights on all of them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optimisation: Optimisation,
        reference: PreTrainedModel | None = None,
        *,
        gradient_checkpointing: bool = False,
        holding: Holding = MasterWeights,
    ) -> None:
        if gradient_checkpointing:
            return_freed_memory()
        else:
            keep_freed_memory()
        self.model = model
        self._holding = holding
        self.measure_from(reference)
        self.masters = holding(model, in_fp32=optimisation.master_weights)
        self._recomputed = recomputed_layers(self.masters.module) if gradient_checkpointing else []
        self.optimiser = Optimiser(model, self.masters.tensors, optimisation)
        self.max_grad_norm = optimisation.max_grad_norm
        model.eval()

    def measure_from(self, reference: PreTrainedModel | None) -> None:
        """Take another reference model, or none."""
        self.reference = None if reference is None else self._holding(reference)

    def update(self, batch: Batch, loss: PolicyLoss, *, budget: int) -> Update:
        """One step of the policy gradient, in passes over at most `budget` distinct tokens, of which none is computed
        twice where the process holds the model on a CPU and the loss is a sum over tokens (see `limb_loss`).

        Without a KL term, rows of advantage 0 pull on nothing: their gradient is exactly 0, so they are not computed,
        and the statistics are of the rows that were. The weights of the others, fixed over all rows, stay what they
        were.

        Raises NotFiniteError, with the weights untouched, if loss or gradient is not finite, and SleuthError if the
        loss needs the sampler's log-probabilities and the batch has none.
        """
        taught, objective = self._policy_objective(batch, loss)
        return self._step(taught, objective, Update, budget=budget, temperature=loss.temperature)

    def gradient(self, batch: Batch, loss: PolicyLoss, *, budget: int, by_row: bool = False) -> tuple[float, Tensor]:
        """The loss of `update` and its gradient as one fp32 vector, before any clip; the weights stay as they are.
        `by_row`: each row in a pass of its own, as in padded batches; nothing is shared."""
        taught, objective = self._policy_objective(batch, loss)
        try:
            packs = (
                shard_packs(taught, ONE_ROW, self.masters.ranks) if by_row else self._packs(taught, objective, budget)
            )
            sums = self._accumulate(packs, objective, loss.temperature, budget)
            return sums["loss"], self.masters.gradient()
        finally:
            self.masters.discard_gradients()

    def _policy_objective(self, batch: Batch, loss: PolicyLoss) -> tuple[Batch, Objective]:
        """The rows that pull, and what each pack of them adds to the loss."""
        if batch.sampler_logprobs is None and (_needs_sampler(loss)):
            raise SleuthError(
                "stage.loss: the engine gave no log-probabilities, which tis_cap, sequence_mask and "
                "old_logprobs = 'sampler' need; ask the engine for them, or remove these keys"
            )
        if loss.beta and self.reference is None:
            raise ValueError("beta is not zero, but the policy has no reference model")

        share = partial(policy_objective, loss=loss)
        objective = Objective(share=share, sum_over_tokens=loss.is_sum_over_tokens, measured=self.reference is not None)
        return batch if loss.beta else batch.with_advantage(), objective

    def supervise(self, batch: Batch, *, budget: int) -> Update:
        """One step of cross-entropy on the batch's trained tokens; otherwise as `update`."""

        def share(rows: Batch, logprobs: Tensor, _: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
            return losses.supervised_loss(logprobs, rows.weights), {}

        return self._step(batch, Objective(share=share), Update, budget=budget, temperature=1.0)

    def prefer(self, batch: Batch, *, beta: float, budget: int) -> PreferenceUpdate:
        """One step of direct preference optimisation on the pairs of `pair_batch`, against the reference model;
        otherwise as `update`. A pair stays in one pass, whatever its length."""
        if self.reference is None:
            raise ValueError("preferences are measured from a reference model, and the policy has none")

        def share(rows: Batch, logprobs: Tensor, reference: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
            assert reference is not None
            return dpo_objective(rows, logprobs, reference, beta=beta)

        objective = Objective(share=share, sum_over_tokens=False, measured=True)
        return self._step(batch, objective, PreferenceUpdate, budget=budget, temperature=1.0, together=PAIR)

    @property
    def state_bytes(self) -> int:
        """What `state_dict` will hold once every weight was stepped."""
        moments = {"adamw": 2, "muon": 1}
        stepped = self.optimiser.stepped.items()
        return sum(moments[name] * tensor.nbytes for name, of_part in stepped for tensor in of_part) + (
            self.masters.state_bytes
        )

    def state_dict(self) -> dict[str, Any]:
        """All that the model's own files do not hold: optimiser, schedule, and the masters of 16-bit weights; the same
        on any number of ranks, with its tensors on the first."""
        return {
            "optimiser": self.masters.gather_state(self.optimiser.state_dict()),
            "masters": self.masters.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue, bit for bit, where `state_dict` was taken; the model must hold the weights of that moment."""
        self.masters.load_state_dict(state["masters"])
        self.optimiser.load_state_dict(self.masters.shard_state(state["optimiser"], self.optimiser.stepped))

    def _step(
        self,
        batch: Batch,
        objective: Objective,
        kind: type[Made],
        *,
        budget: int,
        temperature: float,
        together: int = 1,
    ) -> Made:
        packs = self._packs(batch, objective, budget, together)
        self.masters.set_aside()
        try:
            sums = self._accumulate(packs, objective, temperature, budget)
            norm = self._clip_gradients()
        except NotFiniteError:
            self.masters.discard_gradients()
            self.masters.restore()
            raise
        except BaseException:
            self.masters.discard_gradients()
            raise
        learning_rate = self.optimiser.learning_rate
        changed = self.masters.ranks.all_reduce({"changed": self.optimiser.step()})["changed"]
        self.masters.discard_gradients()
        self.masters.publish()
        total_weight = float(batch.weights.sum())
        loss, computed = sums.pop("loss"), sums.pop("tokens_computed")
        return kind(
            loss=loss,
            gradient_norm=norm,
            learning_rate=learning_rate,
            changed_weights_fraction=changed / sum(map(torch.numel, self.masters.tensors.values())),
            tokens_trained=batch.tokens_trained,
            tokens_computed=int(computed),
            tokens_dense=batch.tokens_dense,
            **{name: value / total_weight for name, value in sums.items()},
        )

    def _packs(self, batch: Batch, objective: Objective, budget: int, together: int = 1) -> list[Pack]:
        """This rank's; the whole batch where the budget is kept to limb by limb."""
        if objective.sum_over_tokens and self.masters.takes_chunks:
            return [packed(batch, range(len(batch.lengths)))]
        return shard_packs(batch, budget, self.masters.ranks, together=together)

    def _accumulate(
        self, packs: Sequence[Pack], objective: Objective, temperature: float, budget: int
    ) -> dict[str, float]:
        """Add the gradients of all packs; over all ranks, the loss, the tokens computed for it, and each statistic's
        weighted sum."""
        sums = Counter[str]()
        for part in packs:
            sums.update(self._backward(part.to(self.model.device), objective, temperature, budget))
        total = self.masters.ranks.all_reduce(sums)
        self._require_finite("loss", total["loss"])
        return total

    def _backward(self, part: Pack, objective: Objective, temperature: float, budget: int) -> dict[str, float]:
        """Add the pack's gradients; its share of what `_accumulate` adds up."""
        # The last layer spares what nobody looks at also where layers run again.
        with tree_attention(self.masters.module), _marked_as_training(self._recomputed):
            reference = self._reference_logprobs(part, temperature, budget) if objective.measured else None
            if objective.sum_over_tokens:
                told = self.masters.add_gradients(
                    part, objective.share, reference, temperature=temperature, budget=budget
                )
                _, statistics = objective.share(part.rows, told.logprobs, reference)
            else:
                logprobs, entropy = self.masters.logprobs(part, temperature=temperature)
                share, statistics = objective.share(part.rows, logprobs, reference)
                share.backward()
                self.masters.collect_gradients()
                told = PassFigures(
                    loss=share.detach(), logprobs=logprobs.detach(), entropy=entropy, computed=len(part.tree)
                )
        statistics["entropy"] = told.entropy
        sums = {name: (values * part.rows.weights).sum().item() for name, values in statistics.items()}
        return {"loss": told.loss.item(), "tokens_computed": told.computed, **sums}

    def _clip_gradients(self) -> float:
        norm = self.masters.clip_gradients(self.max_grad_norm)
        self._require_finite("gradient norm", norm)
        return norm

    def _require_finite(self, what: str, value: float) -> None:
        if math.isfinite(value):
            return
        raise NotFiniteError(
            f"the {what} of update {self.optimiser.steps + 1} is {value}; the weights were left as they were: "
            "go back to the last checkpoint with a lower learning_rate or max_grad_norm"
        )

    @torch.no_grad()
    def _reference_logprobs(self, part: Pack, temperature: float, budget: int) -> Tensor:
        """(R, T). A pack over the budget, of which the policy takes limbs, is packed anew."""
        assert self.reference is not None
        if len(part.tree) <= budget or not self.masters.takes_chunks:
            return self.reference.logprobs(part, temperature=temperature)[0]
        found = torch.zeros_like(part.rows.weights)
        for some in pack(part.rows, budget):
            logprobs, _ = self.reference.logprobs(some, temperature=temperature)
            found[list(some.members), : logprobs.shape[1]] = logprobs
        return found


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A reference model: the same weights, which never change."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def _needs_sampler(loss: PolicyLoss) -> bool:
    return loss.old_logprobs == "sampler" or loss.tis_cap is not None or loss.sequence_mask is not None


def recomputed_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Turn gradient checkpointing on; the modules that will do it, as soon as they are marked as training."""
    if not model.supports_gradient_checkpointing:
        raise SleuthError(f"gradient_checkpointing: {type(model).__name__} has none; leave the key out")
    # The name before transformers 6 and the one from it on.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    return [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]


@contextmanager
def _marked_as_training(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Only these modules, not what is in them: transformers recomputes in training alone, but dropout stays off."""
    for module in modules:
        module.training = True
    try:
        yield
    finally:
        for module in modules:
            module.training = False
