"""The batches of a GRPO step, and one or several updates on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sleuth.answers.factory import rightness
from sleuth.learn.batch import Advantages, Batch, batch_of_groups, has_gradient
from sleuth.learn.objective import PolicyLoss
from sleuth.learn.policy import Policy, Update
from sleuth.learn.token_budget import TokenBudget
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.training.step_metrics import mean_of
from sleuth.types import Group, Score

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
    loss, guidance = stage.loss, partial(guidance_of, stage=stage)
    if not loss.beta and not has_gradient(groups, advantages, guidance):
        return None
    batch = batch_of_groups(groups, advantages, normalise=loss.normalise, constant=loss.constant, guidance=guidance)
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
