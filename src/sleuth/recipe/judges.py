"""Who judges: `[stage.reward.judge]`, or the table `[judge]` of a file of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from sleuth.recipe.strict import FilePath, Row, StrictModel, combination

OURS = ("model", "messages", "temperature", "max_tokens", "response_format", "n", "stream")
"""What `request` may not hold: it is set elsewhere, or a verdict could not be read with it."""


class ServedModelRecipe(StrictModel):
    """A language model behind OpenAI's chat completions, asked at temperature 0. No other ever takes its place."""

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

    @combination
    def _can_be_asked(self) -> Iterator[str]:
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                yield f"urls holds {url!r}: expected http://HOST:PORT"
        for name in OURS:
            if name in self.request:
                yield f"request.{name} is not for setting here: leave it out"


class _JudgeRecipe(StrictModel):
    least_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    """The share of an exam's claims that the judge has to be right about before anything is trained by it, as `sleuth
    check judge` measures it. Absent: no exam."""


class LexicalJudgeRecipe(_JudgeRecipe):
    """Names, dates, numbers, words and denials compared, on this machine: no model, no call."""

    kind: Literal["lexical"] = "lexical"


class _CostlyJudgeRecipe(_JudgeRecipe):
    verdicts: FilePath | None = None
    """The file in which verdicts are kept, so that none is paid for twice; several runs may share one. Absent:
    `verdicts.sqlite` in the run's folder."""


class HttpJudgeRecipe(ServedModelRecipe, _CostlyJudgeRecipe):
    """A language model that judges."""

    kind: Literal["http"]
    again: NonNegativeInt = 8
    """How often a verdict that is missing is asked for once more. Answers that need many verdicts lose their score
    sooner than those that need few, and what is left of a group then teaches to need few: a score should seldom be
    missing."""


class NliJudgeRecipe(_CostlyJudgeRecipe):
    """A cross-encoder that tells entailment, on this machine. It judges support alone, and compares nothing."""

    kind: Literal["nli"]
    model: str
    """A folder, or a hub id."""
    device: str = "cpu"
    """Where it runs: "cpu", "cuda" or "cuda:1"."""


class EndingJudgeRecipe(StrictModel):
    """Knows the right ending, where the data does (`golden_answers`): no model, no call."""

    kind: Literal["ending"] = "ending"
    flip: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """The share of its verdicts that say the opposite, for measuring what a judge that errs does to what is learned."""


ContinuationJudge = HttpJudgeRecipe | EndingJudgeRecipe
JudgeRecipe = LexicalJudgeRecipe | HttpJudgeRecipe | NliJudgeRecipe


def _spelled_out(judge: Any) -> Any:
    """`judge = "lexical"` is short for `judge = { kind = "lexical" }`."""
    return {"kind": judge} if isinstance(judge, str) else judge


JudgeTable = Annotated[JudgeRecipe, Field(discriminator="kind"), BeforeValidator(_spelled_out)]
"""One `[judge]`."""
ContinuationJudgeTable = Annotated[ContinuationJudge, Field(discriminator="kind"), BeforeValidator(_spelled_out)]
"""One `[judge]` of continuations."""


class TeacherRecipe(ServedModelRecipe):
    """A language model that writes data."""

    max_tokens: PositiveInt = 2048
    """Tokens of an answer; a model that thinks first needs more."""
