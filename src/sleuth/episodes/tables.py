"""`[stage.env]` of kind "python": an environment of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat

from sleuth.dialect import Dialect, dialect_of
from sleuth.recipe.envs import EnvFields
from sleuth.recipe.strict import FilePath, FunctionName, Row
from sleuth.types import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sleuth.episodes.function import FunctionSetting


class FunctionEnvRecipe(EnvFields):
    """An environment of your own: a class with the methods `open` and `reply` of `sleuth.types.Env`
    (docs/how-to/own_code.md)."""

    named: ClassVar[Mapping[str, str]] = {"function": "function", "files": "files", "dialect": "dialect"}
    kind: Literal["python"]
    function: FunctionName
    """The class, or a function that makes an environment, `MODULE:NAME`; it is called with the `task` of an episode.
    The module is looked for beside the recipe, in the current folder and among the installed packages."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the class, by name: `[stage.env.parameters]`."""
    files: Row[FilePath] = ()
    """Files that the class reads, hashed like code: a run does not continue when one has changed."""
    dialect: str = "sleuth"
    """The dialect whose tags rewards such as "answer" read; the environment itself may use any."""
    seconds: PositiveFloat = 60.0
    """Timeout of each of its methods in seconds; then the score of the episode is missing."""

    def setting(self, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]) -> FunctionSetting:
        from sleuth.episodes.function import function_setting

        return function_setting(self)

    def plain_dialect(self) -> Dialect:
        return dialect_of(self.dialect)

    def functions(self) -> tuple[str, ...]:
        return (self.function,)
