"""A conversation as OpenAI's Responses API has it: thoughts, searches and the answer as output items, and citations as
annotations of the answer's text."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from sleuth.cite.claims import tag_spans
from sleuth.serve.chat.answers import answer_details, data_line, require_end
from sleuth.serve.chat.conversation import Answered, Event, Finished, Given, Misunderstood, Searched, TextDelta
from sleuth.serve.chat.responses_wire import (
    SOURCES,
    AnswerDetails,
    IncompleteDetails,
    OutputDetails,
    OutputItem,
    OutputMessage,
    OutputText,
    Reasoning,
    ReasoningText,
    ResponseBody,
    ResponseProblem,
    ResponseRequest,
    ResponseUsage,
    Source,
    Status,
    UrlCitation,
    WebSearchCall,
)
from sleuth.serve.http.refused import Refused
from sleuth.types import Passage

Json = dict[str, Any]
Item = TypeVar("Item", bound=OutputItem)


class ResponseWriter:
    """The response to a request, as far as its conversation has come: `body`. Each method returns the events of the
    stream that say what has changed, numbered from 0."""

    def __init__(self, asked: ResponseRequest, model: str) -> None:
        self.body = ResponseBody(
            id=_new_id("resp"),
            created_at=int(time.time()),
            max_output_tokens=asked.max_output_tokens,
            metadata=asked.metadata or {},
            model=model,
            temperature=asked.temperature or 0.0,
            tools=asked.tools or [],
        )
        self._with_sources = SOURCES in (asked.include or [])
        self._searches: list[Searched] = []
        self._was_given = False
        self._count = 0

    def begin(self) -> list[Json]:
        """The first events."""
        return [self._lifecycle("created"), self._lifecycle("in_progress")]

    def receive(self, event: Event) -> list[Json]:
        """Adds an event of the conversation. Raises `Refused` if the retriever failed."""
        return list(self._received(event))

    def fail(self, refused: Refused) -> list[Json]:
        """Ends the response with an error."""
        self.body.status = "failed"
        self.body.error = ResponseProblem(code="server_error", message=str(refused))
        return [*self._close_all("incomplete"), self._lifecycle("failed")]

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
        item = self._open(Reasoning)
        if item is None:
            text = text.lstrip()
            if not text:
                return
            item = Reasoning(id=_new_id("rs"))
            yield self._add(item)
            item.content.append(ReasoningText())
            yield self._in(item, "content_part.added", content_index=0, part=item.content[0])
        item.content[0].text += text
        yield self._in(item, "reasoning_text.delta", content_index=0, delta=text)

    def _begin_search(self) -> Iterator[Json]:
        if self._open(WebSearchCall) is None:
            yield from self._close_all("completed")
            item = WebSearchCall(id=_new_id("ws"))
            yield self._add(item)
            yield self._in(item, "web_search_call.in_progress")

    def _search(self, search: Searched) -> Iterator[Json]:
        yield from self._begin_search()
        item = self._open(WebSearchCall)
        assert item is not None
        self._searches.append(search)
        item.action.query, item.action.queries = search.query, [search.query]
        if self._with_sources:
            item.action.sources = [Source(url=url_of(passage)) for passage in search.passages]
        yield self._in(item, "web_search_call.searching")
        item.status = "completed"
        yield self._in(item, "web_search_call.completed")
        yield self._about(item, "output_item.done")
        yield from self._close_all("completed")

    def _answer(self, text: str) -> Iterator[Json]:
        yield from self._close_all("completed")
        item = OutputMessage(id=_new_id("msg"))
        yield self._add(item)
        item.content.append(OutputText())
        yield self._in(item, "content_part.added", content_index=0, part=item.content[0])
        item.content[0].text = text
        yield self._in(item, "output_text.delta", content_index=0, delta=text, logprobs=[])

    def _finish(self, end: Finished) -> Iterator[Json]:
        cut = end.stop == "length"
        if (message := self._open(OutputMessage)) is not None:
            for number, annotation in enumerate(self._annotations(message.content[0].text, end)):
                message.content[0].annotations.append(annotation)
                yield self._in(
                    message,
                    "output_text.annotation.added",
                    content_index=0,
                    annotation_index=number,
                    annotation=annotation,
                )
        yield from self._close_all("incomplete" if cut else "completed")
        self.body.status = "incomplete" if cut else "completed"
        self.body.incomplete_details = IncompleteDetails(reason="max_output_tokens") if cut else None
        self.body.usage = ResponseUsage(
            input_tokens=end.prompt_tokens,
            output_tokens=end.completion_tokens,
            output_tokens_details=OutputDetails(reasoning_tokens=end.thought_tokens),
            total_tokens=end.prompt_tokens + end.completion_tokens,
        )
        self.body.completed_at = None if cut else int(time.time())
        self.body.sleuth = AnswerDetails.model_validate(answer_details(end, self._searches))
        yield self._lifecycle(self.body.status)

    def _annotations(self, text: str, end: Finished) -> Iterator[UrlCitation]:
        """A citation of each claim in a refiner's answer, else of the whole answer, for every passage cited there."""
        cited = {citation.passage.id: citation.passage for citation in end.citations}
        spans = tag_spans(text) if self._was_given else [(0, len(text), tuple(cited))]
        for start, stop, ids in spans:
            for passage in (cited[id_] for id_ in ids if id_ in cited):
                yield UrlCitation(
                    start_index=start, end_index=stop, url=url_of(passage), title=passage.title or passage.id
                )

    def _close_all(self, status: Status) -> Iterator[Json]:
        """Ends the items in progress. A search among them never ran: it is `incomplete` or, where the rest is complete,
        `failed`."""
        for item in self.body.output:
            if item.status != "in_progress":
                continue
            item.status = "failed" if isinstance(item, WebSearchCall) and status == "completed" else status
            if isinstance(item, Reasoning):
                yield self._in(item, "reasoning_text.done", content_index=0, text=item.content[0].text)
            if isinstance(item, OutputMessage):
                yield self._in(item, "output_text.done", content_index=0, text=item.content[0].text, logprobs=[])
            if not isinstance(item, WebSearchCall):
                yield self._in(item, "content_part.done", content_index=0, part=item.content[0])
            yield self._about(item, "output_item.done")

    def _open(self, kind: type[Item]) -> Item | None:
        """The item of this kind that is in progress."""
        items = [item for item in self.body.output if isinstance(item, kind) and item.status == "in_progress"]
        return items[0] if items else None

    def _add(self, item: OutputItem) -> Json:
        self.body.output.append(item)
        return self._about(item, "output_item.added")

    def _about(self, item: OutputItem, kind: str) -> Json:
        """An event with an item as it now is."""
        return self._event(kind, output_index=self.body.output.index(item), item=item)

    def _in(self, item: OutputItem, kind: str, **fields: Any) -> Json:
        """An event in an item's course."""
        return self._event(kind, item_id=item.id, output_index=self.body.output.index(item), **fields)

    def _lifecycle(self, kind: str) -> Json:
        return self._event(kind, response=self.body)

    def _event(self, kind: str, **fields: Any) -> Json:
        plain = {name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in fields.items()}
        self._count += 1
        return {"type": f"response.{kind}", "sequence_number": self._count - 1, **plain}


async def response_stream(events: AsyncGenerator[Event, None], response: ResponseWriter) -> AsyncGenerator[str, None]:
    """A response as server-sent events. An error is its last event, as the status has already been sent."""
    try:
        for event in response.begin():
            yield _server_sent(event)
        async with aclosing(events):
            async for heard in events:
                for event in response.receive(heard):
                    yield _server_sent(event)
    except Refused as refused:
        for event in response.fail(refused):
            yield _server_sent(event)


def url_of(passage: Passage) -> str:
    """The address of a passage: its id if that is one of the web, else `passage:ID`."""
    return passage.id if passage.id.startswith(("http://", "https://")) else f"passage:{quote(passage.id, safe='')}"


def _server_sent(event: Json) -> str:
    return f"event: {event['type']}\n{data_line(event)}"


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"
