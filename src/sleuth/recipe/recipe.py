"""A whole run: `Recipe`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

from sleuth.recipe.data import AnsweredRowsRecipe
from sleuth.recipe.envs import EnvRecipe, RefineEnvRecipe, ThoughtEnvRecipe
from sleuth.recipe.evaluation import EvaluateRecipe, ProbeRecipe, ReasonRecipe
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.preference import OnlineDpoRecipe, WinRateRecipe
from sleuth.recipe.rewards import RewardRecipe
from sleuth.recipe.strict import Name, Row, StrictModel, combination
from sleuth.recipe.supervised import SupervisedRecipe, WarmStartRecipe

StageRecipe = Annotated[
    SupervisedRecipe
    | WarmStartRecipe
    | GrpoRecipe
    | OnlineDpoRecipe
    | EvaluateRecipe
    | WinRateRecipe
    | ProbeRecipe
    | ReasonRecipe,
    Field(discriminator="kind"),
]


def _nearest(places: Iterable[int], index: int) -> int:
    """The place nearest to `index`, an earlier one first."""
    return min(places, key=lambda at: (abs(at - index), at))


class ResolvedFrom(StrictModel):
    """How a recipe came to be. Written by `load_recipe` and kept in the resolved copy; nobody types it."""

    files: Row[str] = ()
    """The files that were laid over each other, the outermost parent first."""
    set: Row[str] = ()
    """The overrides of their `[set]` tables and of `--set`, in the order in which they were applied."""


class Recipe(StrictModel):
    """A run as it is written in TOML: who is trained, and the stages in order.

    `load_recipe("recipes/demo.toml").stage[0].kind == "evaluate"`.
    """

    name: Name
    """What the run is called."""
    model: str = ""
    """The base: a folder or a hub id. May be left out only where the first stage has an `[init]` block."""
    seed: NonNegativeInt = 0
    """Every random draw of the run is keyed by it."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the weights are computed in; below float32 the optimiser keeps float32 masters."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the run computes; "auto" takes a GPU where there is one."""
    trackers: Row[Literal["tensorboard", "wandb", "trackio"]] = ()
    """Where the figures of `metrics.jsonl` go too; needs `pip install "sleuth[trackers]"`."""
    stage: Annotated[Row[StageRecipe], Field(min_length=1)]
    """The stages, in the order in which they run."""
    resolved_from: ResolvedFrom = ResolvedFrom()
    """Written by `sleuth` into resolved copies; not for setting."""

    def played_in(self, index: int) -> tuple[EnvRecipe, int]:
        """The environment and the context of a stage that plays episodes. An evaluation without its own takes those of
        the nearest `grpo` stage, an earlier one first: what is measured is what was trained."""
        stage = self.stage[index]
        if isinstance(stage, GrpoRecipe) and not isinstance(stage.env, ThoughtEnvRecipe):
            return stage.env, stage.context
        if not isinstance(stage, EvaluateRecipe):
            raise ValueError(f"stage.{index} ({stage.name}) asks no questions")
        trained = self._asking()
        if not trained:
            assert stage.env is not None  # the checks below let no such recipe pass
            assert stage.context is not None
            return stage.env, stage.context
        env, context, _ = trained[_nearest(trained, index)]
        return stage.env or env, stage.context or context

    def answered_in(self, index: int) -> tuple[RefineEnvRecipe, int | None]:
        """The environment that asks for the answers which a supervised stage teaches, and the context: its own, or
        those of the nearest `grpo` stage. Without such a stage there is no context but the model's."""
        stage = self.stage[index]
        assert isinstance(stage, SupervisedRecipe)
        trained = self._asking()
        near = trained[_nearest(trained, index)] if trained else None
        env = stage.env or (near[0] if near else None)
        if not isinstance(env, RefineEnvRecipe):
            raise ValueError(
                f'stage.{index}.env is missing: data.kind = "rows" is asked in an env of kind = "refine", and there is '
                "no grpo stage to take such a one from"
            )
        return env, near[1] if near else None

    def paid_in(self, index: int) -> tuple[RewardRecipe, ...]:
        """The rewards of a stage; of an evaluation, those of the nearest `grpo` stage; none where there is none."""
        trained = self._asking()
        return trained[_nearest(trained, index)][2] if trained else ()

    def _asking(self) -> dict[int, tuple[EnvRecipe, int, tuple[RewardRecipe, ...]]]:
        """Environment, context and rewards of the `grpo` stages that ask questions, by their places."""
        return {
            at: (stage.env, stage.context, stage.reward)
            for at, stage in enumerate(self.stage)
            if isinstance(stage, GrpoRecipe) and not isinstance(stage.env, ThoughtEnvRecipe)
        }

    def warmed(self, index: int) -> GrpoRecipe:
        """The stage that a warm start prepares: the next `grpo` stage behind it."""
        stage = next((stage for stage in self.stage[index + 1 :] if isinstance(stage, GrpoRecipe)), None)
        if stage is None:
            raise ValueError(f'stage.{index}.kind = "warm_start" prepares a grpo stage, and none stands behind it')
        return stage

    @combination
    def _answers_are_asked_for(self) -> Iterator[str]:
        for index, stage in enumerate(self.stage):
            if not isinstance(stage, SupervisedRecipe) or not isinstance(stage.data, AnsweredRowsRecipe):
                continue
            try:
                self.answered_in(index)
            except ValueError as error:
                yield str(error)

    @combination
    def _warm_starts_have_their_stage(self) -> Iterator[str]:
        for index, stage in enumerate(self.stage):
            if not isinstance(stage, WarmStartRecipe):
                continue
            try:
                env = self.warmed(index).env
            except ValueError as error:
                yield str(error)
                continue
            if env.kind != "search":
                doing = "refines" if isinstance(env, RefineEnvRecipe) else "thinks"
                yield f'stage.{index}.kind = "warm_start" teaches to search, and the stage behind it {doing}'

    @combination
    def _weights_fit(self) -> Iterator[str]:
        inits = [isinstance(stage, SupervisedRecipe) and stage.init is not None for stage in self.stage]
        if not self.model and not inits[0]:
            yield ("model is missing: name a folder or a hub id, or give the first stage an [stage.init] block")
        if any(inits[1:]):
            index = inits.index(True, 1)
            yield (f"stage.{index}.init would throw away what the stages before it learned; only the first may")

    @combination
    def _masters_are_of_use(self) -> Iterator[str]:
        for index, stage in enumerate(self.stage):
            if self.dtype == "float32" and not getattr(stage, "master_weights", True):
                yield (
                    f'stage.{index}.master_weights = false has no effect with dtype = "float32", in which the weights '
                    "are their own masters; leave it out"
                )

    @combination
    def _offloading_is_of_use(self) -> Iterator[str]:
        for index, stage in enumerate(self.stage):
            if self.device == "cpu" and getattr(stage, "cpu_offload", False):
                yield (
                    f'stage.{index}.cpu_offload = true has no effect with device = "cpu", where all lies in the memory '
                    "of processors; leave it out"
                )

    @combination
    def _names_differ(self) -> Iterator[str]:
        seen: dict[str, int] = {}
        for index, stage in enumerate(self.stage):
            if stage.name in seen:
                yield (
                    f'stage.{index}.name = "{stage.name}" is the name of stage.{seen[stage.name]} too; choose another'
                )
            seen[stage.name] = index
        for index, stage in enumerate(self.stage):
            if (
                isinstance(stage, EvaluateRecipe)
                and stage.forced_search_arm
                and (name := f"{stage.name}_forced") in seen
            ):
                yield (f"stage.{seen[name]}.name = {name!r} is where stage.{index}.forced_search_arm writes; rename it")

    @combination
    def _evaluations_know_their_env(self) -> Iterator[str]:
        if self._asking():
            return
        for index, stage in enumerate(self.stage):
            for key in ("env", "context") if isinstance(stage, EvaluateRecipe) else ():
                if getattr(stage, key) is None:
                    yield f"stage.{index}.{key} is missing, and there is no grpo stage to take it from"

    @combination
    def _forced_searches_are_allowed(self) -> Iterator[str]:
        for index, stage in enumerate(self.stage):
            if not isinstance(stage, EvaluateRecipe) or not stage.forced_search_arm:
                continue
            if not self._asking() and None in (stage.env, stage.context):
                continue  # it asks in no env at all
            env = self.played_in(index)[0]
            if isinstance(env, RefineEnvRecipe) or env.searches == 0:
                yield f"stage.{index}.forced_search_arm = true needs an env with searches of 1 or more"
