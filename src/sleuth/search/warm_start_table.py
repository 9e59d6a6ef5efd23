"""`kind = "warm_start"`: next-token prediction on the policy's own right episodes, or a teacher's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from sleuth.recipe.data import Lengths
from sleuth.recipe.envs import Role
from sleuth.recipe.strict import Name, StrictModel, combination
from sleuth.recipe.training import TrainingRecipe

if TYPE_CHECKING:
    from sleuth.recipe import GrpoRecipe, Recipe


class HintRecipe(StrictModel):
    """Helps the policy to search or to follow the protocol while it plays. The hint is removed from the rows that are
    trained."""

    named: ClassVar[Mapping[str, str]] = {"dialect": "dialect", "prompt": "text"}
    prompt: str | None = None
    """Another prompt than the one that is trained, such as "search_example"."""
    prompt_role: Role | None = None
    """Role of that prompt; absent: the role of the prompt that is trained."""
    dialect: str | None = None
    """A protocol that the policy already follows; right episodes are translated into the stage's own for training."""
    forced_search: bool = False
    """The environment opens the first search; the policy is trained to open it itself."""

    @combination
    def _hints(self) -> Iterator[str]:
        if self.prompt is None and self.dialect is None and not self.forced_search:
            yield (
                "prompt is missing: name a prompt that hints, or a dialect that the policy already follows, "
                "or set forced_search = true"
            )


class WarmStartRecipe(TrainingRecipe):
    """Rejection sampling (STaR, arXiv:2203.14465) for a policy that never searches or does not follow the protocol. It
    plays questions of the next `grpo` stage with a hint, and trains on the right episodes under that stage's own
    prompt. Skipped if the policy already searches. Another model may play in its place: distillation by the teacher's
    own successes."""

    named: ClassVar[Mapping[str, str]] = {"teacher": "model"}
    plays_like: ClassVar[Literal["next", "nearest"] | None] = "next"
    plays_before_training: ClassVar[bool] = True
    runner: ClassVar[str] = "sleuth.search.warm_start"
    kind: Literal["warm_start"]
    name: Name = "warm_start"
    """What the stage is called in the run folder."""
    hint: HintRecipe | None = None
    """Helps the model that plays; the trained rows do not contain it. Only a teacher can do without."""
    teacher: str | None = None
    """Folder or hub id of a model with the policy's vocabulary whose episodes are trained; absent: the policy's own."""
    below: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Run the stage only if less than this share of the policy's episodes without the hint searches."""
    taught: Literal["right", "answered"] = "right"
    """Episodes to train on: "right": those that searched and were right; "answered": all that ended with an answer,
    which teaches the protocol alone."""
    prompts: PositiveInt = 128
    """Questions to play, with and without the hint; all other settings are those of the `grpo` stage."""
    samples_per_prompt: PositiveInt | None = None
    """Episodes of each question with the hint; absent: as in the `grpo` stage."""
    rows_per_step: PositiveInt = 16
    """Episodes in one optimiser step."""

    @property
    def playing_model(self) -> str | None:
        return self.teacher

    def player(self, recipe: Recipe, index: int) -> tuple[GrpoRecipe, int, int]:
        follower = recipe.grpo_stage_after(index)
        return follower, self.prompts, self.samples_per_prompt or follower.samples_per_prompt

    def lengths(self, recipe: Recipe, index: int) -> Lengths:
        follower = recipe.grpo_stage_after(index)
        return follower.env.lengths(follower.context, follower.data)

    def problems(self, recipe: Recipe, index: int) -> Iterator[str]:
        """It needs a `grpo` stage that searches after it."""
        try:
            env = recipe.grpo_stage_after(index).env
        except ValueError as error:
            yield str(error)
            return
        if env.kind != "search":
            yield (
                f'stage.{index}.kind = "warm_start" needs env.kind = "search" in the grpo stage after it, found '
                f'"{env.kind}"'
            )

    @combination
    def _plays_otherwise(self) -> Iterator[str]:
        if self.hint is None and self.teacher is None:
            yield (
                "hint is missing: without one the policy would play as before; name a prompt that hints, or a teacher"
            )
