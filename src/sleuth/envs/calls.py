"""The queries of a search action: its text, or the arguments of a native tool call."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sleuth.dialects import Tool
from sleuth.judges.forms import replace_surrogates

ERROR = "error: "
"""What the policy reads before the reason why a call has no result."""


def queries_of(text: str, tool: Tool | None) -> tuple[str, ...]:
    """The queries of a search action; empty if `text` is not a valid call of the `tool`.

    A call is `{"name": ..., "arguments": {...}}`; the arguments may be JSON text, as some models write them.
    """
    if tool is None:
        return (text,)
    call = parsed(text)
    if not isinstance(call, dict) or call.get("name") != tool.name:
        return ()
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        arguments = parsed(arguments)
    value = arguments.get(tool.argument) if isinstance(arguments, dict) else None
    queries = value if tool.several else [value]
    if not isinstance(queries, list):
        return ()
    words = tuple(replace_surrogates(query.strip()) for query in queries if isinstance(query, str))
    return words if len(words) == len(queries) and all(words) else ()


def call_of(queries: Sequence[str], tool: Tool | None) -> str:
    """The text of a search action for `queries`, the inverse of `queries_of`. Raises ValueError for several queries
    unless the tool takes several."""
    if tool is not None and tool.several:
        return json.dumps({"name": tool.name, "arguments": {tool.argument: [*queries]}}, ensure_ascii=False)
    [query] = queries
    if tool is None:
        return query
    return json.dumps({"name": tool.name, "arguments": {tool.argument: query}}, ensure_ascii=False)


def parsed(text: str) -> object:
    """The JSON value of a text; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a policy may write ten thousand opening brackets
        return None
