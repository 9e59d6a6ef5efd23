"""The batches of a GRPO step, what a teacher on a server says of them, and one or several updates on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sleuth.answers.factory import rightness
from sleuth.engines.remote.served_teacher import ServedTeacher, Wanted
from sleuth.learn.batch import Advantages, Batch, Verdicts, batch_of_groups, has_gradient, in_loss
from sleuth.learn.objective import PolicyLoss
from sleuth.learn.policy import Policy, Update
from sleuth.learn.token_budget import TokenBudget
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.training.step_metrics import mean_of
from sleuth.types import Group, Score, SleuthError, Trajectory

MEANS = ("loss", "entropy", "kl", "teacher_kl")
"""Figures of several updates that are means over the first pass: of the policy that sampled, or close to it."""
MEANS_OF_ALL = ("clip_fraction", "gradient_norm")
"""Figures that are means over all updates."""


def batches_of_step(
    groups: Sequence[Group], advantages: Advantages, stage: GrpoRecipe, verdicts: Verdicts | None = None
) -> list[Batch]:
    """The minibatches of a step: its groups in the loss, in their order, `prompts_per_update` at a time. Each has token
    weights of its own, as a step of so many groups would. Those without a gradient are left out."""
    trained = [at for at, of_group in enumerate(advantages) if any(value is not None for value in of_group)]
    size = stage.prompts_per_update or max(1, len(trained))
    parts = [trained[begin : begin + size] for begin in range(0, len(trained), size)]
    batches = [
        batch_of_step([groups[at] for at in part], [advantages[at] for at in part], stage, verdicts) for part in parts
    ]
    return [batch for batch in batches if batch is not None]


def batch_of_step(
    groups: Sequence[Group], advantages: Advantages, stage: GrpoRecipe, verdicts: Verdicts | None = None
) -> Batch | None:
    """The episodes of these groups for the loss; None if none of them has a gradient. `verdicts` are those of a teacher
    on a server."""
    loss, guidance = stage.loss, partial(guidance_of, stage=stage)
    if not loss.beta and not has_gradient(groups, advantages, guidance):
        return None
    batch = batch_of_groups(
        groups, advantages, normalise=loss.normalise, constant=loss.constant, guidance=guidance, verdicts=verdicts
    )
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


def ask_teacher(
    teacher: ServedTeacher, groups: Sequence[Group], advantages: Advantages, stage: GrpoRecipe
) -> tuple[Verdicts, float | None]:
    """The verdicts by the tokens of a trajectory, and the share of the guided trajectories that have none (None if none
    is guided). Raises SleuthError if that is more than the stage allows."""
    guided = [
        trajectory
        for episode, score, _ in in_loss(groups, advantages)
        if guidance_of(score, stage=stage)
        for trajectory in episode.trajectories
    ]
    asked = {
        trajectory.tokens: Wanted(tokens=trajectory.tokens, first=first)
        for trajectory in guided
        if (first := _first_written(trajectory)) is not None
    }
    if not asked:
        return {}, None
    given = zip(asked, teacher.verdicts(list(asked.values())), strict=True)
    verdicts = {tokens: verdict for tokens, verdict in given if verdict is not None}
    missing = [trajectory for trajectory in guided if trajectory.tokens in asked.keys() - verdicts.keys()]
    if len(missing) > stage.max_missing_fraction * len(guided):
        raise SleuthError(
            f"{len(missing)} of {len(guided)} verdicts of the teacher at {teacher.server.url} are missing (it "
            f"{teacher.failure}), more than max_missing_fraction = {stage.max_missing_fraction} allows; nothing was "
            "trained: remove the cause and start the run again"
        )
    return verdicts, len(missing) / len(guided)


def _first_written(trajectory: Trajectory) -> int | None:
    """The index of the first token that the policy wrote and something predicts."""
    at = 0
    for segment in trajectory.segments:
        if segment.author == "policy" and at + len(segment.tokens) > max(at, 1):
            return max(at, 1)
        at += len(segment.tokens)
    return None
