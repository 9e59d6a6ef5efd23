"""`StageFields`: what other packages ask of every stage, with the answers of one that measures and does not train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sleuth.recipe.judges import JudgeFields
from sleuth.recipe.rewards import AnswerSize
from sleuth.recipe.strict import KindTable


class StageFields(KindTable):
    """The base of every stage. Each kind of stage overrides what is different about it."""

    if TYPE_CHECKING:
        name: Any
        """Set by each class."""

    trains: ClassVar[bool] = False
    """Whether it changes the model."""
    measures: ClassVar[bool] = False
    """Whether it writes evaluation files."""
    plays_like: ClassVar[Literal["next", "nearest"] | None] = None
    """The `grpo` stage whose servers play it: the next one, or the nearest; None: it plays in its process."""
    models: ClassVar[int] = 1
    """Models in memory while it generates."""

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
