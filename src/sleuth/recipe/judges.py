"""Judges: `[stage.reward.judge]`, or the `[judge]` table of a judge file."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from sleuth.host.memory import require_amount
from sleuth.recipe.strict import KindTable, OneOf, Row, StrictModel, combination
from sleuth.types import SleuthError

RESERVED = ("model", "messages", "temperature", "max_tokens", "response_format", "n", "stream")
"""Fields that `request` may not contain: other keys set them, or verdicts could not be parsed with them."""


Skill = str
"""What a judge is asked: to check "claims" by their evidence, or an answer by a row's "criteria" or "static_criteria",
to compare two "continuations", or to hold "suffixes" against the true one. It may be good at one and bad at another."""
UNSEEN, ON_SHEETS = "_without_evidence", "_on_sheets"
"""Endings of a skill: criteria by a judge who does not see the evidence, and several questions in one call."""
UNAVAILABLE_SECONDS = 600.0
"""How long a run waits for servers that do not answer: those of a pool, and a judge or a teacher that it starts."""


def _require_amount(text: str) -> str:
    try:
        return require_amount(text)
    except SleuthError as error:
        raise ValueError(str(error)) from None


MemoryAmount = Annotated[str, AfterValidator(_require_amount)]


class LaunchFields(StrictModel):
    """The keys of servers that run already (`urls`), or that the run starts (`launch`): of the policy, a judge or a
    teacher."""

    named: ClassVar[Mapping[str, str]] = {"launch": "launch", "key_variable": "variable"}
    schemes: ClassVar[tuple[str, ...]] = ("http://", "https://")
    """What an entry of `urls` begins with."""
    urls: Annotated[Row[str], Field(min_length=1)] | None = None
    """Servers of the same model that run already, such as `["http://127.0.0.1:8000/v1"]`."""
    launch: Literal["vllm", "sglang"] | None = None
    """Instead of `urls`: the run starts such a server on this machine, restarts it when it dies, and ends it."""
    command: str | None = None
    """With `launch`: the program, such as `"/opt/vllm/bin/vllm"`; for SGLang the Python it is installed in. Absent:
    the one beside this Python, or else on the PATH."""
    cards: Annotated[Row[NonNegativeInt], Field(min_length=1)] | None = None
    """With `launch`: the GPUs over which one server splits the model. Absent: the last one; none on a CPU."""
    memory: MemoryAmount | None = None
    """With `launch`: memory of the server on each of its GPUs, such as "20GB" or "25%", which a shared GPU needs; on a
    CPU that of its KV cache. Absent: the server's default."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """With `launch`: port of the server. Absent: a free one."""
    arguments: Row[str] = ()
    """With `launch`: more arguments for the server, such as `["--enforce-eager"]`."""

    @combination
    def _can_be_asked(self) -> Iterator[str]:
        for url in self.urls or ():
            if not url.startswith(self.schemes):
                yield f"urls holds {url!r}: expected http://HOST:PORT"
        for key in ("urls", "cards"):
            if len(set(getattr(self, key) or ())) < len(getattr(self, key) or ()):
                yield f"{key} names one twice"
        if not self.urls and self.launch is None:
            yield 'urls is missing, as is launch: name servers that run in urls, or set launch = "vllm"'
        if self.urls and self.launch is not None:
            yield f'urls and launch = "{self.launch}" exclude each other: the run starts its servers itself; remove one'
        for key in ("command", "cards", "memory", "port", "arguments"):
            if self.launch is None and getattr(self, key) not in (None, ()):
                yield f'{key} is for servers that the run starts: set launch = "vllm", or remove it'


class ServedModelRecipe(LaunchFields):
    """A language model behind an OpenAI-compatible chat completions API, called at temperature 0. It is never replaced
    by another model."""

    model: str
    """Name of the model, as the servers list it; with `launch` its folder or hub id."""
    seconds: PositiveFloat = 60.0
    """Timeout of a call in seconds; a failed call is retried up to four attempts in all. With `launch` calls wait while
    the server is started again, at most 600 seconds."""
    at_once: PositiveInt = 256
    """Maximum number of concurrent calls; reduced while many fail."""
    max_tokens: PositiveInt = 512
    """Maximum number of tokens of a response; a model that thinks first needs more."""
    budget: PositiveInt | None = None
    """Maximum number of calls, however often the command is started again: of a judge in the run, of a teacher for the
    file that it writes. Verdicts beyond it are missing, as are criteria and thoughts. Absent: no limit."""
    request: dict[str, Any] = Field(default_factory=dict)
    """Extra fields of each request, such as `{ chat_template_kwargs = { enable_thinking = false } }`."""
    key_variable: str | None = None
    """Name of the environment variable with the servers' API key, if they need one."""

    @property
    def key(self) -> str | None:
        """That key; None without the variable."""
        return os.environ.get(self.key_variable) if self.key_variable is not None else None

    def on_cards(self, count: int) -> list[int]:
        """Which of `count` GPUs the server that the run starts has."""
        return list(self.cards or ([count - 1] if count else []))

    @property
    def server(self) -> str:
        """What decides which server answers: two rewards that agree in it share one."""
        return self.model_dump_json(include={"model", *LaunchFields.model_fields})

    @combination
    def _request_is_ours(self) -> Iterator[str]:
        for name in RESERVED:
            if name in self.request:
                yield f"request.{name} cannot be set here; remove it"


class JudgeFields(KindTable):
    """How judges are made, and what differs between them."""

    subjects: ClassVar[tuple[Literal["claims", "continuations"], ...]] = ("claims",)
    """What it can judge: claims by their evidence, or continuations of a text."""
    needs_endings: ClassVar[bool] = False
    """Whether it compares with the golden answers of a text."""

    @abstractmethod
    def open(self) -> Any:
        """The judge, an `OpenJudge` of `sleuth.judges`. Its servers are not contacted before the first question."""

    keeps_verdicts: ClassVar[bool] = False
    """Whether its verdicts are worth keeping in the run's folder."""

    @property
    def required_accuracy(self) -> float | None:
        """The accuracy that it must reach in an exam before a stage; None: no exam."""
        return getattr(self, "least_accuracy", None)


class ExaminedJudgeFields(JudgeFields):
    """The keys of a judge that can take an exam."""

    least_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    """Accuracy that the judge must reach on an exam in all that the stage asks of it, before the stage begins, as
    `sleuth check judge` measures it. Absent: no exam."""


class JudgedFields(KindTable):
    """A table that may ask a judge, by its key `judge`: a reward, or a stage."""

    def judges(self) -> tuple[JudgeFields, ...]:
        """The judges that it asks."""
        judge = getattr(self, "judge", None)
        return () if judge is None else (judge,)

    def served_judges(self) -> tuple[ServedModelRecipe, ...]:
        """Those whose verdicts are calls over HTTP."""
        return tuple(judge for judge in self.judges() if isinstance(judge, ServedModelRecipe))

    def skills(self) -> tuple[Skill, ...]:
        """What it asks of them."""
        return ()


def _spelled_out(judge: Any) -> Any:
    """The table of a judge: `judge = "lexical"` is short for `judge = { kind = "lexical" }`."""
    return {"kind": judge} if isinstance(judge, str) else judge


JudgeTable = Annotated[
    JudgeFields, OneOf("judges", lambda judge: "claims" in judge.subjects), BeforeValidator(_spelled_out)
]
"""A `[judge]` table."""
ContinuationJudgeTable = Annotated[
    JudgeFields, OneOf("judges", lambda judge: "continuations" in judge.subjects), BeforeValidator(_spelled_out)
]
"""A `[judge]` table for continuations."""


class TeacherRecipe(ServedModelRecipe):
    """A language model that generates data."""

    max_tokens: PositiveInt = 2048
    """Maximum number of tokens of a response; a model that thinks first needs more."""
