"""`kind = "warm_start"`: what a policy does right under a hint is taught it without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from sleuth.recipe.envs import Role
from sleuth.recipe.strict import Name, StrictModel, combination
from sleuth.recipe.training import TrainingRecipe


class HintRecipe(StrictModel):
    """What makes a policy do what it never does by itself."""

    prompt: str | None = None
    """Another prompt than the one that is taught, such as "search_example"."""
    prompt_role: Role | None = None
    """Where that prompt stands, if elsewhere than the one that is taught."""
    dialect: str | None = None
    """A protocol that the policy knows already; what it does right there is taught in the words of the real one."""
    forced_search: bool = False
    """The first search is opened for the policy; it is taught to open it."""

    @combination
    def _hints(self) -> Iterator[str]:
        if self.prompt is None and self.dialect is None and not self.forced_search:
            yield (
                "prompt is missing: name one that hints, or a dialect that is known already, "
                "or set forced_search = true"
            )


class WarmStartRecipe(TrainingRecipe):
    """A beginning for a policy that never searches (rejection sampling: STaR, arXiv:2203.14465), or that does not know
    the protocol: it plays questions of the `grpo` stage that follows under a hint, and what was right is taught under
    the real prompt. Left out where the policy searches already."""

    kind: Literal["warm_start"]
    name: Name = "warm_start"
    """What the stage is called in the run folder."""
    hint: HintRecipe
    """What helps the policy while it plays; the rows that are taught leave it out."""
    below: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Only where a smaller share of the policy's own episodes searches."""
    taught: Literal["right", "answered"] = "right"
    """Which episodes: those that searched and were right, or all that ended with an answer, which is the protocol
    alone and no better habits."""
    prompts: PositiveInt = 128
    """Questions that are played, with and without the hint; all else is that of the `grpo` stage."""
    samples_per_prompt: PositiveInt | None = None
    """Episodes of each question under the hint; absent: as many as the `grpo` stage samples."""
    rows_per_step: PositiveInt = 16
    """Right episodes in one optimiser step."""
