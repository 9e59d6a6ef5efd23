"""Request bodies of emulated servers: refusal of what the servers do not know, and of what our engine cannot do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from starlette.requests import Request

from emulator.engine import EmulatedEngine
from sleuth.serve.refused import TOO_LONG, Refused
from sleuth.types import Sampling

FULL_SUPPORT = {
    "top_p": (1, None),
    "top_k": (-1, 0, None),
    "min_p": (0, None),
    "repetition_penalty": (1, None),
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
}
"""The values under which sampling has full support and the model's own probabilities."""


async def read_body(request: Request, known: Collection[str]) -> dict[str, Any]:
    """The JSON object of a request; {} for an empty body. Raises `Refused` for a field not in `known`."""
    body = await request.json() if await request.body() else {}
    require_known(body, known)
    return body


def require_known(table: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises `Refused` for a field not in `known`."""
    if unknown := sorted(table.keys() - set(known)):
        raise Refused(400, f"{', '.join(unknown)}: not supported", param=unknown[0])


def field(table: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """The field `name`, checked to be a `kind`; `default` if absent or null."""
    value = table.get(name)
    if value is None:
        return default
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise Refused(400, f"{name}: expected {kind.__name__}, not {str(value)[:60]!r}", param=name)
    return value


def list_of(table: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    """The field `name`, checked to be a list of `kind`; empty if absent or null."""
    values = field(table, name, list, [])
    if not all(type(value) is kind for value in values):
        raise Refused(400, f"{name}: expected a list of {kind.__name__}", param=name)
    return values


def sampling_of(table: Mapping[str, Any], engine: EmulatedEngine, *, tokens: str, seed: str, at: int) -> Sampling:
    """The sampling parameters. `tokens` and `seed` are the server's field names; without a seed, the key is `at`."""
    for name, neutral in FULL_SUPPORT.items():
        if table.get(name) not in neutral:
            raise Refused(400, f"{name} = {table[name]}: our engine draws from the whole vocabulary", param=name)
    if set(list_of(table, "stop_token_ids", int) or engine.eos_ids) != engine.eos_ids:
        line = f"stop_token_ids: our engine supports only {sorted(engine.eos_ids)}"
        raise Refused(400, line, param="stop_token_ids")
    stops = table.get("stop")
    value = field(table, seed, int, None)
    return Sampling(
        max_tokens=field(table, tokens, int, 16),
        temperature=field(table, "temperature", float, 1.0),
        stops=tuple(filter(None, [stops] if isinstance(stops, str) else list_of(table, "stop", str))),
        key=(0, at) if value is None else (1, value),
    )


def prompt_of(table: Mapping[str, Any], name: str, engine: EmulatedEngine) -> list[int]:
    """The token ids of the prompt. Raises `Refused` if they are invalid or fill the context."""
    prompt = table.get(name)
    if not isinstance(prompt, list) or not prompt or not all(type(token) is int for token in prompt):
        raise Refused(400, f"{name}: expected a list of token ids", param=name)
    if not 0 <= min(prompt) <= max(prompt) < len(engine.tokenizer):
        raise Refused(400, f"{name}: there are tokens 0 to {len(engine.tokenizer) - 1}", param=name)
    if len(prompt) >= engine.context:
        line = f"{name}: it has {len(prompt)} tokens and the context holds {engine.context}"
        raise Refused(400, line, param=name, code=TOO_LONG)
    return prompt


def text_of(engine: EmulatedEngine, text: str, stop: str) -> str:
    """A completion's text as these servers return it when asked to leave its end: with the end token."""
    return text + str(engine.tokenizer.eos_token) if stop == "eos" else text
