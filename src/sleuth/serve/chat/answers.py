"""A conversation as HTTP: one JSON body, or a stream of chunks.

Searches and citations, for which OpenAI's API has no fields, are in the field `sleuth`, which other clients ignore.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from sleuth.serve.chat.citations import Citation
from sleuth.serve.chat.conversation import Answered, Event, Finished, Given, Misunderstood, Searched
from sleuth.serve.chat.stream_parser import TextDelta
from sleuth.serve.http.refused import Refused
from sleuth.types import Passage

FINISH_REASONS = {"answered": "stop", "turns": "stop", "length": "length"}
"""OpenAI's finish reasons by stop reason."""

DONE = "data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The fields that every body and chunk of one answer starts with."""

    id: str
    object: str
    created: int
    model: str

    def with_choices(self, *choices: dict[str, Any], **more: Any) -> dict[str, Any]:
        """A body or chunk with these choices and further fields."""
        return {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
            **more,
        }


def new_head(prefix: str, kind: str, model: str) -> Head:
    """A head with a new id and the current time."""
    return Head(id=f"{prefix}-{secrets.token_hex(12)}", object=kind, created=int(time.time()), model=model)


def chat_completion(events: Sequence[Event], head: Head) -> dict[str, Any]:
    """The body of a finished conversation."""
    end = require_end(events[-1])
    message = {
        "role": "assistant",
        "content": "".join(event.text for event in events if isinstance(event, Answered)),
        "reasoning_content": "".join(e.text for e in events if isinstance(e, TextDelta) and e.part == "thought"),
    }
    details = answer_details(end, [event for event in events if isinstance(event, Searched)])
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISH_REASONS[end.stop]}
    return head.with_choices(choice, usage=usage(end.prompt_tokens, end.completion_tokens), sleuth=details)


async def chat_stream(
    events: AsyncGenerator[Event, None], head: Head, *, with_usage: bool
) -> AsyncGenerator[dict[str, Any], None]:
    """The chunks of a conversation as it runs."""
    yield head.with_choices(_delta({"role": "assistant", "content": ""}))
    async with aclosing(events):
        async for event in events:
            yield _chunk(event, head)
            if with_usage and isinstance(event, Finished):
                yield head.with_choices(usage=usage(event.prompt_tokens, event.completion_tokens))


def _chunk(event: Event, head: Head) -> dict[str, Any]:
    match event:
        case TextDelta(part="thought"):
            return head.with_choices(_delta({"reasoning_content": event.text}))
        case TextDelta():
            return head.with_choices(_delta({}), sleuth={"kind": event.part, "text": event.text})
        case Given():
            return head.with_choices(_delta({}), sleuth={"kind": "given", "passages": _passages_json(event.passages)})
        case Searched():
            return head.with_choices(_delta({}), sleuth={"kind": "search", **search_json(event)})
        case Misunderstood():
            return head.with_choices(_delta({}), sleuth={"kind": "misunderstood"})
        case Answered():
            return head.with_choices(_delta({"content": event.text}))
        case Finished():
            end = require_end(event)
            cited = [_citation_json(citation) for citation in end.citations]
            details = {"kind": "end", "stop": end.stop, "citations": cited}
            return head.with_choices(_delta({}, FINISH_REASONS[end.stop]), sleuth=details)


def answer_details(end: Finished, searches: Sequence[Searched]) -> dict[str, Any]:
    """How an answer was found."""
    return {
        "stop": end.stop,
        "searches": [search_json(search) for search in searches],
        "citations": [_citation_json(citation) for citation in end.citations],
    }


async def server_sent(chunks: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[str, None]:
    """Chunks as server-sent events. An error is sent as the last event, as the status has already been sent."""
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield data_line(chunk)
    except Refused as refused:
        yield data_line(refused.as_json())
    yield DONE


def data_line(chunk: dict[str, Any]) -> str:
    """The last line of a server-sent event, with the blank line that ends it."""
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def search_json(search: Searched) -> dict[str, Any]:
    """A search with its results."""
    return {"query": search.query, "passages": _passages_json(search.passages)}


def _passages_json(passages: Sequence[Passage]) -> list[dict[str, Any]]:
    return [
        {"id": passage.id, "title": passage.title, "text": passage.text, "score": passage.score} for passage in passages
    ]


def _citation_json(citation: Citation) -> dict[str, Any]:
    sentence = None
    if citation.sentence is not None:
        begin, stop = citation.sentence
        sentence = {"begin": begin, "stop": stop}
    return {"id": citation.passage.id, "title": citation.passage.title, "sentence": sentence}


def _delta(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def require_end(event: Event) -> Finished:
    """The final event. Raises `Refused` if the retriever failed."""
    if not isinstance(event, Finished):
        raise ValueError("a conversation without an end")
    if event.stop == "failed":
        raise Refused(503, "the retriever did not answer; ask again later", headers={"retry-after": "1"})
    return event
