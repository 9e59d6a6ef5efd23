"""Whether our dialects of native calls can be used with a chat template, and read the calls that it teaches."""

from __future__ import annotations

import json

from transformers import PreTrainedTokenizerFast

from sleuth.dialect import DIALECTS
from sleuth.episodes.calls import queries_of
from sleuth.episodes.chat_template import ChatTemplate
from sleuth.plan.model_bounded_template import BoundedTemplate, TemplateRefusedError
from sleuth.plan.model_finding import TEXT_DIALECTS, Finding, listed, shown
from sleuth.plan.model_history import CLOSE, QUESTION, shared_length
from sleuth.search.dialects.tools import TOOLS_CHAT
from sleuth.types import SleuthError

CHAT = DIALECTS["chat"]
TOOLS = [CHAT.tool.schema] if CHAT.tool else []
NATIVE = listed(sorted(one.name for one in (*DIALECTS.values(), TOOLS_CHAT) if one.frame != "text"))
HARD = 'Is "Tarn" <in> Osmark?\nÉ'
"""A query with what templates and parsers get wrong: quotes, brackets, a line break, a letter beyond ASCII."""


def tools_problem(tokenizer: PreTrainedTokenizerFast) -> str:
    """Why training refuses our dialects of native calls with the tokenizer's template; empty if it does not."""
    try:
        ChatTemplate(tokenizer, tools=TOOLS)
        return ""
    except SleuthError as error:
        return str(error).partition(": use a ")[0]


def call_finding(template: BoundedTemplate, problem: str) -> Finding:
    """One line on calls. `problem` is that of `tools_problem`."""
    check = "tool calls"
    if problem:
        line = f"{NATIVE} cannot be used: {problem}"
        return Finding(check=check, level="warning", line=line, fix=TEXT_DIALECTS)
    text = _call_text(template)
    if not text:
        line = f"{NATIVE} can be used; the template writes no calls, so that the policy learns them from prompts"
        return Finding(check=check, level="ok", line=line)
    match = CHAT.find_action(text)
    if match and match["kind"] != "answer" and queries_of(match["text"].strip(), CHAT.tool) == (HARD,):
        return Finding(check=check, level="ok", line=f"written as {shown(match[0])}, which {NATIVE} read")
    return Finding(
        check=check,
        level="warning",
        line=f"{NATIVE} cannot read the calls that the template teaches: {shown(text.rpartition(CLOSE)[2].strip())}",
        fix=TEXT_DIALECTS,
    )


def _call_text(template: BoundedTemplate) -> str:
    """A call of `search` as the template writes it, with arguments as an object or as JSON text; empty if it cannot."""
    prompt = template.render([QUESTION], tools=TOOLS)
    for arguments in ({"query": HARD}, json.dumps({"query": HARD})):
        for content in ("", None):
            function = {"name": "search", "arguments": arguments}
            call = {"id": "call00001", "type": "function", "function": function}  # Mistral wants nine characters
            message = {"role": "assistant", "content": content, "tool_calls": [call]}
            try:
                text = template.render([QUESTION, message], tools=TOOLS, prompt=False)
            except TemplateRefusedError:
                continue
            wrote = text[shared_length(prompt, text) :]
            if "Osmark" in wrote:
                return wrote
    return ""
