"""Request and answer bodies of OpenAI's Responses API, whose fields are treated as in `wire`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StrictStr, WithJsonSchema

from sleuth.serve.chat.wire import (
    MAX_MESSAGES,
    QUESTION_SHAPE,
    AnswerDetails,
    BaseRequest,
    Name,
    Only,
    Temperature,
    Tokens,
    last_question,
    require_question,
    text_of_parts,
    text_shape,
)

INPUT_PARTS = ("input_text", "output_text", "reasoning_text")
SEARCH_TOOL = {"type": "web_search"}
SOURCES = "web_search_call.action.sources"
MAX_METADATA = 16

InputText = Annotated[
    StrictStr,
    BeforeValidator(partial(text_of_parts, types=INPUT_PARTS)),
    WithJsonSchema(text_shape(INPUT_PARTS)),
]


class InputItem(BaseModel):
    """A message, or a step of an earlier answer."""

    type: Literal["message", "reasoning", "web_search_call"] | None = None
    """None: a message."""
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: InputText | None = None


class ReasoningOptions(BaseModel):
    """Thoughts always come in full, so a wish for a `summary` changes nothing."""

    effort: Annotated[Any, Only()] = None


_COUNT = Field(min_length=1, max_length=MAX_MESSAGES, json_schema_extra=QUESTION_SHAPE)


def _as_items(value: object) -> object:
    """The items; a text is the one message of a user."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class ResponseRequest(BaseRequest):
    """A question for the agent: the last user message of `input`. Earlier items are ignored."""

    input: Annotated[
        list[InputItem],
        _COUNT,
        BeforeValidator(_as_items, json_schema_input_type=str | Annotated[list[InputItem], _COUNT]),
        AfterValidator(require_question),
    ]
    temperature: Temperature | None = None
    """Default 0 (greedy), as in `sleuth eval`."""
    max_output_tokens: Tokens | None = None
    """Limit of generated tokens, including thoughts and queries."""
    instructions: Name | None = None
    """Ignored, as system messages are: the model reads the prompt that it was trained with."""
    include: list[Literal["web_search_call.action.sources", "reasoning.encrypted_content"]] | None = None
    """Sources: the addresses of the results of each search. Reasoning is always in plain text."""
    metadata: Annotated[dict[Name, Name], Field(max_length=MAX_METADATA)] | None = None
    """Returned as it came."""
    previous_response_id: Annotated[Any, Only()] = None
    conversation: Annotated[Any, Only()] = None
    prompt: Annotated[Any, Only()] = None
    background: Annotated[Any, Only(False)] = None
    tools: Annotated[Any, Only([], [SEARCH_TOOL])] = None
    tool_choice: Annotated[Any, Only("auto")] = None
    max_tool_calls: Annotated[Any, Only()] = None
    text: Annotated[Any, Only({}, {"format": {"type": "text"}})] = None
    reasoning: ReasoningOptions | None = None
    truncation: Annotated[Any, Only("disabled")] = None
    top_logprobs: Annotated[Any, Only(0)] = None

    @property
    def question(self) -> str:
        """The last user message."""
        return last_question(self.input)


# -- answers -----------------------------------------------------------------------------------------------------------

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class ReasoningText(BaseModel):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class Reasoning(BaseModel):
    """Thoughts up to the next search or the answer."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    status: Status = "in_progress"
    summary: list[Any] = []
    content: list[ReasoningText] = []


class Source(BaseModel):
    type: Literal["url"] = "url"
    url: str


class SearchAction(BaseModel):
    """`query` is empty until the environment has accepted it, `sources` null unless they were asked for."""

    type: Literal["search"] = "search"
    query: str = ""
    queries: list[str] = []
    sources: list[Source] | None = None


class WebSearchCall(BaseModel):
    """A search, `failed` if the environment could not parse it."""

    id: str
    type: Literal["web_search_call"] = "web_search_call"
    status: Status = "in_progress"
    action: SearchAction = SearchAction()


class UrlCitation(BaseModel):
    """`text[start_index:end_index]` of the answer can be read in the passage at `url`."""

    type: Literal["url_citation"] = "url_citation"
    start_index: int
    end_index: int
    url: str
    title: str


class OutputText(BaseModel):
    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[UrlCitation] = []
    logprobs: list[Any] = []


class OutputMessage(BaseModel):
    """The answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: Status = "in_progress"
    content: list[OutputText] = []


OutputItem = Reasoning | WebSearchCall | OutputMessage


class InputDetails(BaseModel):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(BaseModel):
    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """`input_tokens` are all tokens that the model did not generate, search results included, each once."""

    input_tokens: int
    input_tokens_details: InputDetails = InputDetails()
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


class ResponseProblem(BaseModel):
    code: Literal["server_error"]
    message: str


class ResponseBody(BaseModel):
    """A response; `sleuth` is null until its end."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status = "in_progress"
    background: Literal[False] = False
    error: ResponseProblem | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: None = None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: Literal[False] = False
    previous_response_id: None = None
    store: Literal[False] = False
    temperature: float
    text: dict[str, Any] = {"format": {"type": "text"}}
    tool_choice: Literal["auto"] = "auto"
    tools: list[dict[str, str]]
    top_p: float = 1.0
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    sleuth: AnswerDetails | None = None
