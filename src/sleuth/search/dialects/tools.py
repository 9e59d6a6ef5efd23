"""Calls of any tools as JSON: `<tool_call>{"name": "calculator", "arguments": {"expression": "6 * 7"}}</tool_call>`.

With a chat template, tools and their results are messages, as in the dialect `chat`. Without one, calls and results are
part of the text: a turn ends at the closing tag of a call or an answer, and the result follows between tags.
"""

from dataclasses import replace

from sleuth.search.dialects.chat import CHAT

TOOLS_CHAT = replace(
    CHAT,
    name="tools",
    tool=None,
    hint='This call could not be read. Write {"name": "...", "arguments": {...}} in its tags.',
    passage_tokens=None,
    results_tokens=512,
)
TOOLS_TEXT = replace(
    TOOLS_CHAT,
    frame="text",
    stops=("</tool_call>", "</answer>"),
    action=r"(?s)<(?P<kind>tool_call|answer)>(?P<text>(?=\s*[^\s<])(?:(?!</?(?:tool_call|answer)>).)+)</(?P=kind)>\Z",
    before_results="\n",
    after_results="\n",
    hint="\nWrite one tool call or one answer.\n",
    cut_ends=False,
)
