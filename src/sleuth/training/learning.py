"""The learner of a stage: its optimiser settings, its loss, and its policy."""

from __future__ import annotations

from functools import partial

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.remote.served_teacher import ServedTeacher, find_teacher
from sleuth.learn.adapters import Adapters
from sleuth.learn.function_loss import FunctionLoss
from sleuth.learn.master_weights import Holding, MasterWeights
from sleuth.learn.models import load_outline
from sleuth.learn.objective import PolicyLoss
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy
from sleuth.own.functions import load_function
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.loss import LossRecipe
from sleuth.recipe.training import LoraRecipe, TrainingRecipe

SAME_KEYS = ("policy_loss", "ratio", "old_logprobs", "clip_low", "clip_high", "kl", "beta", "tis_cap")
"""The keys of `[stage.loss]` that the policy loss has by the same names."""
TEACHER_SECONDS = 300.0
"""Timeout of an answer of a teacher on a server."""


def optimisation_of(stage: TrainingRecipe) -> Optimisation:
    """The optimiser settings of a stage that trains."""
    return Optimisation(**stage.optimisation())


def adapters_of(lora: LoraRecipe) -> Adapters:
    """The adapters of `[stage.lora]`."""
    return Adapters(rank=lora.rank, alpha=lora.alpha, targets=lora.targets)


def policy_of(
    stage: TrainingRecipe,
    model: PreTrainedModel,
    reference: PreTrainedModel | None = None,
    ranks: Ranks = ALONE,
    teacher: PreTrainedModel | None = None,
) -> Policy:
    """The policy that a stage trains on these ranks, with the optimiser at its start."""
    return Policy(
        model,
        optimisation_of(stage),
        reference,
        teacher=teacher,
        teacher_top_k=stage.teacher.top_k if isinstance(stage, GrpoRecipe) and stage.teacher else None,
        gradient_checkpointing=stage.gradient_checkpointing,
        holding=_holding(ranks, offload=stage.cpu_offload),
    )


def served_teacher_of(stage: GrpoRecipe, tokenizer: PreTrainedTokenizerFast) -> ServedTeacher | None:
    """The teacher on a server, if the stage has one. Raises SleuthError if it cannot be used."""
    named = stage.teacher
    if named is None or named.url is None:
        return None
    eos_ids = load_outline(named.model).eos_ids
    return find_teacher(
        named.url,
        named.model,
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        context=stage.context,
        top_k=named.top_k or 0,
        seconds=TEACHER_SECONDS,
    )


def _holding(ranks: Ranks, *, offload: bool) -> Holding:
    """Whole in one process, in shards over several; with `offload` what is stepped is kept in CPU memory."""
    if ranks.alone:
        return partial(MasterWeights, offload=offload)
    from sleuth.learn.shards import Shards  # which loads FSDP

    return partial(Shards, ranks=ranks, offload=offload)


def function_loss_of(loss: LossRecipe) -> FunctionLoss:
    """The loss that a user's function computes. Raises UserCodeError if there is no such function."""
    assert loss.function is not None
    return FunctionLoss(load_function(loss.function, loss.files), loss.parameters)


def policy_loss_of(stage: GrpoRecipe) -> PolicyLoss:
    """The policy loss of `[stage.loss]`."""
    loss = stage.loss
    return PolicyLoss(
        function=None if loss.function is None else function_loss_of(loss),
        temperature=stage.sampling.temperature,
        **{name: getattr(loss, name) for name in SAME_KEYS},
    )
