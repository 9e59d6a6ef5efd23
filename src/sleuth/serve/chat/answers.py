"""How a conversation is told over HTTP: as one JSON body, or as a stream of chunks.

What OpenAI's API has no place for stands in the field `sleuth` of a chunk, which other clients ignore.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from sleuth.serve.chat.conversation import Answered, Event, Given, Misunderstood, Over, Searched
from sleuth.serve.chat.stream_parser import Said
from sleuth.serve.http.refused import Refused
from sleuth.types import Passage

FINISHED = {"answered": "stop", "turns": "stop", "length": "length"}
"""How OpenAI's API calls the ways in which a conversation ends."""

DONE = "data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every body and chunk of one answer begins with."""

    id: str
    object: str
    created: int
    model: str

    def around(self, *choices: dict[str, Any], **more: Any) -> dict[str, Any]:
        """A body or chunk with these choices."""
        return {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
            **more,
        }


def new_head(prefix: str, kind: str, model: str) -> Head:
    """The head of an answer that begins now."""
    return Head(id=f"{prefix}-{secrets.token_hex(12)}", object=kind, created=int(time.time()), model=model)


def whole_answer(events: Sequence[Event], head: Head) -> dict[str, Any]:
    """The body of an answer of which everything was heard."""
    over = _end(events[-1])
    message = {
        "role": "assistant",
        "content": "".join(event.text for event in events if isinstance(event, Answered)),
        "reasoning_content": "".join(e.text for e in events if isinstance(e, Said) and e.part == "thought"),
    }
    story = {
        "stop": over.stop,
        "searches": [search_shown(event) for event in events if isinstance(event, Searched)],
        "citations": [_cited(passage) for passage in over.citations],
    }
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISHED[over.stop]}
    return head.around(choice, usage=usage(over.prompt_tokens, over.completion_tokens), sleuth=story)


async def chat_stream(
    events: AsyncGenerator[Event, None], head: Head, *, with_usage: bool
) -> AsyncGenerator[dict[str, Any], None]:
    """The chunks of an answer as it is heard."""
    yield head.around(_delta({"role": "assistant", "content": ""}))
    async with aclosing(events):
        async for event in events:
            yield _chunk(event, head)
            if with_usage and isinstance(event, Over):
                yield head.around(usage=usage(event.prompt_tokens, event.completion_tokens))


def _chunk(event: Event, head: Head) -> dict[str, Any]:
    match event:
        case Said(part="thought"):
            return head.around(_delta({"reasoning_content": event.text}))
        case Said():
            return head.around(_delta({}), sleuth={"kind": event.part, "text": event.text})
        case Given():
            return head.around(_delta({}), sleuth={"kind": "given", "passages": _shown(event.passages)})
        case Searched():
            return head.around(_delta({}), sleuth={"kind": "search", **search_shown(event)})
        case Misunderstood():
            return head.around(_delta({}), sleuth={"kind": "misunderstood"})
        case Answered():
            return head.around(_delta({"content": event.text}))
        case Over():
            over = _end(event)
            cited = [_cited(passage) for passage in over.citations]
            end = {"kind": "end", "stop": over.stop, "citations": cited}
            return head.around(_delta({}, FINISHED[over.stop]), sleuth=end)


async def server_sent(chunks: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[str, None]:
    """Chunks as server-sent events. A problem on the way is the last of them: the status has long been sent."""
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield _server_sent(chunk)
    except Refused as refused:
        yield _server_sent(refused.as_json())
    yield DONE


def _server_sent(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def search_shown(search: Searched) -> dict[str, Any]:
    """A search with the passages that it found."""
    return {"query": search.query, "passages": _shown(search.passages)}


def _shown(passages: Sequence[Passage]) -> list[dict[str, Any]]:
    return [
        {"id": passage.id, "title": passage.title, "text": passage.text, "score": passage.score} for passage in passages
    ]


def _cited(passage: Passage) -> dict[str, str]:
    return {"id": passage.id, "title": passage.title}


def _delta(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _end(event: Event) -> Over:
    """A conversation that ended as it should."""
    if not isinstance(event, Over):
        raise ValueError("a conversation without an end")
    if event.stop == "failed":
        raise Refused(503, "the retriever did not answer; ask again later", headers={"retry-after": "1"})
    return event
