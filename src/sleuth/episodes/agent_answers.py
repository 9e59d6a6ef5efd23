"""A turn of the policy as the answer of OpenAI's two APIs: a JSON body, or a stream that says it in one piece."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from sleuth.episodes.agent_messages import Turn

Json = dict[str, Any]


def chat_answer(turn: Turn, body: Mapping[str, Any], model: str) -> Response:
    """The answer to a request of chat completions; `model` is the name that it says."""
    answer = _chat_completion(turn, model)
    if not body.get("stream"):
        return JSONResponse(answer)
    with_usage = (body.get("stream_options") or {}).get("include_usage") is True
    return _stream([*_chat_chunks(answer, with_usage=with_usage), "[DONE]"])


def response_answer(turn: Turn, body: Mapping[str, Any], model: str) -> Response:
    """The answer to a request of responses."""
    answer = _response_object(turn, model)
    return _stream(_response_events(answer)) if body.get("stream") else JSONResponse(answer)


def _stream(events: Iterable[Json | str]) -> Response:
    return Response("".join(map(_event, events)), media_type="text/event-stream")


def _event(event: Json | str) -> str:
    if isinstance(event, str):
        return f"data: {event}\n\n"
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n"


def _chat_completion(turn: Turn, model: str) -> Json:
    message: Json = {"role": "assistant", "content": turn.text or (None if turn.calls else "")}
    if turn.thought:
        message["reasoning_content"] = turn.thought
    if turn.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.calls
        ]
    reason = "length" if turn.stop == "length" else "tool_calls" if turn.calls else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    head = {"id": f"chatcmpl-{secrets.token_hex(8)}", "object": "chat.completion", "created": int(time.time())}
    used = {"prompt_tokens": turn.usage.prompt, "completion_tokens": turn.usage.completion}
    return {**head, "model": model, "choices": [choice], "usage": {**used, "total_tokens": sum(used.values())}}


def _chat_chunks(answer: Json, *, with_usage: bool) -> list[Json]:
    """One chunk of all that was written, one of why it ended and, if it is asked for, one of the usage."""
    [choice] = answer["choices"]
    delta = dict(choice["message"])
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
    head = {**answer, "object": "chat.completion.chunk", "usage": None}
    ends = ((delta, None), ({}, choice["finish_reason"]))
    chunks = [{**head, "choices": [{"index": 0, "delta": part, "finish_reason": end}]} for part, end in ends]
    return [*chunks, *([{**head, "choices": [], "usage": answer["usage"]}] if with_usage else [])]


def _response_object(turn: Turn, model: str) -> Json:
    name = secrets.token_hex(8)
    output: list[Json] = []
    if turn.text or not turn.calls:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        output.append(
            {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed", "content": content}
        )
    for call in turn.calls:
        function = {"call_id": call.id, "name": call.name, "arguments": call.arguments, "status": "completed"}
        output.append({"type": "function_call", "id": f"fc_{name}_{call.id}", **function})
    cut, used = turn.stop == "length", turn.usage
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "output": output,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "usage": {
            "input_tokens": used.prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": used.completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.prompt + used.completion,
        },
    }


def _response_events(answer: Json) -> list[Json]:
    events: list[Json] = [
        {"type": "response.created", "response": {**answer, "output": [], "status": "in_progress", "usage": None}}
    ]
    for at, item in enumerate(answer["output"]):
        events.append({"type": "response.output_item.added", "output_index": at, "item": item})
        for part in item.get("content", ()):
            place = {"item_id": item["id"], "output_index": at, "content_index": 0, "logprobs": []}
            events.append({"type": "response.output_text.delta", "delta": part["text"], **place})
            events.append({"type": "response.output_text.done", "text": part["text"], **place})
        events.append({"type": "response.output_item.done", "output_index": at, "item": item})
    end = "response.incomplete" if answer["status"] == "incomplete" else "response.completed"
    events.append({"type": end, "response": answer})
    return [{**event, "sequence_number": at} for at, event in enumerate(events)]
