"""Request bodies of OpenAI's API for chat, and of agents that ask for a turn of the model. Unknown fields are ignored,
as by OpenAI; fields that would change an answer but are unsupported are listed, to refuse them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StrictBool, StrictStr
from pydantic_core import PydanticCustomError

from sleuth.host.escapes import replace_surrogates
from sleuth.serve.refused import as_integer

MAX_MESSAGES = 256
MAX_TOKENS = 2**31 - 1
"""The largest accepted limit of tokens."""


def only(*values: Any) -> AfterValidator:
    """Marks a field that may be absent, null or one of `values`; anything else is refused as unsupported:
    `n: Annotated[Any, only(1)] = None`."""

    def check(value: Any) -> Any:
        if any(value == known and isinstance(value, bool) == isinstance(known, bool) for known in (None, *values)):
            return value
        raise PydanticCustomError("unsupported", "not supported here; leave it out")

    return AfterValidator(check)


def _text_of_parts(value: object) -> object:
    """The text of a message; parts are joined by line breaks."""
    if not isinstance(value, list):
        return replace_surrogates(value)
    contents = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in value]
    if not all(isinstance(text, str) for text in contents):
        raise PydanticCustomError("parts", "Input should be text, or a list of parts of the type text")
    return replace_surrogates("\n".join(map(str, contents)))


MessageText = Annotated[StrictStr, BeforeValidator(_text_of_parts)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS, strict=True), BeforeValidator(as_integer)]
Seed = Annotated[int, Field(strict=True), BeforeValidator(as_integer)]
Temperature = Annotated[float, Field(ge=0, le=2, strict=True, allow_inf_nan=False)]
Name = Annotated[StrictStr, BeforeValidator(replace_surrogates)]


class StreamOptions(BaseModel):
    """`include_usage`: whether to end a stream with a chunk of the usage."""

    include_usage: StrictBool | None = None


class BaseRequest(BaseModel):
    """The fields of both kinds of request. `model` must be the served model's name if given; with the same `seed` and
    messages the answer is the same; `temperature` is 0 (greedy) by default, as in `sleuth eval`."""

    model: Name | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    seed: Seed | None = None
    temperature: Temperature | None = None
    n: Annotated[Any, only(1)] = None
    top_p: Annotated[Any, only(1)] = None
    frequency_penalty: Annotated[Any, only(0)] = None
    presence_penalty: Annotated[Any, only(0)] = None
    logit_bias: Annotated[Any, only({})] = None
    top_logprobs: Annotated[Any, only(0)] = None


class TurnRequest(BaseRequest, extra="allow"):
    """A request for a turn of the model after the whole history, in either API."""


class Message(BaseModel):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: MessageText | None = None


def _require_question(messages: list[Message]) -> list[Message]:
    """The messages, if one is a question."""
    if not any(one.role == "user" and one.content is not None for one in messages):
        raise PydanticCustomError("question", "expected a message of the role user, with the question")
    return messages


class ChatRequest(BaseRequest):
    """A question for the agent: the last user message. Earlier messages are ignored. `max_tokens`, by its newer name
    `max_completion_tokens`, limits the generated tokens, thoughts and queries included."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES), AfterValidator(_require_question)]
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    stop: Annotated[Any, only([])] = None
    logprobs: Annotated[Any, only(False)] = None
    tools: Annotated[Any, only([])] = None
    tool_choice: Annotated[Any, only("none")] = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none")] = None
    response_format: Annotated[Any, only({"type": "text"})] = None

    @property
    def question(self) -> str:
        """The last user message."""
        return [one.content for one in self.messages if one.role == "user" and one.content is not None][-1]

    @property
    def token_limit(self) -> int | None:
        """The smaller of the given limits, None without any."""
        limits = [tokens for tokens in (self.max_tokens, self.max_completion_tokens) if tokens is not None]
        return min(limits, default=None)

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with a chunk of the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)
