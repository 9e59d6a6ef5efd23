"""A conversation as HTTP, in OpenAI's APIs for chat and responses: one JSON body, or a stream of events.

Searches and citations, for which the API for chat has no fields, are in the field `sleuth`, which other clients ignore.
A response has thoughts, searches and the answer as output items, and citations as annotations of the answer's text.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from copy import deepcopy
from dataclasses import asdict
from typing import Any, Literal
from urllib.parse import quote

from sleuth.cite.claims import tag_spans
from sleuth.serve.conversation import (
    Answered,
    Citation,
    Event,
    Finished,
    Given,
    Misunderstood,
    Searched,
    TextDelta,
)
from sleuth.serve.refused import Refused
from sleuth.serve.wire import SOURCES, ResponseRequest
from sleuth.types import Passage

FINISH_REASONS = {"answered": "stop", "turns": "stop", "length": "length"}
"""OpenAI's finish reasons by stop reason."""

Json = dict[str, Any]
Status = Literal["completed", "incomplete"]


def new_head(kind: str, model: str) -> Json:
    """The fields that every body and chunk of one answer starts with: a new id, the kind, the time and the model."""
    return {"id": f"chatcmpl-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}


def chat_completion(events: Sequence[Event], head: Json) -> Json:
    """The body of a finished conversation. `content` is the answer alone, empty if there is none."""
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
) -> AsyncGenerator[str, None]:
    """The chunks of a conversation as it runs, as server-sent events. An error is sent as the last chunk, as the status
    has already been sent."""

    def chunk(delta: Json, finish_reason: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return data_line(head | {"choices": [choice], **more})

    try:
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
                        yield chunk({}, sleuth={"kind": "search", **asdict(event)})
                    case Misunderstood():
                        yield chunk({}, sleuth={"kind": "misunderstood"})
                    case Answered():
                        yield chunk({"content": event.text})
                    case Finished():
                        end = require_end(event)
                        cited = list(map(_citation_json, end.citations))
                        details = {"kind": "end", "stop": end.stop, "citations": cited, **_certainty_json(end)}
                        yield chunk({}, FINISH_REASONS[end.stop], sleuth=details)
                        if with_usage:
                            yield data_line(head | {"choices": [], "usage": _usage(end)})
    except Refused as refused:
        yield data_line(refused.as_json())
    yield "data: [DONE]\n\n"


def answer_details(end: Finished, searches: Sequence[Searched]) -> Json:
    """How an answer was found. `stop` is `answered`, `turns` (no searches were left) or `length`."""
    return {
        "stop": end.stop,
        "searches": list(map(asdict, searches)),
        "citations": list(map(_citation_json, end.citations)),
        **_certainty_json(end),
    }


def _certainty_json(end: Finished) -> Json:
    """Of an agent that knows it: the share of such answers that are right, and an answer that was withheld."""
    return {} if end.certainty is None else {"certainty": end.certainty.as_json(), "withheld": end.withheld}


def data_line(chunk: Json) -> str:
    """The last line of a server-sent event, with the blank line that ends it."""
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"


def require_end(event: Event) -> Finished:
    """The final event. Raises `Refused` if the retriever failed, or the environment of the user."""
    if not isinstance(event, Finished):
        raise ValueError("a conversation without an end")
    if event.stop == "failed":
        line = event.failure or "the retriever did not answer; ask again later"
        raise Refused(503, line, headers={"retry-after": "1"})
    return event


def _usage(end: Finished) -> Json:
    """OpenAI's `usage`: the prompt's tokens are all that the model did not generate, search results included."""
    total = end.prompt_tokens + end.completion_tokens
    return {"prompt_tokens": end.prompt_tokens, "completion_tokens": end.completion_tokens, "total_tokens": total}


def _citation_json(citation: Citation) -> Json:
    """`sentence` is where in the passage's text the answer, or the quotation, is; null if it is not there."""
    sentence = None if citation.sentence is None else dict(zip(("begin", "stop"), citation.sentence, strict=True))
    return {"id": citation.passage.id, "title": citation.passage.title, "sentence": sentence}


# -- responses ---------------------------------------------------------------------------------------------------------


class ResponseWriter:
    """The response to a request, as far as its conversation has come: `body`. Each method returns the events of the
    stream that say what has changed, numbered from 0."""

    def __init__(self, asked: ResponseRequest, model: str) -> None:
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
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": model,
            "output": [],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": asked.temperature or 0.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": asked.tools or [],
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": None,
            "sleuth": None,  # until the end
        }
        self._with_sources = SOURCES in (asked.include or [])
        self._searches: list[Searched] = []
        self._was_given = False
        self._count = 0

    def begin(self) -> list[Json]:
        """The first events."""
        return [self._event("created", response=self.body), self._event("in_progress", response=self.body)]

    def receive(self, event: Event) -> list[Json]:
        """Adds an event of the conversation. Raises `Refused` if the retriever failed."""
        return list(self._received(event))

    def fail(self, refused: Refused) -> list[Json]:
        """Ends the response with an error."""
        self.body |= {"status": "failed", "error": {"code": "server_error", "message": str(refused)}}
        return [*self._close_all("incomplete"), self._event("failed", response=self.body)]

    def _received(self, event: Event) -> Iterator[Json]:
        match event:
            case TextDelta(part="thought"):
                yield from self._think(event.text)
            case TextDelta(part="query"):
                yield from self._begin_search()
            case TextDelta():
                pass  # a draft may be withdrawn; content never is
            case Given():
                self._was_given = True
            case Searched():
                yield from self._search(event)
            case Misunderstood():
                yield from self._close_all("completed")
            case Answered():
                yield from self._answer(event.text)
            case Finished():
                yield from self._finish(require_end(event))

    def _think(self, text: str) -> Iterator[Json]:
        item = self._open("reasoning")
        if item is None:
            text = text.lstrip()
            if not text:
                return
            item = self._new_item("rs", "reasoning", summary=[], content=[])
            yield self._about(item, "output_item.added")
            item["content"].append({"type": "reasoning_text", "text": ""})
            yield self._in(item, "content_part.added", content_index=0, part=item["content"][0])
        item["content"][0]["text"] += text
        yield self._in(item, "reasoning_text.delta", content_index=0, delta=text)

    def _begin_search(self) -> Iterator[Json]:
        if self._open("web_search_call") is None:
            yield from self._close_all("completed")
            action = {"type": "search", "query": "", "queries": [], "sources": None}
            item = self._new_item("ws", "web_search_call", action=action)
            yield self._about(item, "output_item.added")
            yield self._in(item, "web_search_call.in_progress")

    def _search(self, search: Searched) -> Iterator[Json]:
        yield from self._begin_search()
        item = self._open("web_search_call")
        assert item is not None
        self._searches.append(search)
        item["action"] |= {"query": search.query, "queries": [search.query]}
        if self._with_sources:
            item["action"]["sources"] = [{"type": "url", "url": url_of(passage)} for passage in search.passages]
        yield self._in(item, "web_search_call.searching")
        item["status"] = "completed"
        yield self._in(item, "web_search_call.completed")
        yield self._about(item, "output_item.done")
        yield from self._close_all("completed")

    def _answer(self, text: str) -> Iterator[Json]:
        yield from self._close_all("completed")
        item = self._new_item("msg", "message", role="assistant", content=[])
        yield self._about(item, "output_item.added")
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item["content"].append(part)
        yield self._in(item, "content_part.added", content_index=0, part=part)
        part["text"] = text
        yield self._in(item, "output_text.delta", content_index=0, delta=text, logprobs=[])

    def _finish(self, end: Finished) -> Iterator[Json]:
        status: Status = "incomplete" if end.stop == "length" else "completed"
        if (message := self._open("message")) is not None:
            part = message["content"][0]
            for number, annotation in enumerate(self._annotations(part["text"], end)):
                part["annotations"].append(annotation)
                fields = {"content_index": 0, "annotation_index": number, "annotation": annotation}
                yield self._in(message, "output_text.annotation.added", **fields)
        yield from self._close_all(status)
        self.body |= {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": {
                "input_tokens": end.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": end.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": end.thought_tokens},
                "total_tokens": end.prompt_tokens + end.completion_tokens,
            },
            "completed_at": None if status == "incomplete" else int(time.time()),
            "sleuth": answer_details(end, self._searches),
        }
        yield self._event(status, response=self.body)

    def _annotations(self, text: str, end: Finished) -> Iterator[Json]:
        """A citation of each claim in a refiner's answer, else of the whole answer, for every passage cited there."""
        cited = {citation.passage.id: citation.passage for citation in end.citations}
        spans = tag_spans(text) if self._was_given else [(0, len(text), tuple(cited))]
        for start, stop, ids in spans:
            for passage in (cited[id_] for id_ in ids if id_ in cited):
                place = {"start_index": start, "end_index": stop}
                yield {"type": "url_citation", **place, "url": url_of(passage), "title": passage.title or passage.id}

    def _close_all(self, status: Status) -> Iterator[Json]:
        """Ends the items in progress. A search among them never ran: it is `incomplete` or, where the rest is complete,
        `failed`."""
        for item in self.body["output"]:
            if item["status"] != "in_progress":
                continue
            is_search = item["type"] == "web_search_call"
            item["status"] = "failed" if is_search and status == "completed" else status
            if not is_search:
                part = item["content"][0]
                logprobs = {"logprobs": []} if item["type"] == "message" else {}
                yield self._in(item, f"{part['type']}.done", content_index=0, text=part["text"], **logprobs)
                yield self._in(item, "content_part.done", content_index=0, part=part)
            yield self._about(item, "output_item.done")

    def _open(self, kind: str) -> Json | None:
        """The item of this kind that is in progress."""
        items = self.body["output"]
        return next((item for item in items if item["type"] == kind and item["status"] == "in_progress"), None)

    def _new_item(self, prefix: str, kind: str, **fields: Any) -> Json:
        item = {"id": f"{prefix}_{secrets.token_hex(12)}", "type": kind, "status": "in_progress", **fields}
        self.body["output"].append(item)
        return item

    def _about(self, item: Json, kind: str) -> Json:
        """An event with an item as it now is."""
        return self._event(kind, output_index=self.body["output"].index(item), item=item)

    def _in(self, item: Json, kind: str, **fields: Any) -> Json:
        """An event in an item's course."""
        return self._event(kind, item_id=item["id"], output_index=self.body["output"].index(item), **fields)

    def _event(self, kind: str, **fields: Any) -> Json:
        self._count += 1
        return {"type": f"response.{kind}", "sequence_number": self._count - 1, **deepcopy(fields)}


async def response_stream(events: AsyncGenerator[Event, None], response: ResponseWriter) -> AsyncGenerator[str, None]:
    """A response as server-sent events. An error is its last event, as the status has already been sent."""
    try:
        for event in response.begin():
            yield _named_event(event)
        async with aclosing(events):
            async for received in events:
                for event in response.receive(received):
                    yield _named_event(event)
    except Refused as refused:
        for event in response.fail(refused):
            yield _named_event(event)


def url_of(passage: Passage) -> str:
    """The address of a passage: its id if that is one of the web, else `passage:ID`."""
    return passage.id if passage.id.startswith(("http://", "https://")) else f"passage:{quote(passage.id, safe='')}"


def _named_event(event: Json) -> str:
    return f"event: {event['type']}\n{data_line(event)}"
