"""A conversation as HTTP, in OpenAI's API for chat: one JSON body, or a stream of events.

Searches and citations, for which the API has no fields, are in the field `sleuth`, which other clients ignore.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from functools import partial

from sleuth.episodes.agent_answers import DONE, Json, chat_chunk, chat_usage, data_line
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
    """`sentence` is where in the passage's text the answer, or the quotation, is, and `text` what stands there; null if
    it is not there. Results may have several sentences of one passage, each as a result, so `text` says which."""
    sentence = None if citation.sentence is None else dict(zip(("begin", "stop"), citation.sentence, strict=True))
    return {"id": citation.passage.id, "title": citation.passage.title, "sentence": sentence, "text": citation.text}
