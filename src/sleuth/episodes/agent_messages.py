"""What an agent asks a model, in the messages of OpenAI's two APIs, and how the policy's turns answer it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sleuth.dialect import Dialect
from sleuth.episodes.calls import parsed
from sleuth.episodes.chat_template import ChatTemplate, Message, Role
from sleuth.episodes.frames import Framed, split_off_outer_spaces, text_after, text_of, tool_messages, turn_pieces
from sleuth.host.escapes import replace_surrogates
from sleuth.types import Piece, StopReason

MODEL = "policy"
"""The name of the model."""
MAX_MESSAGES = 1024
MAX_STOPS = 16
ROLES: Mapping[Any, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
TEXTS = ("text", "input_text", "output_text")
"""Types of the parts of a message that are text."""
REFUSED = {
    **{"n": (None, 1), "logprobs": (None, False), "top_logprobs": (None, 0), "logit_bias": (None, {})},
    **{"response_format": (None, {"type": "text"}), "tool_choice": (None, "auto")},
}
"""Fields that would change an answer and are not supported, with the values that leave it as it is."""


class BadRequestError(Exception):
    """A request that cannot be answered; the argument says why, and the agent gets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a tool: `Call(id="call_0_0", name="add", arguments='{"a": 1}')`."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message of the history that an agent sends. `answers` is the id of the call whose result it is."""

    role: Role
    text: str
    calls: tuple[Call, ...] = ()
    answers: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request: the whole history, the schemas of the tools, and limits of the next turn."""

    said: tuple[Said, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    stops: tuple[str, ...] = ()
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens that the policy read for a turn, and wrote in it, the token that ends it included."""

    prompt: int = 0
    completion: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn of the policy as an agent gets it: its text without thought and calls."""

    text: str
    thought: str
    calls: tuple[Call, ...]
    stop: StopReason
    usage: Usage = Usage()


# -- requests ----------------------------------------------------------------------------------------------------------


def chat_request(body: Mapping[str, Any], model: str = MODEL) -> Asked:
    """A body of chat completions that names this model. Raises BadRequestError."""
    _require_plain(body, model)
    stops = body.get("stop") or []
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, list) or not all(stops) or len(stops) > MAX_STOPS:
        raise BadRequestError(f"stop: should be a text, or a list of at most {MAX_STOPS}, none of them empty")
    return Asked(
        said=tuple(_said(message) for message in _entries(body, "messages")),
        tools=tuple(_tools(body.get("tools"))),
        stops=tuple(map(_text, stops)),
        max_tokens=_limit(body.get("max_completion_tokens") or body.get("max_tokens")),
    )


def response_request(body: Mapping[str, Any], model: str = MODEL) -> Asked:
    """A body of responses, likewise."""
    _require_plain(body, model)
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else _entries(body, "input")
    if body.get("instructions"):
        items = [{"role": "system", "content": body["instructions"]}, *items]
    if body.get("previous_response_id"):
        raise BadRequestError("previous_response_id: nothing is stored here; send the whole input")
    if ((body.get("text") or {}).get("format") or {}).get("type", "text") != "text":
        raise BadRequestError("text.format: only text is supported here; leave it out")
    said: list[Said] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            call = _call(item.get("call_id"), item)
            if said and said[-1].role == "assistant":
                said[-1] = Said(role="assistant", text=said[-1].text, calls=(*said[-1].calls, call))
            else:
                said.append(Said(role="assistant", text="", calls=(call,)))
        elif kind == "function_call_output":
            said.append(Said(role="tool", text=_content(item.get("output")), answers=_text(item.get("call_id"))))
        elif kind == "message":
            said.append(_said(item))
        elif kind != "reasoning":
            raise BadRequestError(f"input: an item of the type {kind!r} is not supported here")
    return Asked(
        said=tuple(said), tools=tuple(_tools(body.get("tools"))), max_tokens=_limit(body.get("max_output_tokens"))
    )


def _require_plain(body: Mapping[str, Any], model: str) -> None:
    if body.get("model") != model:
        raise BadRequestError(f"model = {body.get('model')!r}: the model here is named {model!r}")
    for name, values in REFUSED.items():
        if body.get(name) not in values:
            raise BadRequestError(f"{name} = {body[name]!r} is not supported here; leave it out")
    if not isinstance(body.get("stream_options"), dict | None):  # read after the policy has written
        raise BadRequestError('stream_options: should be an object such as {"include_usage": true}')


def _entries(body: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    entries = body.get(name)
    if not isinstance(entries, list) or not entries or not all(isinstance(one, dict) for one in entries):
        raise BadRequestError(f"{name}: should be a list of messages")
    if len(entries) > MAX_MESSAGES:
        raise BadRequestError(f"{name}: {len(entries):,} messages; at most {MAX_MESSAGES:,} are read")
    return entries


def _said(message: Mapping[str, Any]) -> Said:
    if message.get("role") not in ROLES:
        raise BadRequestError(f"role = {message.get('role')!r}: should be one of {', '.join(map(str, ROLES))}")
    calls = message.get("tool_calls") or ()
    return Said(
        role=ROLES[message["role"]],
        text=_content(message.get("content")),
        calls=tuple(_call(call.get("id"), call.get("function") or {}) for call in calls),
        answers=_text(message.get("tool_call_id")),
    )


def _call(name: object, call: Mapping[str, Any]) -> Call:
    return Call(id=_text(name), name=_text(call.get("name")), arguments=_text(call.get("arguments")))


def _content(content: object) -> str:
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) else {} for part in content]
        if odd := next((part for part in parts if part.get("type") not in TEXTS), None):
            raise BadRequestError(f"content: a part of the type {odd.get('type')!r} is not supported; send text")
        return "\n".join(_text(part.get("text")) for part in parts)
    return _text(content)


def _text(value: object) -> str:
    if value is not None and not isinstance(value, str):
        raise BadRequestError(f"{str(value)[:40]!r} should be text")
    return str(replace_surrogates(value or ""))


def _limit(value: object) -> int | None:
    if value is not None and (not isinstance(value, int) or value < 1):
        raise BadRequestError(f"a limit of {value!r} tokens: should be a number from 1")
    return value


def _tools(tools: object) -> Iterator[Mapping[str, Any]]:
    """The schemas in the form of chat completions, which chat templates take."""
    for tool in tools if isinstance(tools, list) else ():
        if tool.get("type") != "function":
            raise BadRequestError(f"tools: one of the type {tool.get('type')!r} is not supported; functions are")
        function = tool.get("function") or {name: tool.get(name) for name in ("name", "description", "parameters")}
        yield {"type": "function", "function": function}


# -- the history that the policy reads ---------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class History:
    """What the policy has read and written of one agent, whose every request brings the whole history again.

    A message that is a turn of the policy's is put back as it was sampled; any other is text of the environment. If the
    rendered history begins with what the policy has seen, only the rest is appended; otherwise, as where an agent
    summarises what came before or asks something else in between, it starts a new trajectory.
    """

    dialect: Dialect
    template: Callable[[tuple[Mapping[str, Any], ...]], ChatTemplate]
    text: str = ""
    end: str = ""
    stops: tuple[str, ...] = ()
    turns: list[tuple[Turn, str]] = field(default_factory=list)

    def framed(self, asked: Asked) -> Framed:
        """The pieces to append for a request."""
        template = self.template(asked.tools)
        self.end, self.stops = template.end, asked.stops
        history = template.pieces(list(self._messages(asked.said, template)))
        seen, self.text = self.text, text_of(history)
        if seen and self.text.startswith(seen):
            return Framed(pieces=tuple(piece for piece in text_after(len(seen), history) if piece.text))
        return Framed(pieces=tuple(piece for piece in history if piece.text), restarts=bool(seen))

    def written(self, text: str, stop: StopReason) -> Turn:
        """What the agent gets for a turn of the policy."""
        self.text += text + (self.end if stop == "eos" else "")
        before_stops = [text, *(text.partition(one)[0] for one in self.stops)]  # an API leaves the stop text out
        turn = self._turn(min(before_stops, key=len), stop)
        self.turns.append((turn, text))
        return turn

    def _turn(self, text: str, stop: StopReason) -> Turn:
        rest, thought, tags = text, "", self.dialect.think
        if (found := re.match(rf"(?s)\s*{re.escape(tags.open)}(.*?){re.escape(tags.close)}", text)) is not None:
            rest, thought = text[found.end() :], found[1].strip()
        calls = list[Call]()
        for one in re.finditer(rf"(?s){_escaped(self.dialect, '(.*?)')}", rest):
            call = parsed(one[1].strip())
            if isinstance(call, dict) and isinstance(call.get("name"), str):
                arguments = call.get("arguments", {})
                arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
                calls.append(Call(id=f"call_{len(self.turns)}_{len(calls)}", name=call["name"], arguments=arguments))
        if calls:
            rest = re.sub(rf"(?s){_escaped(self.dialect, '.*?')}", "", rest)
        return Turn(text=rest.strip(), thought=thought, calls=tuple(calls), stop=stop)

    def _messages(self, said: Sequence[Said], template: ChatTemplate) -> Iterator[Message]:
        left = [*self.turns]
        for are_results, messages in groupby(said, key=lambda one: one.role == "tool"):
            if are_results:
                yield from tool_messages([[Piece(text=one.text, quoted=True)] for one in messages], template)
                continue
            for one in messages:
                if one.role == "assistant":
                    yield Message(role="assistant", content=turn_pieces(self._sampled(one, left), self.dialect))
                else:
                    piece = Piece(text=one.text, quoted=one.role == "user")
                    yield Message(role=one.role, content=tuple(split_off_outer_spaces([piece])))

    def _sampled(self, one: Said, left: list[tuple[Turn, str]]) -> str:
        """The first turn of those `left` that this message is, as it was sampled; else the message as a turn would be
        written. A turn is put back once."""
        calls = _read_calls(one.calls)
        for at, (turn, text) in enumerate(left):
            if calls == _read_calls(turn.calls) and (calls or one.text == turn.text):
                del left[: at + 1]
                return text
        return "\n".join([*([one.text] if one.text else []), *map(self._call_text, one.calls)])

    def _call_text(self, call: Call) -> str:
        arguments = parsed(call.arguments)
        written = {"name": call.name, "arguments": call.arguments if arguments is None else arguments}
        return self.dialect.search.around(f"\n{json.dumps(written, ensure_ascii=False)}\n")


def _read_calls(calls: Sequence[Call]) -> list[Any]:
    """What is the same however arguments are written."""
    return [(call.id, call.name, parsed(call.arguments) or call.arguments) for call in calls]


def _escaped(dialect: Dialect, inner: str) -> str:
    return f"{re.escape(dialect.search.open)}{inner}{re.escape(dialect.search.close)}"
