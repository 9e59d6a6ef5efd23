"""A conversation as HTTP: one JSON body, or a stream of chunks.

Searches and citations, for which OpenAI's API has no fields, are in the field `sleuth`, which other clients ignore.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from sleuth.serve.chat.citations import Citation
from sleuth.serve.chat.conversation import Answered, Event, Finished, Given, Misunderstood, Searched, TextDelta
from sleuth.serve.http.refused import Refused

FINISH_REASONS = {"answered": "stop", "turns": "stop", "length": "length"}
"""OpenAI's finish reasons by stop reason."""


Json = dict[str, Any]


def new_head(prefix: str, kind: str, model: str) -> Json:
    """The fields that every body and chunk of one answer starts with: a new id, the kind, the time and the model."""
    return {"id": f"{prefix}-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}


def chat_completion(events: Sequence[Event], head: Json) -> Json:
    """The body of a finished conversation."""
    end = require_end(events[-1])
    message = {
        "role": "assistant",
        "content": "".join(event.text for event in events if isinstance(event, Answered)),
        "reasoning_content": "".join(e.text for e in events if isinstance(e, TextDelta) and e.part == "thought"),
    }
    details = answer_details(end, [event for event in events if isinstance(event, Searched)])
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISH_REASONS[end.stop]}
    return head | {"choices": [choice], "usage": _usage(end), "sleuth": details}


async def chat_stream(
    events: AsyncGenerator[Event, None], head: Json, *, with_usage: bool
) -> AsyncGenerator[dict[str, Any], None]:
    """The chunks of a conversation as it runs."""

    def chunk(delta: Json, finish_reason: str | None = None, **more: Any) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return head | {"choices": [choice], **more}

    yield chunk({"role": "assistant", "content": ""})
    async with aclosing(events):
        async for event in events:
            match event:
                case TextDelta(part="thought"):
                    yield chunk({"reasoning_content": event.text})
                case TextDelta():
                    yield chunk({}, sleuth={"kind": event.part, "text": event.text})
                case Given():
                    yield chunk({}, sleuth={"kind": "given", "passages": list(map(asdict, event.passages))})
                case Searched():
                    yield chunk({}, sleuth={"kind": "search", **_search_json(event)})
                case Misunderstood():
                    yield chunk({}, sleuth={"kind": "misunderstood"})
                case Answered():
                    yield chunk({"content": event.text})
                case Finished():
                    end = require_end(event)
                    details = {"kind": "end", "stop": end.stop, "citations": list(map(_citation_json, end.citations))}
                    yield chunk({}, FINISH_REASONS[end.stop], sleuth=details)
                    if with_usage:
                        yield head | {"choices": [], "usage": _usage(end)}


def answer_details(end: Finished, searches: Sequence[Searched]) -> Json:
    """How an answer was found."""
    return {
        "stop": end.stop,
        "searches": list(map(_search_json, searches)),
        "citations": list(map(_citation_json, end.citations)),
    }


async def server_sent(chunks: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[str, None]:
    """Chunks as server-sent events. An error is sent as the last event, as the status has already been sent."""
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield data_line(chunk)
    except Refused as refused:
        yield data_line(refused.as_json())
    yield "data: [DONE]\n\n"


def data_line(chunk: Json) -> str:
    """The last line of a server-sent event, with the blank line that ends it."""
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _usage(end: Finished) -> Json:
    """OpenAI's `usage`."""
    total = end.prompt_tokens + end.completion_tokens
    return {"prompt_tokens": end.prompt_tokens, "completion_tokens": end.completion_tokens, "total_tokens": total}


def _search_json(search: Searched) -> Json:
    return {"query": search.query, "passages": list(map(asdict, search.passages))}


def _citation_json(citation: Citation) -> Json:
    sentence = None if citation.sentence is None else dict(zip(("begin", "stop"), citation.sentence, strict=True))
    return {"id": citation.passage.id, "title": citation.passage.title, "sentence": sentence}


def require_end(event: Event) -> Finished:
    """The final event. Raises `Refused` if the retriever failed."""
    if not isinstance(event, Finished):
        raise ValueError("a conversation without an end")
    if event.stop == "failed":
        raise Refused(503, "the retriever did not answer; ask again later", headers={"retry-after": "1"})
    return event
