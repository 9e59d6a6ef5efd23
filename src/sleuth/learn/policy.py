"""The policy under training: a model, its optimiser, one optimiser step over a batch, and the token budget of its
passes, which shrinks until they fit the memory."""

from __future__ import annotations

import copy
import dataclasses
import gc
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.host.threads import to_stderr
from sleuth.kernels.device import is_out_of_memory, keep_freed_memory, release_cached_memory, return_freed_memory
from sleuth.learn.batch import Batch, Top
from sleuth.learn.logprobs import PassFigures, packer_of, token_logprobs, token_top_logprobs, tree_attention
from sleuth.learn.losses import Objective, PolicyLoss, SupervisedLoss
from sleuth.learn.master_weights import Holding, MasterWeights
from sleuth.learn.models import check_family
from sleuth.learn.optim import Optimisation, Optimiser
from sleuth.learn.prefix_tree import Pack, packed, shard_packs
from sleuth.learn.recomputation import Recomputation
from sleuth.ranks import ALONE, Ranks
from sleuth.types import SleuthError, TransientError

ONE_ROW = 1
"""The budget of packs under which every row is computed by itself, as padded batches do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one optimiser step did. Means are over the trained tokens, by their weights in the loss.

    `kl` is to the reference model and None without one; `teacher_kl` is to the teacher, over all tokens computed, and
    None if no token followed it; `sampler_learner_kl` is None if the sampler gave no log-probabilities. `gradient_norm`
    is before the clip. `tokens_computed` counts the learner's own pass, each distinct prefix once; `tokens_dense` all
    tokens of the rows.
    """

    loss: float
    entropy: float
    clip_fraction: float = 0.0
    kl: float | None = None
    teacher_kl: float | None = None
    sampler_learner_kl: float | None = None
    gradient_norm: float
    learning_rate: float
    changed_weights_fraction: float
    tokens_trained: int
    tokens_computed: int
    tokens_dense: int


Made = TypeVar("Made", bound=Update)


def no_update(kind: type[Update] = Update) -> dict[str, Any]:
    """The figures of an `Update` that was not made."""
    counts = ("changed_weights_fraction", "tokens_trained", "tokens_computed", "tokens_dense")
    return dict.fromkeys(field.name for field in dataclasses.fields(kind)) | dict.fromkeys(counts, 0)


class NotFiniteError(SleuthError):
    """A loss or a gradient is NaN or infinite. The weights were not changed."""


class Policy:
    """A causal language model in training. Dropout stays off: the learner must be the policy that was sampled.

    Only parameters that require a gradient are stepped. `reference`, if given, is a frozen model (see `frozen_copy`)
    that every update measures the KL to, and `teacher` one that rows with guidance follow, on the sampled tokens or,
    with `teacher_top_k`, on so many of its likeliest. With `gradient_checkpointing` a layer's activations are
    recomputed in the backward pass instead of being kept, on a card only those that would not fit, and freed memory is
    returned to the system: the same gradients in less memory, for up to a third more work, and on a CPU the time to
    allocate pages again. `holding` says how models are held: whole in this process, or in shards over ranks. Then every
    rank makes the same updates with the same batches, computes its share of each, and `model` has the new weights on
    all of them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optimisation: Optimisation,
        reference: PreTrainedModel | None = None,
        *,
        teacher: PreTrainedModel | None = None,
        teacher_top_k: int | None = None,
        gradient_checkpointing: bool = False,
        holding: Holding = MasterWeights,
    ) -> None:
        check_family(model.config)
        if gradient_checkpointing:
            return_freed_memory()
        else:
            keep_freed_memory()
        self.model = model
        self._holding = holding
        self.measure_from(reference)
        self.teacher = None if teacher is None else holding(teacher)
        self.teacher_top_k = teacher_top_k
        self.masters = holding(model)
        whole = self.masters.ranks.alone
        self._recomputation = Recomputation(self.masters.module, whole=whole) if gradient_checkpointing else None
        self.optimiser = Optimiser(model, self.masters.tensors, optimisation)
        self.max_grad_norm = optimisation.max_grad_norm
        model.eval()

    def measure_from(self, reference: PreTrainedModel | None) -> None:
        """Replaces the reference model, or removes it."""
        self.reference = None if reference is None else self._holding(reference)

    def update(self, batch: Batch, loss: PolicyLoss, *, budget: int, ends_step: bool = True) -> Update:
        """One step of the policy gradient, in passes over at most `budget` distinct tokens. No token is computed twice
        if the model is whole and on a CPU, and the loss is a sum over tokens (see `sleuth.learn.logprobs`).

        Without a KL term the gradient of rows with advantage 0 is exactly 0, so they are not computed, and the
        statistics are of the other rows. Their token weights, which are fixed over all rows, do not change. With
        an update that `ends_step` the schedule of the learning rate goes on.

        Raises NotFiniteError, with the weights untouched, if loss or gradient is not finite, and SleuthError if the
        loss needs the sampler's log-probabilities and the batch has none.
        """
        rows = self._rows_with_gradient(batch, loss)
        return self.minimise(rows, loss, Update, budget=budget, ends_step=ends_step)

    def gradient(self, batch: Batch, loss: PolicyLoss, *, budget: int, by_row: bool = False) -> tuple[float, Tensor]:
        """The loss of `update` and its gradient as one fp32 vector, before any clip; the weights do not change.
        `by_row`: each row in a pass of its own, as in padded batches; no prefix is shared."""
        batch = self._rows_with_gradient(batch, loss)
        try:
            packs = shard_packs(batch, ONE_ROW, self.masters.ranks) if by_row else self._packs(batch, loss, budget)
            sums = self._accumulate(packs, loss, budget)
            return sums["loss"], self.masters.gradient()
        finally:
            self.masters.discard_gradients()

    def supervise(self, batch: Batch, *, budget: int) -> Update:
        """One step of cross-entropy on the batch's trained tokens; otherwise as `update`."""
        return self.minimise(batch, SupervisedLoss(), Update, budget=budget)

    def _rows_with_gradient(self, batch: Batch, loss: PolicyLoss) -> Batch:
        """The rows that a policy loss computes; raises SleuthError if it needs log-probabilities that are missing."""
        if batch.sampler_logprobs is None and loss.needs_sampler:
            raise SleuthError(
                "stage.loss: the engine gave no log-probabilities, which tis_cap and "
                "old_logprobs = 'sampler' need; ask the engine for them, or remove these keys"
            )
        if loss.beta and self.reference is None:
            raise ValueError("beta is not zero, but the policy has no reference model")
        return batch if loss.beta else batch.with_advantage()

    @property
    def state_bytes(self) -> int:
        """The size of `state_dict` once every weight was stepped."""
        moments = {"adamw": 2, "muon": 1}
        stepped = self.optimiser.stepped.items()
        return sum(moments[name] * tensor.nbytes for name, of_part in stepped for tensor in of_part) + (
            self.masters.state_bytes
        )

    def state_dict(self) -> dict[str, Any]:
        """All state that the model's own files do not have: optimiser, schedule, and the masters of 16-bit weights; the
        same on any number of ranks, with its tensors on the first."""
        return {
            "optimiser": self.masters.gather_state(self.optimiser.state_dict()),
            "masters": self.masters.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue, bit for bit, where `state_dict` was taken; the model must hold the weights of that moment."""
        self.masters.load_state_dict(state["masters"])
        self.optimiser.load_state_dict(self.masters.shard_state(state["optimiser"], self.optimiser.stepped))

    def minimise(
        self, batch: Batch, objective: Objective, kind: type[Made], *, budget: int, ends_step: bool = True
    ) -> Made:
        """One step on all rows of the batch; `kind` has a field for each statistic of the objective. Otherwise as
        `update`."""
        packs = self._packs(batch, objective, budget)
        self.masters.set_aside()
        try:
            sums = self._accumulate(packs, objective, budget)
            norm = self._clip_gradients()
        except NotFiniteError:
            self.masters.discard_gradients()
            self.masters.restore()
            raise
        except BaseException:
            self.masters.discard_gradients()
            raise
        learning_rate = self.optimiser.learning_rate
        changed = self.masters.ranks.all_reduce({"changed": self._step_weights(ends_step)})["changed"]
        self.masters.discard_gradients()
        self.masters.publish()
        total_weight = float(batch.weights.sum())
        loss, computed = sums.pop("loss"), sums.pop("tokens_computed")
        return kind(
            loss=loss,
            gradient_norm=norm,
            learning_rate=learning_rate,
            changed_weights_fraction=changed
            / self.masters.replicas
            / sum(map(torch.numel, self.masters.tensors.values())),
            tokens_trained=batch.tokens_trained,
            tokens_computed=int(computed),
            tokens_dense=batch.tokens_dense,
            **{name: value / total_weight for name, value in sums.items()},
        )

    def _packs(self, batch: Batch, objective: Objective, budget: int) -> list[Pack]:
        """This rank's packs; the whole batch as one where the budget is kept chunk by chunk."""
        if objective.is_sum_over_tokens and self.masters.takes_chunks:
            return [packed(batch, range(len(batch.lengths)))]
        cut = packer_of(self.model)
        return shard_packs(batch, budget, self.masters.ranks, together=objective.rows_together, cut=cut)

    def _accumulate(self, packs: Sequence[Pack], objective: Objective, budget: int) -> dict[str, float]:
        """Add the gradients of all packs; over all ranks, the loss, the tokens computed for it, and each statistic's
        weighted sum."""
        figures = self._figures(packs, objective, budget)
        # Read at the end, together: each wait for a pass would leave a card idle until the next one is sent.
        numbers = iter(torch.stack([value.double() for of_pass in figures for value in of_pass.values()]).tolist())
        sums = Counter[str]()
        for of_pass in figures:
            sums.update({name: next(numbers) for name in of_pass})
        total = self.masters.ranks.all_reduce(sums)
        self._require_finite("loss", total["loss"])
        return total

    def _figures(self, packs: Sequence[Pack], objective: Objective, budget: int) -> list[dict[str, Tensor]]:
        """What `_backward` returns of each pack. Where memory runs out, all are tried again with more layers that
        compute their activations again, before an error tells the caller to take fewer tokens."""
        while True:
            try:
                return [self._backward(part.to(self.model.device), objective, budget) for part in packs]
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or self._recomputation is None or not self._recomputation.keeps_less():
                    raise
            self.masters.discard_gradients()
            gc.collect()
            release_cached_memory()

    def _backward(self, part: Pack, objective: Objective, budget: int) -> dict[str, Tensor]:
        """Add the pack's gradients; its share of what `_accumulate` adds up, each without a dimension."""
        temperature = objective.temperature
        # In the last layer tree attention skips outputs that nothing reads, also when layers are recomputed.
        recomputation = self._recomputation.of_pass(part.tree) if self._recomputation else nullcontext()
        with tree_attention(self.masters.module), recomputation:
            reference = None
            if objective.reads_reference and self.reference is not None:
                reference = self._frozen(self.reference, token_logprobs, part, temperature, budget)[0]
            if part.rows.guidance is not None and self.teacher is not None:
                verdicts = self._verdicts_of(self.teacher, part, temperature, budget)
                part = dataclasses.replace(part, rows=dataclasses.replace(part.rows, **verdicts))
            if objective.is_sum_over_tokens:
                computed = self.masters.add_gradients(
                    part, objective, reference, temperature=temperature, budget=budget
                )
                _, statistics = objective(part.rows, computed.logprobs, reference)
            else:
                attention = objective.attention_loss()
                observe = None if attention is None else attention.observe
                logprobs, entropy = self.masters.run(token_logprobs, part, temperature=temperature, observe=observe)
                share, statistics = objective(part.rows, logprobs, reference)
                if attention is not None:
                    more, of_attention = attention.loss(part)
                    share, statistics = share + more, statistics | of_attention
                share.backward()
                self.masters.collect_gradients()
                computed = PassFigures(
                    loss=share.detach(), logprobs=logprobs.detach(), entropy=entropy, computed=len(part.tree)
                )
        statistics["entropy"] = computed.entropy
        sums = {name: (values * part.rows.weights).sum() for name, values in statistics.items()}
        tokens = torch.full_like(computed.loss, computed.computed, dtype=torch.float64)
        return {"loss": computed.loss, "tokens_computed": tokens, **sums}

    def _step_weights(self, ends_step: bool) -> int:
        """How many weights changed. Running out of memory here is an error that no smaller budget helps against: some
        weights may be stepped already."""
        try:
            return self.optimiser.step(ends_step=ends_step)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise SleuthError(
                f"out of memory in step {self.optimiser.steps + 1} of the optimiser, whose state of "
                f"{self.state_bytes:,} bytes does not fit: the same command continues from the last checkpoint; set "
                "cpu_offload = true on a GPU, or train adapters with [stage.lora]"
            ) from None

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

    def _verdicts_of(self, teacher: MasterWeights, part: Pack, temperature: float, budget: int) -> dict[str, Any]:
        """The fields of a batch that a teacher fills."""
        if self.teacher_top_k is None:
            return {"teacher_logprobs": self._frozen(teacher, token_logprobs, part, temperature, budget)[0]}
        logprobs, tokens, of_tokens = self._frozen(
            teacher, token_top_logprobs, part, temperature, budget, top_k=self.teacher_top_k
        )
        return {"teacher_logprobs": logprobs, "teacher_top": Top(tokens=tokens, logprobs=of_tokens)}

    @torch.no_grad()
    def _frozen(
        self,
        frozen: MasterWeights,
        function: Callable[..., tuple[Tensor, ...]],
        part: Pack,
        temperature: float,
        budget: int,
        **options: int,
    ) -> Sequence[Tensor]:
        """What a frozen model computes of a pack, (R, T, ...) each. A pack over the budget, which the policy computes
        in chunks, is split into smaller packs."""
        if len(part.tree) <= budget or not self.masters.takes_chunks:
            return frozen.run(function, part, temperature=temperature, **options)
        whole: list[Tensor] = []
        for some in packer_of(frozen.module)(part.rows, budget):
            values = frozen.run(function, some, temperature=temperature, **options)
            whole = whole or [value.new_zeros(*part.rows.tokens.shape, *value.shape[2:]) for value in values]
            for target, value in zip(whole, values, strict=True):
                target[list(some.members), : value.shape[1]] = value
        return whole


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A reference model: the same weights, which never change."""
    return copy.deepcopy(model).eval().requires_grad_(False)


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
