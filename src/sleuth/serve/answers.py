"""A conversation as HTTP, in OpenAI's APIs for chat and responses: one JSON body, or a stream of events.

Searches and citations, for which the API for chat has no fields, are in the field `sleuth`, which other clients ignore.
A response has thoughts, searches and the answer as output items, and citations as annotations of the answer's text.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from urllib.parse import quote

from sleuth.cite.claims import tag_spans
from sleuth.episodes.agent_answers import (
    DONE,
    Json,
    ResponseWriter,
    Status,
    chat_chunk,
    chat_usage,
    data_line,
    named_event,
)
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
    return head | {
        "choices": [choice],
        "usage": chat_usage(end.prompt_tokens, end.completion_tokens),
        "sleuth": details,
    }


async def chat_stream(
    events: AsyncGenerator[Event, None], head: Json, *, with_usage: bool
) -> AsyncGenerator[str, None]:
    """The chunks of a conversation as it runs, as server-sent events. An error is sent as the last chunk, as the status
    has already been sent."""

    chunk = partial(chat_chunk, head)
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
                            yield data_line(
                                head | {"choices": [], "usage": chat_usage(end.prompt_tokens, end.completion_tokens)}
                            )
    except Refused as refused:
        yield data_line(refused.as_json())
    yield DONE


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


def require_end(event: Event) -> Finished:
    """The final event. Raises `Refused` if the retriever failed, or the environment of the user."""
    if not isinstance(event, Finished):
        raise ValueError("a conversation without an end")
    if event.stop == "failed":
        line = event.failure or "the retriever did not answer; ask again later"
        raise Refused(503, line, headers={"retry-after": "1"})
    return event


def _citation_json(citation: Citation) -> Json:
    """`sentence` is where in the passage's text the answer, or the quotation, is; null if it is not there."""
    sentence = None if citation.sentence is None else dict(zip(("begin", "stop"), citation.sentence, strict=True))
    return {"id": citation.passage.id, "title": citation.passage.title, "sentence": sentence}


# -- responses ---------------------------------------------------------------------------------------------------------


class ConversationResponse(ResponseWriter):
    """The response to a request, as far as its conversation has come."""

    def __init__(self, asked: ResponseRequest, model: str) -> None:
        super().__init__(
            model,
            max_output_tokens=asked.max_output_tokens,
            metadata=asked.metadata or {},
            temperature=asked.temperature or 0.0,
            tools=asked.tools or [],
            sleuth=None,  # until the end
        )
        self._with_sources = SOURCES in (asked.include or [])
        self._searches: list[Searched] = []
        self._was_given = False

    def receive(self, event: Event) -> list[Json]:
        """Adds an event of the conversation. Raises `Refused` if the retriever failed."""
        return list(self._received(event))

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
                yield from self.close_all("completed")
            case Answered():
                yield from self._answer(event.text)
            case Finished():
                yield from self._finish(require_end(event))

    def _think(self, text: str) -> Iterator[Json]:
        item = self.opened("reasoning")
        if item is None:
            text = text.lstrip()
            if not text:
                return
            yield from self.open("rs", "reasoning", summary=[], content=[])
            item = self.body["output"][-1]
            yield self.open_part(item, {"type": "reasoning_text", "text": ""})
        item["content"][0]["text"] += text
        yield self.within(item, "reasoning_text.delta", content_index=0, delta=text)

    def _begin_search(self) -> Iterator[Json]:
        if self.opened("web_search_call") is None:
            yield from self.close_all("completed")
            action = {"type": "search", "query": "", "queries": [], "sources": None}
            yield from self.open("ws", "web_search_call", action=action)
            yield self.within(self.body["output"][-1], "web_search_call.in_progress")

    def _search(self, search: Searched) -> Iterator[Json]:
        yield from self._begin_search()
        item = self.opened("web_search_call")
        assert item is not None
        self._searches.append(search)
        item["action"] |= {"query": search.query, "queries": [search.query]}
        if self._with_sources:
            item["action"]["sources"] = [{"type": "url", "url": url_of(passage)} for passage in search.passages]
        yield self.within(item, "web_search_call.searching")
        item["status"] = "completed"
        yield self.within(item, "web_search_call.completed")
        yield self.about(item, "output_item.done")
        yield from self.close_all("completed")

    def _answer(self, text: str) -> Iterator[Json]:
        yield from self.close_all("completed")
        yield from self.write_message(text)

    def _finish(self, end: Finished) -> Iterator[Json]:
        status: Status = "incomplete" if end.stop == "length" else "completed"
        if (message := self.opened("message")) is not None:
            part = message["content"][0]
            for number, annotation in enumerate(self._annotations(part["text"], end)):
                part["annotations"].append(annotation)
                fields = {"content_index": 0, "annotation_index": number, "annotation": annotation}
                yield self.within(message, "output_text.annotation.added", **fields)
        yield from self.close_all(status)
        self.body["sleuth"] = answer_details(end, self._searches)
        counts = {"prompt": end.prompt_tokens, "completion": end.completion_tokens, "reasoning": end.thought_tokens}
        yield self.end(status, **counts)

    def _annotations(self, text: str, end: Finished) -> Iterator[Json]:
        """A citation of each claim in a refiner's answer, else of the whole answer, for every passage cited there."""
        cited = {citation.passage.id: citation.passage for citation in end.citations}
        spans = tag_spans(text) if self._was_given else [(0, len(text), tuple(cited))]
        for start, stop, ids in spans:
            for passage in (cited[id_] for id_ in ids if id_ in cited):
                place = {"start_index": start, "end_index": stop}
                yield {"type": "url_citation", **place, "url": url_of(passage), "title": passage.title or passage.id}


async def response_stream(
    events: AsyncGenerator[Event, None], response: ConversationResponse
) -> AsyncGenerator[str, None]:
    """A response as server-sent events. An error is its last event, as the status has already been sent."""
    try:
        for event in response.begin():
            yield named_event(event)
        async with aclosing(events):
            async for received in events:
                for event in response.receive(received):
                    yield named_event(event)
    except Refused as refused:
        for event in response.fail(str(refused)):
            yield named_event(event)


def url_of(passage: Passage) -> str:
    """The address of a passage: its id if that is one of the web, else `passage:ID`."""
    return passage.id if passage.id.startswith(("http://", "https://")) else f"passage:{quote(passage.id, safe='')}"
