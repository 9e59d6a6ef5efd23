"""`[stage.env]` of kinds "python" and "agent": an environment, or an agent, of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from sleuth.dialect import Dialect, dialect_of
from sleuth.recipe.envs import EnvFields, RenderedEnvFields
from sleuth.recipe.strict import FilePath, FunctionName, Row, combination
from sleuth.types import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sleuth.episodes.agent import AgentSetting
    from sleuth.episodes.function import FunctionSetting


class OwnEnvFields(EnvFields):
    """The keys of an environment that a function of your own plays."""

    named: ClassVar[Mapping[str, str]] = {"function": "function", "files": "files", "dialect": "dialect"}
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the class, by name: `[stage.env.parameters]`."""
    files: Row[FilePath] = ()
    """Files that the class reads, hashed like code: a run does not continue when one has changed."""
    dialect: str = "sleuth"
    """The dialect whose tags rewards such as "answer" read; the environment itself may use any."""
    seconds: PositiveFloat = 60.0
    """Timeout of each of its methods in seconds; then the score of the episode is missing."""
    turn_tokens: PositiveInt = 512
    """Maximum number of tokens that the policy writes in one turn; a `Reply` of your own has its own limit."""
    template_flags: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Extra variables for the chat template, such as `{ enable_thinking = false }`."""

    def plain_dialect(self) -> Dialect:
        return dialect_of(self.dialect)


class FunctionEnvRecipe(OwnEnvFields, RenderedEnvFields):
    """An environment of your own, with the methods `open` and `reply` of `sleuth.types.Env`, or `reset` and `step`, as
    those of Gymnasium and OpenEnv (docs/how-to/own_code.md)."""

    turn_key: ClassVar[str] = ""  # a `Reply` has its own limit, and a turn ends where the context does
    kind: Literal["python"]
    function: FunctionName
    """The class, or a function that makes an environment, `MODULE:NAME`; it is called with the `task` of an episode.
    The module is looked for beside the recipe, in the current folder and among the installed packages."""
    prompt_role: Literal["raw", "user"] = "raw"
    """How the observations of an environment with `reset` and `step` are rendered: as plain text ("raw"), or each as a
    message of the user in the model's chat template."""

    def functions(self) -> tuple[str, ...]:
        return (self.function,)

    def setting(self, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]) -> FunctionSetting:
        from sleuth.episodes.function import function_setting

        return function_setting(self, tokenizer)


class AgentEnvRecipe(OwnEnvFields):
    """An agent of your own, which calls the policy through an OpenAI-compatible endpoint (docs/how-to/agents.md)."""

    named: ClassVar[Mapping[str, str]] = {**OwnEnvFields.named, "command": "agent_command"}
    kind: Literal["agent"]
    function: FunctionName | None = None
    """`MODULE:NAME`; it is called with the `task` of an episode, a base URL and a key, and returns its answer as text
    or its score as a number."""
    command: str | None = None
    """A program that plays an episode in place of a function, such as "python my_agent.py", which is started for each
    one in the current folder, with the Python that runs Sleuth (docs/how-to/agents.md)."""
    dialect: str = "chat"
    """The dialect in whose tags the model writes thoughts and calls of tools."""
    seconds: PositiveFloat = 60.0
    """Seconds that the agent may take between a turn of the policy and its next request; then the score is missing."""
    calls: PositiveInt = 32
    """Maximum number of requests of an episode; one more, and its score is missing."""

    def functions(self) -> tuple[str, ...]:
        return () if self.function is None else (self.function,)

    @combination
    def _agent_is_named(self) -> Iterator[str]:
        if (self.function is None) == (self.command is None):
            yield "function or command: name one of them"
        if self.command is not None and self.parameters:
            yield "parameters are for a function: write into the command what it needs"

    def setting(self, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]) -> AgentSetting:
        from sleuth.episodes.agent import agent_setting

        return agent_setting(self, tokenizer)
