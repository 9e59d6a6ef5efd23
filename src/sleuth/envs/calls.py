"""What a search asks for: its text, or the arguments of a native tool call."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sleuth.dialects import Tool


def queries_of(text: str, tool: Tool | None) -> tuple[str, ...]:
    """The queries of a search action, at least one; none where `text` is no call of the `tool`.

    A call is `{"name": ..., "arguments": {...}}`, or has its arguments as JSON text, as some models write them.
    """
    if tool is None:
        return (text,)
    call = _parsed(text)
    if not isinstance(call, dict) or call.get("name") != tool.name:
        return ()
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    value = arguments.get(tool.argument) if isinstance(arguments, dict) else None
    queries = value if tool.several else [value]
    if not isinstance(queries, list):
        return ()
    words = tuple(query.strip() for query in queries if isinstance(query, str))
    return words if len(words) == len(queries) and all(words) else ()


def call_of(queries: Sequence[str], tool: Tool | None) -> str:
    """The text of a search action that asks `queries`: what `queries_of` reads them off again. Without a tool, and for
    a tool that takes one, that is one query: raises ValueError for more."""
    if tool is not None and tool.several:
        return json.dumps({"name": tool.name, "arguments": {tool.argument: [*queries]}}, ensure_ascii=False)
    [query] = queries
    if tool is None:
        return query
    return json.dumps({"name": tool.name, "arguments": {tool.argument: query}}, ensure_ascii=False)


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a policy may write ten thousand opening brackets
        return None
