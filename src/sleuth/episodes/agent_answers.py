"""The bodies and streams of OpenAI's APIs for chat and responses, and a turn of the policy as the answer of either: a
JSON body, or a stream that says it in one piece."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Literal

from starlette.responses import JSONResponse, Response

from sleuth.episodes.agent_messages import Turn

Json = dict[str, Any]
Status = Literal["completed", "incomplete"]
DONE = "data: [DONE]\n\n"
"""The end of a stream of chat completions."""


def chat_answer(turn: Turn, body: Mapping[str, Any], model: str) -> Response:
    """The answer to a request of chat completions; `model` is the name that it says."""
    message: Json = {"role": "assistant", "content": turn.text or (None if turn.calls else "")}
    if turn.thought:
        message["reasoning_content"] = turn.thought
    if turn.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.calls
        ]
    reason = "length" if turn.stop == "length" else "tool_calls" if turn.calls else "stop"
    usage = chat_usage(turn.usage.prompt, turn.usage.completion)
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        return JSONResponse(new_head("chat.completion", model) | {"choices": [choice], "usage": usage})
    for at, call in enumerate(message.get("tool_calls", ())):
        call["index"] = at
    head = new_head("chat.completion.chunk", model) | {"usage": None}
    lines = [chat_chunk(head, message), chat_chunk(head, {}, reason)]
    if (body.get("stream_options") or {}).get("include_usage") is True:
        lines.append(data_line(head | {"choices": [], "usage": usage}))
    return Response("".join([*lines, DONE]), media_type="text/event-stream")


def response_answer(turn: Turn, body: Mapping[str, Any], model: str) -> Response:
    """The answer to a request of responses."""
    writer = ResponseWriter(model, parallel_tool_calls=True)
    events = [*writer.begin(), *_written(turn, writer)]
    if body.get("stream"):
        return Response("".join(map(named_event, events)), media_type="text/event-stream")
    return JSONResponse(writer.body)


def _written(turn: Turn, writer: ResponseWriter) -> Iterator[Json]:
    if turn.text or not turn.calls:
        yield from writer.write_item("msg", "message", text=turn.text, role="assistant", content=[])
    for call in turn.calls:
        called = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        yield from writer.write_item("fc", "function_call", **called)
    status: Status = "incomplete" if turn.stop == "length" else "completed"
    yield writer.end(status, prompt=turn.usage.prompt, completion=turn.usage.completion)


# -- chat --------------------------------------------------------------------------------------------------------------


def new_head(kind: str, model: str) -> Json:
    """The fields that every body and chunk of one answer starts with: a new id, the kind, the time and the model."""
    return {"id": f"chatcmpl-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}


def chat_chunk(head: Json, delta: Json, finish_reason: str | None = None, **more: Any) -> str:
    """A chunk of a stream, as a server-sent event."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return data_line(head | {"choices": [choice], **more})


def chat_usage(prompt: int, completion: int) -> Json:
    """OpenAI's `usage`: the prompt's tokens are all that the model did not generate, results included."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def data_line(chunk: Json) -> str:
    """The last line of a server-sent event, with the blank line that ends it."""
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"


# -- responses ---------------------------------------------------------------------------------------------------------


class ResponseWriter:
    """A response, as far as it has come: `body`, with other `fields` than the usual ones. Each method returns the
    events of the stream that say what has changed, numbered from 0."""

    def __init__(self, model: str, **fields: Any) -> None:
        self.body: Json = {
            "id": f"resp_{secrets.token_hex(12)}",
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": None,
            "metadata": {},
            "model": model,
            "output": [],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": 0.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": None,
            **fields,
        }
        self._count = 0

    def begin(self) -> list[Json]:
        """The first events."""
        return [self._event("created", response=self.body), self._event("in_progress", response=self.body)]

    def write_item(self, prefix: str, kind: str, *, text: str | None = None, **fields: Any) -> Iterator[Json]:
        """Adds an item, whose id begins with the prefix; a message has a text."""
        item = {"id": f"{prefix}_{secrets.token_hex(12)}", "type": kind, "status": "in_progress", **fields}
        at = {"output_index": len(self.body["output"])}
        self.body["output"].append(item)
        yield self._event("output_item.added", **at, item=item)
        if text is not None:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["content"] = [part]
            of_part = {"item_id": item["id"], **at, "content_index": 0}
            yield self._event("content_part.added", **of_part, part=part)
            part["text"] = text
            yield self._event("output_text.delta", **of_part, delta=text, logprobs=[])
            yield self._event("output_text.done", **of_part, text=text, logprobs=[])
            yield self._event("content_part.done", **of_part, part=part)
        item["status"] = "completed"
        yield self._event("output_item.done", **at, item=item)

    def end(self, status: Status, *, prompt: int, completion: int) -> Json:
        """Ends the response, after so many tokens."""
        self.body |= {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": completion,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + completion,
            },
            "completed_at": None if status == "incomplete" else int(time.time()),
        }
        return self._event(status, response=self.body)

    def _event(self, kind: str, **fields: Any) -> Json:
        self._count += 1
        return {"type": f"response.{kind}", "sequence_number": self._count - 1, **deepcopy(fields)}


def named_event(event: Json) -> str:
    """An event of a response, as a server-sent one."""
    return f"event: {event['type']}\n{data_line(event)}"
