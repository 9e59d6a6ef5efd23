"""`kind = "evaluate"`, and the base of all stages that measure the model and do not change it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveInt

from sleuth.recipe.data import EvalQuestionsRecipe, Lengths
from sleuth.recipe.envs import QuestionEnvTable
from sleuth.recipe.stage import StageFields
from sleuth.recipe.strict import Name, combination
from sleuth.recipe.training import SampledRecipe

if TYPE_CHECKING:
    from sleuth.recipe.recipe import Recipe


class EvaluationFields(SampledRecipe, StageFields):
    """What differs between stages that measure; the defaults are those of one that samples once at `data.limit` places
    of texts."""

    measures: ClassVar[bool] = True
    plays_like: ClassVar[Literal["next", "nearest"] | None] = "nearest"

    kind: Any
    """Set by each kind of stage."""
    name: Name
    """Name of the evaluation file."""

    @combination
    def _budget_stays(self) -> Iterator[str]:
        if getattr(getattr(self, "env", None), "least_thought_tokens", None) is not None:
            yield "env.least_thought_tokens has no effect here: only a grpo stage has steps to shrink over; remove it"

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


class EvaluateRecipe(EvaluationFields):
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

    def lengths(self, recipe: Recipe, index: int) -> Lengths:
        env, context = recipe.env_and_context(index)
        return env.lengths(context, None)

    def problems(self, recipe: Recipe, index: int) -> Iterator[str]:
        """Without a `grpo` stage it needs an environment of its own, and its forced searches need one that searches."""
        missing = [key for key in ("env", "context") if getattr(self, key) is None and not recipe.question_stages()]
        yield from (f"stage.{index}.{key} is missing, and no grpo stage of questions has one" for key in missing)
        if self.forced_search_arm and not missing:
            env: Any = recipe.env_and_context(index)[0]
            if not hasattr(env, "forced_search") or env.searches == 0 or env.closed_book:
                yield f"stage.{index}.forced_search_arm = true needs an env with searches of 1 or more"

    @property
    def arms(self) -> int:
        return len(self.evaluations)

    @property
    def evaluations(self) -> tuple[str, ...]:
        """That of the arm with a forced search last."""
        return (self.name, f"{self.name}_forced") if self.forced_search_arm else (self.name,)
