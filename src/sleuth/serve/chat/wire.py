"""Request and answer bodies of OpenAI's API for chat. Unknown fields are ignored, as by OpenAI; fields that
would change an answer but are unsupported are listed, to refuse them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StrictBool,
    StrictStr,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from sleuth.host.escapes import replace_surrogates
from sleuth.serve.http.refused import as_integer

MAX_MESSAGES = 256
MAX_TOKENS = 2**31 - 1  # the largest accepted token limit


class Only:
    """Marks a field that may be absent, null or one of `values`; anything else is refused as unsupported:
    `n: Annotated[Any, Only(1)] = None`."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": [None, *self.values]}

    def _check(self, value: Any) -> Any:
        if any(value == known and isinstance(value, bool) == isinstance(known, bool) for known in (None, *self.values)):
            return value
        raise PydanticCustomError("unsupported", "not supported here; leave it out")


def text_of_parts(value: object, types: tuple[str, ...]) -> object:
    """The text of a message; parts, of these types, are joined by line breaks."""
    if not isinstance(value, list):
        return replace_surrogates(value)
    contents = [part.get("text") if isinstance(part, dict) and part.get("type") in types else None for part in value]
    if not all(isinstance(text, str) for text in contents):
        message = "Input should be text, or a list of parts of the type {types}"
        raise PydanticCustomError("parts", message, {"types": " or ".join(types)})
    return replace_surrogates("\n".join(map(str, contents)))


_TEXT: dict[str, Any] = {"type": "string"}


def text_shape(types: tuple[str, ...]) -> dict[str, Any]:
    """The schema of a message's text: a text, or a list of parts of these types."""
    part = {
        "type": "object",
        "properties": {"type": {"enum": list(types)}, "text": _TEXT},
        "required": ["type", "text"],
    }
    return {"anyOf": [_TEXT, {"type": "array", "items": part}]}


CHAT_PARTS = ("text",)

MessageText = Annotated[
    StrictStr,
    BeforeValidator(partial(text_of_parts, types=CHAT_PARTS)),
    WithJsonSchema(text_shape(CHAT_PARTS)),
]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS, strict=True), BeforeValidator(as_integer)]
Seed = Annotated[int, Field(strict=True), BeforeValidator(as_integer)]
Temperature = Annotated[float, Field(ge=0, le=2, strict=True, allow_inf_nan=False)]
Name = Annotated[StrictStr, BeforeValidator(replace_surrogates)]


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: StrictBool | None = None
    """Whether to end with a chunk of the usage."""


class BaseRequest(BaseModel):
    """The fields of both kinds of request."""

    model: Name | None = None
    """Must be the served model's name if given."""
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    seed: Seed | None = None
    """For sampling: the same seed and messages give the same answer."""
    n: Annotated[Any, Only(1)] = None
    top_p: Annotated[Any, Only(1)] = None
    frequency_penalty: Annotated[Any, Only(0)] = None
    presence_penalty: Annotated[Any, Only(0)] = None
    logit_bias: Annotated[Any, Only({})] = None


class Message(BaseModel):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: MessageText | None = None


class Said(Protocol):
    """A message of someone, or another item without a role."""

    @property
    def role(self) -> str | None: ...
    @property
    def content(self) -> str | None: ...


Items = TypeVar("Items", bound=Sequence[Said])


def last_question(said: Sequence[Said]) -> str:
    """The last content of a user. Raises if there is none."""
    contents = [one.content for one in said if one.role == "user" and one.content is not None]
    if not contents:
        raise PydanticCustomError("question", "expected a message of the role user, with the question")
    return contents[-1]


def require_question(said: Items) -> Items:
    """The items, if one is a question."""
    last_question(said)
    return said


QUESTION_SHAPE: dict[str, Any] = {
    "contains": {
        "type": "object",
        "properties": {"role": {"const": "user"}, "content": {"type": ["string", "array"]}},
        "required": ["role", "content"],
    }
}


class ChatRequest(BaseRequest):
    """A question for the agent: the last user message. Earlier messages are ignored."""

    messages: Annotated[
        list[Message],
        Field(min_length=1, max_length=MAX_MESSAGES, json_schema_extra=QUESTION_SHAPE),
        AfterValidator(require_question),
    ]
    temperature: Temperature | None = None
    """Default 0 (greedy), as in `sleuth eval`."""
    max_tokens: Tokens | None = None
    """Limit of generated tokens, including thoughts and queries."""
    max_completion_tokens: Tokens | None = None
    """The same under its newer name."""
    stop: Annotated[Any, Only([])] = None
    logprobs: Annotated[Any, Only(False)] = None
    top_logprobs: Annotated[Any, Only(0)] = None
    tools: Annotated[Any, Only([])] = None
    tool_choice: Annotated[Any, Only("none")] = None
    functions: Annotated[Any, Only([])] = None
    function_call: Annotated[Any, Only("none")] = None
    response_format: Annotated[Any, Only({"type": "text"})] = None

    @property
    def question(self) -> str:
        """The last user message."""
        return last_question(self.messages)

    @property
    def token_limit(self) -> int | None:
        """The smaller of the given limits, None without any."""
        limits = [tokens for tokens in (self.max_tokens, self.max_completion_tokens) if tokens is not None]
        return min(limits, default=None)

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with a chunk of the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


# -- answers -----------------------------------------------------------------------------------------------------------


class Usage(BaseModel):
    """`prompt_tokens` are all tokens that the model did not generate, search results included, each once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Sentence(BaseModel):
    """`text[begin:stop]` of a passage, counted in Unicode characters."""

    begin: int
    stop: int


class Citation(BaseModel):
    """A shown passage that the answer names or quotes or, where answers do neither, that contains the answer.
    `sentence` is where in its text the answer, or the beginning of the quotation, is; null if it is not there."""

    id: str
    title: str
    sentence: Sentence | None


class ShownPassage(BaseModel):
    """A passage shown to the model."""

    id: str
    title: str
    text: str
    score: float


class Search(BaseModel):
    """A search and its results."""

    query: str
    passages: list[ShownPassage]


class AnswerDetails(BaseModel):
    """How an answer was found. `stop` is `answered`, `turns` (no searches were left) or `length`."""

    stop: Literal["answered", "turns", "length"]
    searches: list[Search]
    citations: list[Citation]


class AnswerMessage(BaseModel):
    """`content` is the answer alone, empty if there is none."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str


class ChatChoice(BaseModel):
    index: int
    message: AnswerMessage
    logprobs: None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(BaseModel):
    """An answer with its searches and citations."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    sleuth: AnswerDetails


class Model(BaseModel):
    """The served model; `sleuth` has its dialect, context, protocol and examples of questions."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    sleuth: dict[str, Any]


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Problem(BaseModel):
    """An error, in one line."""

    message: str
    type: str
    param: str | None
    code: str | None


class ProblemBody(BaseModel):
    error: Problem


class Health(BaseModel):
    """`status` is "ready" or "failed"."""

    status: str
    model: str
    conversations: int
    waiting: int
