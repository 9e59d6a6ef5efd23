"""Request bodies of OpenAI's APIs for chat and responses. Unknown fields are ignored, as by OpenAI; fields that would
change an answer but are unsupported are listed, to refuse them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StrictBool, StrictStr
from pydantic_core import PydanticCustomError

from sleuth.host.escapes import replace_surrogates
from sleuth.serve.refused import as_integer

MAX_MESSAGES = 256
MAX_TOKENS = 2**31 - 1
"""The largest accepted limit of tokens."""
MAX_METADATA = 16
INPUT_PARTS = ("input_text", "output_text", "reasoning_text")
SEARCH_TOOL = {"type": "web_search"}
SOURCES = "web_search_call.action.sources"


def only(*values: Any) -> AfterValidator:
    """Marks a field that may be absent, null or one of `values`; anything else is refused as unsupported:
    `n: Annotated[Any, only(1)] = None`."""

    def check(value: Any) -> Any:
        if any(value == known and isinstance(value, bool) == isinstance(known, bool) for known in (None, *values)):
            return value
        raise PydanticCustomError("unsupported", "not supported here; leave it out")

    return AfterValidator(check)


def text_of_parts(value: object, types: tuple[str, ...]) -> object:
    """The text of a message; parts, of these types, are joined by line breaks."""
    if not isinstance(value, list):
        return replace_surrogates(value)
    contents = [part.get("text") if isinstance(part, dict) and part.get("type") in types else None for part in value]
    if not all(isinstance(text, str) for text in contents):
        message = "Input should be text, or a list of parts of the type {types}"
        raise PydanticCustomError("parts", message, {"types": " or ".join(types)})
    return replace_surrogates("\n".join(map(str, contents)))


MessageText = Annotated[StrictStr, BeforeValidator(partial(text_of_parts, types=("text",)))]
InputText = Annotated[StrictStr, BeforeValidator(partial(text_of_parts, types=INPUT_PARTS))]
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


Said = Sequence["Message | InputItem"]
"""What was said, and other items without a role."""
Items = TypeVar("Items", bound=Said)


def last_question(said: Said) -> str:
    """The last content of a user. Raises if there is none."""
    contents = [one.content for one in said if one.role == "user" and one.content is not None]
    if not contents:
        raise PydanticCustomError("question", "expected a message of the role user, with the question")
    return contents[-1]


def require_question(said: Items) -> Items:
    """The items, if one is a question."""
    last_question(said)
    return said


class Message(BaseModel):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: MessageText | None = None


class ChatRequest(BaseRequest):
    """A question for the agent: the last user message. Earlier messages are ignored. `max_tokens`, by its newer name
    `max_completion_tokens`, limits the generated tokens, thoughts and queries included."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES), AfterValidator(require_question)]
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


class InputItem(BaseModel):
    """A message (`type` None), or a step of an earlier answer."""

    type: Literal["message", "reasoning", "web_search_call"] | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: InputText | None = None


class ReasoningOptions(BaseModel):
    """Thoughts always come in full, so a wish for a `summary` changes nothing."""

    effort: Annotated[Any, only()] = None


def _as_items(value: object) -> object:
    """The items; a text is the one message of a user."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class ResponseRequest(BaseRequest):
    """A question for the agent: the last user message of `input`. Earlier items are ignored, and so are `instructions`,
    as system messages are: the model reads the prompt that it was trained with. `include` may ask for the addresses of
    the results of each search; `metadata` is returned as it came."""

    input: Annotated[
        list[InputItem],
        Field(min_length=1, max_length=MAX_MESSAGES),
        BeforeValidator(_as_items),
        AfterValidator(require_question),
    ]
    max_output_tokens: Tokens | None = None
    instructions: Name | None = None
    include: list[Literal["web_search_call.action.sources", "reasoning.encrypted_content"]] | None = None
    metadata: Annotated[dict[Name, Name], Field(max_length=MAX_METADATA)] | None = None
    previous_response_id: Annotated[Any, only()] = None
    conversation: Annotated[Any, only()] = None
    prompt: Annotated[Any, only()] = None
    background: Annotated[Any, only(False)] = None
    tools: Annotated[Any, only([], [SEARCH_TOOL])] = None
    tool_choice: Annotated[Any, only("auto")] = None
    max_tool_calls: Annotated[Any, only()] = None
    text: Annotated[Any, only({}, {"format": {"type": "text"}})] = None
    reasoning: ReasoningOptions | None = None
    truncation: Annotated[Any, only("disabled")] = None

    @property
    def question(self) -> str:
        """The last user message."""
        return last_question(self.input)

    @property
    def token_limit(self) -> int | None:
        """The limit of generated tokens."""
        return self.max_output_tokens
