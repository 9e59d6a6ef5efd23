"""Requests of servers that speak as others: what a field may be, and what our engine cannot honour."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from starlette.requests import Request

from sleuth.serve.emulator.engine import EmulatedEngine
from sleuth.serve.http.refused import TOO_LONG, Refused
from sleuth.types import Sampling

WHOLE_SUPPORT = {
    "top_p": (1, None),
    "top_k": (-1, 0, None),
    "min_p": (0, None),
    "repetition_penalty": (1, None),
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
}
"""The values under which the whole vocabulary can be drawn as the model has it."""


async def body_of(request: Request, known: Collection[str]) -> dict[str, Any]:
    """The JSON object of a request; an empty body is an empty one. Raises `Refused` for a field that is not `known`: it
    would have no effect here."""
    content = await request.body()
    try:
        body = json.loads(content) if content else {}
    except ValueError as error:
        raise Refused(400, f"body: not JSON ({error})") from None
    if not isinstance(body, dict):
        raise Refused(400, "body: expected a JSON object")
    require_known(body, known)
    return body


def require_known(table: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises `Refused` for a field that is not `known`."""
    if unknown := sorted(table.keys() - set(known)):
        raise Refused(400, f"{', '.join(unknown)}: not spoken here", param=unknown[0])


def field(table: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """A field of that kind; an absent or empty one is the default."""
    value = table.get(name)
    if value is None:
        return default
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise Refused(400, f"{name}: expected {kind.__name__}, not {str(value)[:60]!r}", param=name)
    return value


def sampling_of(table: Mapping[str, Any], engine: EmulatedEngine, *, tokens: str, seed: str, at: int) -> Sampling:
    """How to draw. `tokens` and `seed` are what the server calls those fields; a request without a seed, the `at`-th,
    has draws of its own."""
    for name, neutral in WHOLE_SUPPORT.items():
        if table.get(name) not in neutral:
            raise Refused(400, f"{name} = {table[name]}: our engine draws from the whole vocabulary", param=name)
    if sorted(table.get("stop_token_ids") or engine.eos_ids) != sorted(engine.eos_ids):
        line = f"stop_token_ids: our engine ends a text with {sorted(engine.eos_ids)} alone"
        raise Refused(400, line, param="stop_token_ids")
    stops = table.get("stop") or ()
    drawn = field(table, seed, int, None)
    return Sampling(
        max_tokens=field(table, tokens, int, 16),
        temperature=field(table, "temperature", float, 1.0),
        stops=(stops,) if isinstance(stops, str) else tuple(map(str, stops)),
        key=(0, at) if drawn is None else (1, drawn),
    )


def prompt_of(table: Mapping[str, Any], name: str, engine: EmulatedEngine) -> list[int]:
    """The token ids to go on with. Raises `Refused` where they are none, or leave no room to write."""
    prompt = table.get(name)
    if not isinstance(prompt, list) or not prompt or not all(type(token) is int for token in prompt):
        raise Refused(400, f"{name}: expected a list of token ids", param=name)
    if not 0 <= min(prompt) <= max(prompt) < len(engine.tokenizer):
        raise Refused(400, f"{name}: there are tokens 0 to {len(engine.tokenizer) - 1}", param=name)
    if len(prompt) >= engine.context:
        line = f"{name}: it has {len(prompt)} tokens and the context holds {engine.context}"
        raise Refused(400, line, param=name, code=TOO_LONG)
    return prompt


def text_of(engine: EmulatedEngine, text: str, stop: str, stops: Collection[str], *, kept: bool) -> str:
    """The text of a completion as these servers tell it: with the end token's text and the stop string, or without
    both."""
    if kept:
        return text + str(engine.tokenizer.eos_token) if stop == "eos" else text
    if stop != "stop":
        return text
    return min((text.removesuffix(string) for string in stops), key=len)
