"""Who judges: the table `[judge]` of a file of its own, such as `sleuth check judge FILE` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from sleuth.recipe.draft import Draft
from sleuth.recipe.load import read_toml
from sleuth.recipe.problems import describe
from sleuth.recipe.strict import Row, StrictModel
from sleuth.types import SleuthError

OURS = ("model", "messages", "temperature", "max_tokens", "response_format", "n", "stream")
"""What `request` may not hold: it is set elsewhere, or a verdict could not be read with it."""


class HttpJudgeRecipe(StrictModel):
    """A language model behind OpenAI's chat completions, asked at temperature 0. No other ever takes its place."""

    kind: Literal["http"]
    urls: Row[str] = Field(min_length=1)
    """Servers of one and the same model, such as `["http://127.0.0.1:8000/v1"]`."""
    model: str
    """Its name, as the servers list it."""
    seconds: PositiveFloat = 60.0
    """How long a server may take to answer before the question is put again, four times in all."""
    at_once: PositiveInt = 256
    """Calls under way at most; fewer while many fail."""
    max_tokens: PositiveInt = 512
    """Tokens of an answer; a model that thinks first needs more."""
    budget: PositiveInt | None = None
    """Calls in all; what goes beyond is missing. Absent is no limit."""
    request: dict[str, Any] = Field(default_factory=dict)
    """What goes into each request besides, such as `{ chat_template_kwargs = { enable_thinking = false } }`."""
    key_variable: str | None = None
    """The environment variable that holds the servers' key, where they want one."""

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"urls holds {url!r}: expected http://HOST:PORT")
        for name in OURS:
            if name in self.request:
                raise ValueError(f"request.{name} is not for setting here: leave it out")
        return self


class NliJudgeRecipe(StrictModel):
    """A cross-encoder that tells entailment, on this machine. It judges support alone, and compares nothing."""

    kind: Literal["nli"]
    model: str
    """A folder, or a hub id."""
    device: str = "cpu"
    """Where it runs: "cpu", "cuda" or "cuda:1"."""


JudgeRecipe = HttpJudgeRecipe | NliJudgeRecipe
JudgeTable = Annotated[JudgeRecipe, Field(discriminator="kind")]
"""One `[judge]`."""


class JudgeFile(StrictModel):
    """A file that says who judges."""

    judge: JudgeTable


def load_judge(path: Path) -> JudgeRecipe:
    """Read and check the `[judge]` of a file. Raises a one-line `SleuthError`."""
    draft = Draft(str(path))
    draft.lay(read_toml(path), str(path))
    try:
        return JudgeFile.model_validate(draft.table).judge
    except ValidationError as error:
        raise SleuthError(describe(error, draft, JudgeFile)) from None
