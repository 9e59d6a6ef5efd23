"""How a chat template writes a tool call, and which parsers read it back.

The rules are those of published parsers, in our own words: of vLLM (docs.vllm.ai, `--tool-call-parser`), SGLang
(docs.sglang.ai, `--tool-call-parser`) and verl (its `HermesToolParser`), as of November 2026. Each reads whole texts:
what they do with a stream, and their repairs of broken JSON, are left out.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sleuth.dialects import DIALECTS, Dialect, Tool
from sleuth.dialects.tools import TOOLS_CHAT
from sleuth.envs.calls import parsed, queries_of

Call = tuple[str, Any]
"""A tool's name, and its arguments."""


def _hermes(text: str) -> Iterator[Call]:
    for found in re.findall(r"(?s)<tool_call>(.*?)</tool_call>", text):
        yield from _json_calls(found, "arguments")


def _qwen25(text: str) -> Iterator[Call]:
    for found in re.findall(r"(?s)<tool_call>\n(.*?)\n</tool_call>", text):
        yield from _json_calls(found, "arguments")


def _qwen3_coder(text: str) -> Iterator[Call]:
    for name, body in re.findall(r"(?s)<function=([^>]+)>(.*?)</function>", text):
        values = re.findall(r"(?s)<parameter=([^>]+)>(.*?)</parameter>", body)
        yield name, {key: value.removeprefix("\n").removesuffix("\n") for key, value in values}


def _llama3_json(text: str) -> Iterator[Call]:
    text = text.strip().removeprefix("<|python_tag|>")
    if text.startswith("{"):
        yield from _json_calls(text, "parameters", "arguments")


def _mistral(text: str) -> Iterator[Call]:
    _, marked, calls = text.partition("[TOOL_CALLS]")
    if marked and (named := re.match(r"(?s)\s*([\w-]+)\s*(?:\[ARGS\])?\s*(\{.*)", calls)):
        yield named[1], parsed(named[2])
    elif marked:
        yield from _json_calls(calls, "arguments")


def _pythonic(text: str) -> Iterator[Call]:
    if re.fullmatch(r"(?s)\s*\[.*\]\s*", text):
        yield from _python_calls(text.strip())


def _olmo3(text: str) -> Iterator[Call]:
    for found in re.findall(r"(?s)<function_calls>(.*?)</function_calls>", text):
        yield from _python_calls(f"[{', '.join(filter(None, found.strip().splitlines()))}]")


def _deepseek_v3(text: str) -> Iterator[Call]:
    form = "(?s)<{0}call\u2581begin\uff5c>.*?<{0}sep\uff5c>([^\\n]*)\n```json\n(.*?)\n```<{0}call\u2581end\uff5c>"
    for name, arguments in re.findall(form.format("\uff5ctool\u2581"), text):
        yield name, parsed(arguments)


def _granite(text: str) -> Iterator[Call]:
    for mark in ("<|tool_call|>", "<tool_call>"):
        if text.strip().startswith(mark):
            yield from _json_calls(text.strip().removeprefix(mark), "arguments")


def _phi4_mini_json(text: str) -> Iterator[Call]:
    if found := re.search(r"(?s)functools(\[.*\])", text):
        yield from _json_calls(found[1], "arguments", "parameters")


def _openai(text: str) -> Iterator[Call]:
    for name, arguments in re.findall(r"(?s)to=functions\.([\w-]+)[^<]*(?:<\|channel\|>[^<]*)?<\|message\|>(.*)", text):
        yield name, parsed(arguments)


PARSERS: dict[str, Callable[[str], Iterator[Call]]] = {
    "hermes (vLLM, verl)": _hermes,
    "qwen25 (SGLang)": _qwen25,
    "qwen3_coder (vLLM, SGLang)": _qwen3_coder,
    "llama3_json (vLLM)": _llama3_json,
    "mistral (vLLM, SGLang)": _mistral,
    "pythonic (vLLM, SGLang)": _pythonic,
    "olmo3 (vLLM)": _olmo3,
    "deepseek_v3 (vLLM), deepseekv3 (SGLang)": _deepseek_v3,
    "granite (vLLM)": _granite,
    "phi4_mini_json (vLLM)": _phi4_mini_json,
    "openai (vLLM), gpt-oss (SGLang)": _openai,
}
"""By the names that servers give them."""


def readers_of(text: str, arguments: Mapping[str, Any]) -> list[str]:
    """The parsers that read exactly one call of `search` with these arguments in what the policy wrote."""
    return [name for name, parser in PARSERS.items() if list(parser(text)) == [("search", dict(arguments))]]


def dialects_of(tool: Tool) -> list[Dialect]:
    """Sleuth's dialects of native calls that read calls of this tool. `tools` reads those of any tool, one argument
    each as `chat` has it."""
    own = [dialect for dialect in DIALECTS.values() if dialect.tool == tool]
    return [*own, TOOLS_CHAT] if tool == DIALECTS["chat"].tool else own


def reads(dialect: Dialect, tool: Tool, text: str, queries: tuple[str, ...]) -> bool:
    """Whether a dialect finds a call of the tool with these queries in what the policy wrote."""
    match = dialect.find_action(text)
    return match is not None and match["kind"] != "answer" and queries_of(match["text"].strip(), tool) == queries


def _json_calls(text: str, *keys: str) -> Iterator[Call]:
    """The calls in JSON: an object or a list of them, with the arguments under one of `keys`."""
    value = parsed(text.strip())
    for call in value if isinstance(value, list) else [value]:
        if isinstance(call, dict) and isinstance(call.get("name"), str):
            yield call["name"], next((call[key] for key in keys if key in call), None)


def _python_calls(text: str) -> Iterator[Call]:
    """The calls in a list of Python, with keyword arguments that are literals."""
    try:
        tree = ast.parse(text, mode="eval").body
        for call in tree.elts if isinstance(tree, ast.List) else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                yield call.func.id, {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # it is a policy's text, or a template's
        return


def as_hermes(arguments: Mapping[str, Any]) -> str:
    """A call of `search` as most models of 0.5 to 4 billion parameters were taught to write it."""
    call = json.dumps({"name": "search", "arguments": dict(arguments)}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"
