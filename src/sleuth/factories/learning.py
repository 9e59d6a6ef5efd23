"""What a stage's numbers are to the learner: its optimiser, its loss, and who holds its weights."""

from __future__ import annotations

from functools import partial

from sleuth.learn.adapters import Adapters
from sleuth.learn.masters import Holding, MasterWeights
from sleuth.learn.objective import PolicyLoss
from sleuth.learn.optim import Optimisation
from sleuth.ranks import Ranks
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.training import LoraRecipe, TrainingRecipe


def optimisation_of(stage: TrainingRecipe) -> Optimisation:
    """The optimiser's numbers of any stage that trains."""
    return Optimisation(
        name=stage.optimiser,
        steps=stage.steps,
        learning_rate=stage.learning_rate,
        schedule=stage.schedule,
        warmup_steps=stage.warmup_steps,
        betas=stage.betas,
        weight_decay=stage.weight_decay,
        max_grad_norm=stage.max_grad_norm,
        master_weights=stage.master_weights,
    )


def adapters_of(lora: LoraRecipe) -> Adapters:
    """The recipe's `lora` as the learner takes it."""
    return Adapters(rank=lora.rank, alpha=lora.alpha, targets=lora.targets)


def holding_on(ranks: Ranks, *, offload: bool = False) -> Holding:
    """Whole in one process, in shards over several; with `offload` the shards are kept in the memory of processors."""
    if ranks.alone:
        return MasterWeights
    from sleuth.distributed.shards import Shards  # which loads FSDP

    return partial(Shards, ranks=ranks, offload=offload)


def policy_loss_of(stage: GrpoRecipe) -> PolicyLoss:
    """The recipe's `[stage.loss]` as the policy takes it."""
    loss = stage.loss
    return PolicyLoss(
        policy_loss=loss.policy_loss,
        ratio=loss.ratio,
        old_logprobs=loss.old_logprobs,
        clip_low=loss.clip_low,
        clip_high=loss.clip_high,
        kl=loss.kl,
        beta=loss.beta,
        tis_cap=loss.tis_cap,
        sequence_mask=loss.sequence_mask,
        temperature=stage.sampling.temperature,
    )
