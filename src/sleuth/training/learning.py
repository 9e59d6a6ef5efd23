"""The models of a stage, its learner and token budget, and the updates on the batches of a GRPO step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.answers.factory import rightness
from sleuth.learn.adapters import Adapters, adaptable_layers, add_adapters, load_adapters
from sleuth.learn.batch import Advantages, Batch, batch_of_groups, has_gradient
from sleuth.learn.losses import FunctionAdvantages, FunctionLoss, PolicyLoss
from sleuth.learn.master_weights import Holding, MasterWeights
from sleuth.learn.models import load_frozen_teacher, load_model, weights_sha256
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, TokenBudget, Update, frozen_copy
from sleuth.own.functions import load_function
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.loss import LossRecipe
from sleuth.recipe.training import TrainingRecipe
from sleuth.training.stage_context import Saved, StageContext
from sleuth.training.step_metrics import mean_of
from sleuth.types import Group, Score, SleuthError

SAME_KEYS = ("policy_loss", "ratio", "old_logprobs", "clip_low", "clip_high", "kl", "beta", "tis_cap")
"""The keys of `[stage.loss]` that the policy loss has by the same names."""


def load(context: StageContext, path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A model in the run's precision, on the run's device."""
    recipe = context.recipe
    return load_model(str(path), dtype=recipe.dtype, device=recipe.device, verified=not context.ranks.first)


def model_to_train(context: StageContext, saved: Saved | None) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The model and tokenizer of `saved`, or those that the stage starts from. A stage with adapters always loads the
    weights it started from, since a checkpoint's weights have the adapters merged in."""
    own = saved is not None and context.stage.lora is None
    model, tokenizer = load(context, saved.checkpoint if saved and own else context.model)
    adapt(context, model, saved)
    return model, tokenizer


def adapt(context: StageContext, model: PreTrainedModel, saved: Saved | None = None) -> None:
    """Add the stage's adapters, if it has any, to the model that it starts from; with the values of `saved`."""
    lora = context.stage.lora
    if lora is None:
        return
    seed = random.Random(f"adapters {context.key}").getrandbits(63)
    targets = lora.layers(adaptable_layers(model))
    add_adapters(model, Adapters(rank=lora.rank, alpha=lora.alpha, targets=targets), seed=seed)
    if saved is not None:
        load_adapters(model, saved.checkpoint)


def starting_weights(context: StageContext, model: PreTrainedModel, saved: Saved | None) -> PreTrainedModel:
    """A frozen model with the weights that the stage starts from, under the names of `model`, of which it is a copy
    unless that is of `saved`."""
    if saved is None:
        return frozen_copy(model)
    first = load(context, context.model)[0]
    adapt(context, first)
    return frozen_copy(first)


def load_teacher(
    context: StageContext, path: str, tokenizer: PreTrainedTokenizerFast, saved: Saved | None
) -> tuple[PreTrainedModel, str]:
    """A frozen model that reads the tokens of `tokenizer`, and the sha256 of its weights, which the stage keeps in its
    state as `teacher`. Raises SleuthError if `saved` began with others."""
    recipe, verified = context.recipe, not context.ranks.first
    teacher = load_frozen_teacher(path, tokenizer, dtype=recipe.dtype, device=recipe.device, verified=verified)
    sha256 = weights_sha256(teacher)
    if saved is not None and saved.state.get("teacher") != sha256:
        raise SleuthError(
            f"{path}: this teacher has other weights than the one that the stage began with; continue with that, or "
            "start a new run"
        )
    return teacher, sha256


def token_budget(context: StageContext, saved: Saved | None) -> TokenBudget:
    """Tokens of a micro-batch: the recipe's number, or the smaller one of an earlier part of the run."""
    shortages, stage, say = context.folder.shortages, context.stage, context.folder.say
    before = saved.state["budget"] if saved else stage.tokens_per_micro_batch
    tokens = context.ranks.broadcast(lambda: shortages.fitting(stage.name, before))
    if tokens < before:
        say(f"a rank has run out of memory: from here on an update takes {tokens} tokens at once")
    return TokenBudget(tokens, say, context.ranks, partial(shortages.note, stage.name))


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
        Optimisation(**stage.optimisation()),
        reference,
        teacher=teacher,
        teacher_top_k=stage.teacher.top_k if isinstance(stage, GrpoRecipe) and stage.teacher else None,
        gradient_checkpointing=stage.gradient_checkpointing,
        holding=_holding(ranks, offload=stage.cpu_offload, ranks_per_replica=stage.ranks_per_replica),
    )


def _holding(ranks: Ranks, *, offload: bool, ranks_per_replica: int | None) -> Holding:
    """Whole in one process, in shards over several; with `offload` what is stepped is kept in CPU memory."""
    if ranks.alone:
        return partial(MasterWeights, offload=offload)
    from sleuth.learn.shards import Shards  # which loads FSDP

    return partial(Shards, ranks=ranks, offload=offload, ranks_per_replica=ranks_per_replica)


def function_loss_of(loss: LossRecipe) -> FunctionLoss:
    """The loss that a user's function computes. Raises UserCodeError if there is no such function."""
    assert loss.function is not None
    return FunctionLoss(load_function(loss.function, loss.files), loss.parameters)


def own_advantages(loss: LossRecipe) -> FunctionAdvantages | None:
    """The user's function that computes advantages, if there is one. Raises UserCodeError if it cannot."""
    return None if loss.own_advantage is None else FunctionAdvantages(load_function(loss.own_advantage, loss.files))


def policy_loss_of(stage: GrpoRecipe, made: int = 0) -> PolicyLoss:
    """The policy loss of `[stage.loss]` after so many steps, as far as a loss of the user asks for them."""
    loss = stage.loss
    return PolicyLoss(
        function=None if loss.function is None else function_loss_of(loss),
        temperature=stage.sampling.temperature,
        step=made,
        **{name: getattr(loss, name) for name in SAME_KEYS},
    )


MEANS = ("loss", "entropy", "kl", "teacher_kl")
"""Figures of several updates that are means over the first pass: of the policy that sampled, or close to it."""
MEANS_OF_ALL = ("clip_fraction", "gradient_norm")
"""Figures that are means over all updates."""


def batches_of_step(groups: Sequence[Group], advantages: Advantages, stage: GrpoRecipe) -> list[Batch]:
    """The minibatches of a step: its groups in the loss, in their order, `prompts_per_update` at a time. Each has token
    weights of its own, as a step of so many groups would. Those without a gradient are left out."""
    trained = [at for at, of_group in enumerate(advantages) if any(value is not None for value in of_group)]
    size = stage.prompts_per_update or max(1, len(trained))
    parts = [trained[begin : begin + size] for begin in range(0, len(trained), size)]
    batches = [batch_of_step([groups[at] for at in part], [advantages[at] for at in part], stage) for part in parts]
    return [batch for batch in batches if batch is not None]


def batch_of_step(groups: Sequence[Group], advantages: Advantages, stage: GrpoRecipe) -> Batch | None:
    """The episodes of these groups for the loss; None if none of them has a gradient."""
    loss = stage.loss
    taught = {} if stage.teacher is None else {"guidance": partial(guidance_of, stage=stage)}
    if not loss.beta and not has_gradient(groups, advantages, **taught):
        return None
    batch = batch_of_groups(groups, advantages, normalise=loss.normalise, constant=loss.constant, **taught)
    followed = batch.guidance is not None
    return batch if loss.beta or followed or batch.advantages.any() else None


def guidance_of(score: Score, *, stage: GrpoRecipe) -> float:
    """The weight with which an episode of this score follows the stage's teacher."""
    teacher, right = stage.teacher, rightness(score, stage.reward)
    if teacher is None or score.value is None or right is None:
        return 0.0
    return teacher.weight if teacher.when == "always" or right < 1 else 0.0


def update_on(
    policy: Policy, batches: Sequence[Batch], loss: PolicyLoss, budget: TokenBudget, *, passes: int
) -> Update:
    """One update on each batch, `passes` times over, at the learning rate of one step (the mu of arXiv:2402.03300).

    Every update has the log-probabilities of the sampler as its old ones. Tokens trained are those of the first pass,
    tokens computed those of all. Raises NotFiniteError; the updates before that stay.
    """

    def update(batch: Batch, ends_step: bool) -> Update:
        return budget.run(lambda tokens: policy.update(batch, loss, budget=tokens, ends_step=ends_step))

    *before, last = [batch for _ in range(passes) for batch in batches]
    made = [update(batch, ends_step=False) for batch in before] + [update(last, ends_step=True)]
    return combined(made, first_pass=len(batches))


def combined(made: Sequence[Update], *, first_pass: int) -> Update:
    """The figures of a step with several updates, of which the first `first_pass` are on different episodes."""
    if len(made) == 1:
        return made[0]
    means = {name: _mean(made[:first_pass], name) for name in MEANS} | {
        name: _mean(made, name) for name in MEANS_OF_ALL
    }
    return replace(
        made[0],
        **means,
        changed_weights_fraction=max(update.changed_weights_fraction for update in made),
        tokens_trained=sum(update.tokens_trained for update in made[:first_pass]),
        tokens_computed=sum(update.tokens_computed for update in made),
        tokens_dense=sum(update.tokens_dense for update in made),
    )


def _mean(updates: Sequence[Update], name: str) -> float | None:
    return mean_of([value for update in updates if (value := getattr(update, name)) is not None])
