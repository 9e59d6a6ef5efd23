"""The bodies of OpenAI's API as records: what is read of them, what is refused, and how answers look.

What they do not name is ignored, as it is where it came from. What changes an answer and cannot be had here is named,
so that it can be refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

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

from sleuth.serve.http.refused import sound, whole

MOST_MESSAGES = 256
MOST_STOPS = 4
LONGEST_STOP = 100  # characters
MOST_TOKENS = 2**31 - 1  # more is no number of tokens
DEFAULT_TOKENS = 16  # of a completion; OpenAI's


@dataclass(frozen=True, slots=True, eq=False)  # 0 equals False, and Python keeps one of equal annotations
class Only:
    """Marks a field that may be absent, null or one of `values`: anything else asks for what is not to be had here."""

    values: tuple[Any, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": [None, *self.values]}

    def _check(self, value: Any) -> Any:
        if any(value == known and isinstance(value, bool) == isinstance(known, bool) for known in (None, *self.values)):
            return value
        raise PydanticCustomError("unsupported", "not supported here; leave it out")


def only(*values: Any) -> Only:
    """`n: Annotated[Any, only(1)] = None`."""
    return Only(values)


def _text_of_parts(value: object) -> object:
    """A message may come in parts: the texts of all, a line each."""
    if not isinstance(value, list):
        return sound(value)
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in value]
    if not all(isinstance(text, str) for text in texts):
        raise PydanticCustomError("parts", "Input should be text, or a list of parts of the type text")
    return sound("\n".join(map(str, texts)))


def _list_of_stops(value: object) -> object:
    """One may stand alone."""
    return [sound(stop) for stop in value] if isinstance(value, list) else [sound(value)]


def _one_prompt(value: object) -> object:
    """A prompt may come in a list of one."""
    if isinstance(value, list) and len(value) == 1 and not isinstance(value[0], int | float):
        return sound(value[0])
    return sound(value)


def _text_or_tokens(value: object) -> object:
    if isinstance(value, str):
        return value
    tokens = [whole(token) for token in value] if isinstance(value, list) else []
    if tokens and all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in tokens):
        return tokens
    raise PydanticCustomError("prompt", "Input should be one prompt: a text, or a list of token ids")


_TEXT: dict[str, Any] = {"type": "string"}
_PARTS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": _TEXT},
        "required": ["type", "text"],
    },
}
_STOP = _TEXT | {"minLength": 1, "maxLength": LONGEST_STOP}
_STOPS = {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MOST_STOPS}]}
_PROMPT: dict[str, Any] = _TEXT | {"minLength": 1}


def prompt_shape(last_token: int | None = None) -> dict[str, Any]:
    """A text or token ids, or one of them in a list; `last_token` is the largest id, where the model is known."""
    token = {"type": "integer", "minimum": 0} | ({} if last_token is None else {"maximum": last_token})
    tokens = {"type": "array", "items": token, "minItems": 1}
    alone = {"type": "array", "items": {"anyOf": [_PROMPT, tokens]}, "minItems": 1, "maxItems": 1}
    return {"anyOf": [_PROMPT, tokens, alone]}


Words = Annotated[StrictStr, BeforeValidator(_text_of_parts), WithJsonSchema({"anyOf": [_TEXT, _PARTS]})]
Stop = Annotated[StrictStr, Field(min_length=1, max_length=LONGEST_STOP)]
Stops = Annotated[list[Stop], Field(max_length=MOST_STOPS), BeforeValidator(_list_of_stops), WithJsonSchema(_STOPS)]
Prompt = Annotated[Any, BeforeValidator(_one_prompt), AfterValidator(_text_or_tokens), WithJsonSchema(prompt_shape())]
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS, strict=True), BeforeValidator(whole)]
Seed = Annotated[int, Field(strict=True), BeforeValidator(whole)]
Temperature = Annotated[float, Field(ge=0, le=2, strict=True, allow_inf_nan=False)]
Name = Annotated[StrictStr, BeforeValidator(sound)]


class StreamOptions(BaseModel):
    """What comes with a stream."""

    include_usage: StrictBool | None = None
    """A last chunk with the usage."""


class Asked(BaseModel):
    """What both kinds of request have."""

    model: Name | None = None
    """The name of the model, where one is given."""
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    seed: Seed | None = None
    """Of the draws at a temperature: the same seed and the same words give the same answer."""
    n: Annotated[Any, only(1)] = None
    top_p: Annotated[Any, only(1)] = None
    frequency_penalty: Annotated[Any, only(0)] = None
    presence_penalty: Annotated[Any, only(0)] = None
    logit_bias: Annotated[Any, only({})] = None


class Message(BaseModel):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Words | None = None


def _asks(messages: list[Message]) -> list[Message]:
    if not any(message.role == "user" and message.content is not None for message in messages):
        raise PydanticCustomError("question", "expected a message of the role user, with the question")
    return messages


_QUESTION: dict[str, Any] = {
    "contains": {
        "type": "object",
        "properties": {"role": {"const": "user"}, "content": {"type": ["string", "array"]}},
        "required": ["role", "content"],
    }
}


class ChatRequest(Asked):
    """A question for the agent: the last message of the user. What was said before it is not read."""

    messages: Annotated[
        list[Message],
        Field(min_length=1, max_length=MOST_MESSAGES, json_schema_extra=_QUESTION),
        AfterValidator(_asks),
    ]
    temperature: Temperature | None = None
    """0, greedy, unless it is given: as `sleuth eval` asks."""
    max_tokens: Tokens | None = None
    """The most tokens that the model may write, thoughts and queries included."""
    max_completion_tokens: Tokens | None = None
    """The same under its newer name."""
    stop: Annotated[Any, only([])] = None
    logprobs: Annotated[Any, only(False)] = None
    top_logprobs: Annotated[Any, only(0)] = None
    tools: Annotated[Any, only([])] = None
    tool_choice: Annotated[Any, only("none")] = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none")] = None
    response_format: Annotated[Any, only({"type": "text"})] = None

    @property
    def question(self) -> str:
        """The last message of the user."""
        said = [message.content for message in self.messages if message.role == "user"]
        return [words for words in said if words is not None][-1]

    @property
    def most_tokens(self) -> int | None:
        """What is given of the two limits, or the smaller."""
        given = [tokens for tokens in (self.max_tokens, self.max_completion_tokens) if tokens is not None]
        return min(given, default=None)


class CompletionRequest(Asked):
    """A text, or tokens, to go on with: by the model alone, without its environment."""

    prompt: Prompt
    temperature: Temperature | None = None
    """1 unless it is given."""
    max_tokens: Tokens | None = DEFAULT_TOKENS
    """The most tokens to write, as far as the context holds them."""
    stop: Stops | None = None
    logprobs: Annotated[Any, only(0)] = None
    """0: log-probabilities of the tokens that were sampled. There are none of others."""
    echo: Annotated[Any, only(False)] = None
    best_of: Annotated[Any, only(1)] = None
    suffix: Annotated[Any, only("")] = None


# -- answers -----------------------------------------------------------------------------------------------------------


class Usage(BaseModel):
    """`prompt_tokens` are all that the model was given, in chat the results of searches too, each token once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Citation(BaseModel):
    """A passage that was shown and holds the answer."""

    id: str
    title: str


class Found(Citation):
    """A passage that was shown."""

    text: str
    score: float


class Search(BaseModel):
    """A search and what came of it."""

    query: str
    passages: list[Found]


class Story(BaseModel):
    """What stands behind an answer. `stop` says how it ended: `answered`, `turns` (no searches were left), `length`."""

    stop: Literal["answered", "turns", "length"]
    searches: list[Search]
    citations: list[Citation]


class AnswerMessage(BaseModel):
    """`content` is the answer alone, empty where there is none."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str


class ChatChoice(BaseModel):
    index: int
    message: AnswerMessage
    logprobs: None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(BaseModel):
    """An answer with its story."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    sleuth: Story


class Logprobs(BaseModel):
    """Of each token that was sampled, its text, log-probability and place in the whole text. Tokens of a stop string
    are among them."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: None
    text_offset: list[int]


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"]


class TextCompletion(BaseModel):
    """How a text went on."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage


class Model(BaseModel):
    """The one model; `sleuth` says what it is asked under."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    sleuth: dict[str, Any]


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Problem(BaseModel):
    """What was wrong, in one line."""

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
