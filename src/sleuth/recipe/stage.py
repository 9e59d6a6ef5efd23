"""`StageFields`: what other packages ask of every stage; and stages that measure, `kind = "evaluate"` first."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveInt

from sleuth.host.memory import DEFAULT_SLOTS
from sleuth.recipe.data import EvalQuestionsRecipe, Lengths
from sleuth.recipe.envs import QuestionEnvTable
from sleuth.recipe.judges import JudgedFields, JudgeFields, MemoryAmount, ServedModelRecipe
from sleuth.recipe.rewards import AnswerSize, MeasuredFields, ModelCalls, unfit_rewards
from sleuth.recipe.strict import Name, StrictModel
from sleuth.types import Task

if TYPE_CHECKING:
    from sleuth.ranks import Ranks
    from sleuth.recipe.recipe import Recipe


class StageFields(JudgedFields):
    """The base of every stage. Each kind of stage overrides what is different about it."""

    if TYPE_CHECKING:
        name: Any
        """Set by each class."""

    runner: ClassVar[str] = ""
    """The module that runs it, imported when it is needed: its functions `run(stage, context)` and
    `require_inputs(stage, inputs)`, and, if it has them, `require_ranks`, `notes` and `require_passed`."""
    trains: ClassVar[bool] = False
    """Whether it changes the model."""
    measures: ClassVar[bool] = False
    """Whether it writes evaluation files. On several ranks each then runs it, with a share of what it asks; of other
    stages that do not train the first rank does."""
    plays_like: ClassVar[Literal["next", "nearest"] | None] = None
    """The `grpo` stage whose servers play it: the next one, or the nearest; None: it plays in its process."""
    models: ClassVar[int] = 1
    """Models in memory while it generates."""

    def run(self, context: Any) -> Path:
        """Runs the stage in a `StageContext`; the model for the next stage."""
        return import_module(self.runner).run(self, context)

    def require_inputs(self, inputs: Any) -> list[Task]:
        """The questions of the stage. Raises SleuthError if it could not run with these `StageInputs`."""
        return import_module(self.runner).require_inputs(self, inputs)

    def require_ranks(self, ranks: Ranks) -> None:
        """Raises SleuthError if it cannot run in so many processes."""
        self._call_if_there("require_ranks", ranks)

    def notes(self, inputs: Any, tasks: list[Task]) -> list[str]:
        """What is known before the run, and no error, of the stage with these questions."""
        return self._call_if_there("notes", inputs, tasks) or []

    def require_passed(self, context: Any) -> None:
        """Called when its results are written. Raises StoppedByRule if the run should not go on."""
        self._call_if_there("require_passed", context)

    def _call_if_there(self, name: str, *arguments: Any) -> Any:
        function = getattr(import_module(self.runner), name, None) if self.runner else None
        return None if function is None else function(self, *arguments)

    def problems(self, recipe: Recipe, index: int) -> Iterator[str]:
        """What of it, as stage number `index`, does not fit the recipe: messages that begin with their key."""
        return iter(())

    def evaluation_problems(self, recipe: Recipe) -> Iterator[str]:
        """What of the evaluations that it makes on its way does not fit the recipe."""
        return iter(())

    def lengths(self, recipe: Recipe, index: int) -> Lengths:
        """Of the sequences that it generates or, as a supervised stage, trains on."""
        raise NotImplementedError(f"no lengths of a {self.own_kind()} stage")

    @property
    def last_step(self) -> int:
        """The last optimiser step that runs; 0 for a stage without steps."""
        return 0

    @property
    def writes(self) -> Literal["answers", "continuations", "thoughts"]:
        """What a model that it trains writes."""
        return "answers"

    def judges(self) -> tuple[JudgeFields, ...]:
        """Those of its rewards, and its own."""
        return (*(judge for reward in getattr(self, "reward", ()) for judge in reward.judges()), *super().judges())

    def launched(self) -> tuple[ServedModelRecipe, ...]:
        """The judges and the teacher whose servers the run starts, each server once."""
        asked = [*self.judges(), getattr(self, "teacher", None)]
        served = [one for one in asked if isinstance(one, ServedModelRecipe) and one.launch is not None]
        return tuple({one.server: one for one in served}.values())

    def model_calls(self, size: AnswerSize) -> Iterator[ModelCalls]:
        """Calls of models over HTTP in one step; of a stage without steps, all of them."""
        return iter(())

    def methods(self) -> tuple[str, ...]:
        """Published methods that it follows, by their names in `sleuth.runs.model_card.METHODS`."""
        return getattr(getattr(self, "data", None), "methods", ())


class SampledRecipe(StrictModel):
    """The keys of every stage whose model generates text in this process."""

    cache_memory: MemoryAmount | None = None
    """Memory of the in-process engine's KV cache, such as "8GB", or "40%" of the device's memory; absent: a share of
    what is free (0.8 on a card, 0.5 on a CPU), and never more than the requests can fill. When it is full, requests
    wait."""
    slots: PositiveInt = DEFAULT_SLOTS
    """Maximum number of requests that the in-process engine runs at once."""


class EvaluationFields(SampledRecipe, StageFields):
    """What differs between stages that measure; the defaults are those of one that samples once at `data.limit` places
    of texts."""

    measures: ClassVar[bool] = True
    plays_like: ClassVar[Literal["next", "nearest"] | None] = "nearest"

    kind: Any
    """Set by each kind of stage."""
    name: Name
    """Name of the evaluation file."""

    @property
    def arms(self) -> int:
        """How often each question is asked, under other conditions."""
        return 1

    @property
    def evaluations(self) -> tuple[str, ...]:
        """Names of the evaluation files that it writes, without those of single sets."""
        return (self.name,)

    @property
    def samples_of_each(self) -> int:
        """Answers to each question in each arm."""
        return getattr(self, "samples", 1)

    @property
    def asked(self) -> int | None:
        """The number of questions; None where only the file knows it."""
        data: Any = getattr(self, "data", None)
        return data.limit

    def model_calls(self, size: AnswerSize) -> Iterator[ModelCalls]:
        for reward in (*getattr(self, "reward", ()), *getattr(self, "judged_again", ())):
            yield from reward.calls_for((self.asked or 0) * self.samples_of_each * self.arms, size)


class EvaluateRecipe(EvaluationFields, MeasuredFields):
    """Answers questions with the current model and writes `eval/NAME.json`; for a suite, `eval/NAME@SET.json` for each
    set, and their mean in `eval/NAME.json`."""

    runner: ClassVar[str] = "sleuth.training.evaluate_stage"
    kind: Literal["evaluate"]
    name: Name
    """Name of the evaluation file, such as "base" or "trained"."""
    temperature: NonNegativeFloat = 0.0
    """Sampling temperature; 0: greedy."""
    context: PositiveInt | None = None
    """Longest episode in tokens; absent: that of the nearest `grpo` stage."""
    data: EvalQuestionsRecipe
    """The questions to ask."""
    forced_search_arm: bool = False
    """Whether to ask again with the first action replaced by an opening search tag, in `eval/NAME_forced.json`. A
    trained model's gain over this arm is more than the habit of searching."""
    env: QuestionEnvTable | None = None
    """The environment; absent: that of the nearest `grpo` stage, so that evaluation matches training."""

    def judges(self) -> tuple[JudgeFields, ...]:
        return (*super().judges(), *([self.audit_judge] if self.audit_judge is not None else []))

    def lengths(self, recipe: Recipe, index: int) -> Lengths:
        env, context = recipe.env_and_context(index)
        return env.lengths(context, None)

    def problems(self, recipe: Recipe, index: int) -> Iterator[str]:
        """Without a `grpo` stage it needs an environment of its own, and its forced searches need one that searches."""
        missing = [key for key in ("env", "context") if getattr(self, key) is None and not recipe.question_stages()]
        yield from (f"stage.{index}.{key} is missing, and no grpo stage of questions has one" for key in missing)
        env: Any = None if missing else recipe.env_and_context(index)[0]
        yield from (f"stage.{index}.{line}" for line in (unfit_rewards(self.reward, env) if env else ()))
        searching = env is None or (hasattr(env, "forced_search") and env.searches != 0 and not env.closed_book)
        if self.forced_search_arm and not searching:
            yield f"stage.{index}.forced_search_arm = true needs an env with searches of 1 or more"

    @property
    def arms(self) -> int:
        return len(self.evaluations)

    @property
    def evaluations(self) -> tuple[str, ...]:
        """That of the arm with a forced search last."""
        return (self.name, f"{self.name}_forced") if self.forced_search_arm else (self.name,)
