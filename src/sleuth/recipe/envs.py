"""`[stage.env]`: the environment that the policy acts in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from sleuth import family
from sleuth.dialect import Dialect
from sleuth.recipe.data import DataFields, Lengths
from sleuth.recipe.strict import FilePath, FunctionName, KindTable, OneOf, Row, StrictModel, combination
from sleuth.types import Judge, RetrieverIdentity, Reward, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Role = Literal["raw", "user", "system"]
PROMPT = 300
"""Tokens of a prompt around a question, where limits allow them."""
EpisodeKind = Literal["agent", "refiner", "thought"]
"""What the policy is in an environment: an agent that is asked a question, one that rewrites the evidence that it is
given, or one that thinks in the middle of a text."""


class EnvFields(KindTable):
    """What differs between environments; the defaults are those of an agent."""

    plays: ClassVar[EpisodeKind] = "agent"
    """Kind of its episodes, which decides the rewards and the data that fit it."""
    turn_key: ClassVar[str] = "turn_tokens"
    """The key that limits what the policy writes in one turn."""

    compares_answers: ClassVar[bool] = True
    """Whether evaluations compare answers with golden ones; else they have a measure of their own."""
    needs_index: ClassVar[bool] = True
    """Whether a model that plays here needs an index."""

    @abstractmethod
    def setting(self, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]) -> Any:
        """What its episodes share, a `sleuth.episodes.setting.Setting`. Raises SleuthError for tasks of another
        kind."""

    @abstractmethod
    def plain_dialect(self) -> Dialect:
        """Its dialect, without the recipe's limits."""

    def lengths(self, context: int, data: DataFields | None) -> Lengths:
        """Of its episodes in a stage with these data. By default they are as long as `context` allows."""
        prompt = min(PROMPT, context // 2)
        return Lengths.of_text(prompt, context - prompt)

    @classmethod
    def adopts(cls, dialect: Dialect | None, tasks: Sequence[Task]) -> bool:
        """Whether models of this dialect, or, without one, models that are asked these tasks, are evaluated here."""
        return False

    @classmethod
    def setting_to_evaluate(
        cls, card: Any, changes: Any, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task]
    ) -> tuple[Any, list[str] | None]:
        """The setting in which a model with this `ProtocolCard`, or None, is evaluated, with the changes of an
        `EvalOverrides`; and its differences from the model's training, None for another dialect or without a card."""
        raise NotImplementedError

    @classmethod
    def measure(cls, dialect: Dialect, judge: Judge | None) -> Reward:
        """The measure of evaluations that compare no answers."""
        raise NotImplementedError

    @classmethod
    def filled_with(cls, dialect: Dialect) -> str:
        """A sentence on what fills a prompt; empty if it is the question alone."""
        return ""

    def without_retriever(self) -> Self:
        """The environment for a machine without the index or the servers that it searches."""
        return self

    @property
    def required_identity(self) -> RetrieverIdentity | None:
        """What its retriever has to be; None if any will do."""
        return None

    def require_retriever(self, identity: RetrieverIdentity) -> None:
        """Raises SleuthError unless the retriever is one that the recipe requires."""

    @property
    def scanned_index(self) -> Path | None:
        """Folder of the index that its searches scan on this machine; None if none do."""
        return None

    def functions(self) -> tuple[str, ...]:
        """The user's functions that it calls, `MODULE:NAME`."""
        return ()

    def tool_servers(self) -> tuple[ToolTableRecipe, ...]:
        """The servers whose tools it offers."""
        return ()


class RenderedEnvFields(EnvFields):
    """An environment whose prompt may be a chat message."""

    if TYPE_CHECKING:
        prompt_role: Any
        template_flags: Any
        """Set by each class."""

    @combination
    def _flags_have_a_template(self) -> Iterator[str]:
        if self.template_flags and self.prompt_role == "raw":
            yield 'template_flags need a chat template: set prompt_role = "user" or "system"'


class ToolTableRecipe(StrictModel):
    """A function, or a server of tools that speaks the Model Context Protocol."""

    named: ClassVar[Mapping[str, str]] = {"mcp": "server", "function": "function"}
    function: FunctionName | None = None
    """`MODULE:NAME`, as without a table."""
    mcp: str | None = None
    """The command that starts it and talks over its stdin and stdout, such as "python -m my_server", with the Python
    that runs Sleuth; or its URL."""
    folder: FilePath | None = None
    """Folder in which the command runs; absent: the current folder."""
    only: Row[str] = ()
    """Names of the tools of a server that the policy may call; empty: all."""
    shared: bool = False
    """Whether a call has the same result in every episode, so that in a training step those of a question that make the
    same call make it once, and all episodes use one session of a server. Else each call is made, and each episode has
    its own session of a server at a URL; the one process of a command serves all."""

    @combination
    def _tool_is_named(self) -> Iterator[str]:
        if self.mcp is not None and not self.mcp.strip():
            yield "mcp is empty: name a command or a URL"
        elif (self.mcp is None) == (self.function is None):
            yield "mcp or function: name one of them"
        if self.folder is not None and (self.mcp or "").startswith(("http://", "https://")):
            yield "folder has no effect for a URL; remove it"
        elif self.function is not None and (self.folder is not None or self.only):
            yield "folder and only are for a server; remove them"


QuestionEnvTable = Annotated[EnvFields, OneOf("environments", lambda env: env.plays != "thought")]
"""`[stage.env]` of a stage that asks questions."""
EnvTable = Annotated[EnvFields, OneOf("environments")]
"""`[stage.env]` of a stage that trains."""
RefinerEnvTable = Annotated[EnvFields, OneOf("environments", lambda env: env.plays == "refiner")]
"""`[stage.env]` of a stage that is taught answered rows."""


def environment_of(dialect: Dialect | None, tasks: Sequence[Task] = ()) -> type[EnvFields]:
    """The environment in which a model of this dialect is evaluated, or, without one, a model that is asked these
    tasks: that of the last family that `adopts` it."""
    if dialect is not None:
        family.knows_dialect(dialect.name)  # looks for it in installed packages, whose environments then count
    return next(table for table in reversed(family.tables("environments")) if table.adopts(dialect, tasks))


def compares_answers(dialect: Dialect) -> bool:
    """Whether evaluations compare the answers of models of this dialect with golden ones."""
    return environment_of(dialect).compares_answers
