"""`StageFields`: what other packages ask of every stage, with the answers of one that measures and does not train."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sleuth.recipe.data import Lengths
from sleuth.recipe.judges import JudgeFields
from sleuth.recipe.rewards import AnswerSize
from sleuth.recipe.strict import KindTable
from sleuth.types import Task

if TYPE_CHECKING:
    from sleuth.ranks import Ranks
    from sleuth.recipe.recipe import Recipe


class StageFields(KindTable):
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
    """Whether it writes evaluation files."""
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
        """The judges that it asks: its own, and those of its rewards."""
        own = getattr(self, "judge", None)
        rewards = (judge for reward in getattr(self, "reward", ()) for judge in reward.judges())
        return (*rewards, *([own] if own is not None else []))

    def judge_calls(self, size: AnswerSize) -> Iterator[tuple[str, float, bool]]:
        """(kind of the reward, calls of models over HTTP in one step, whether rows and answers decide how many) of each
        reward."""
        return iter(())

    def methods(self) -> tuple[str, ...]:
        """Published methods that it follows, by their names in `sleuth.runs.methods`."""
        return getattr(getattr(self, "data", None), "methods", ())
