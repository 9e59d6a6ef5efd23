"""What a chat template does with an invented conversation: messages, calls, earlier turns, thoughts, ends of turns.

A template that does more than append makes the next prompt differ from what the policy saw and wrote, so that a trainer
which lays the turns end to end trains on texts that were never seen.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import product
from typing import Any

from transformers import PreTrainedTokenizerFast

from sleuth import family
from sleuth.dialect import DIALECTS
from sleuth.episodes.calls import queries_of
from sleuth.episodes.chat_template import ChatTemplate
from sleuth.episodes.render_process import shared_process
from sleuth.plan.model_files import Finding, ModelFiles, listed, shown
from sleuth.render import encode
from sleuth.types import SleuthError

RENDER_SECONDS = 5.0
ALL_SECONDS = 20.0
"""How long one rendering may take, and all of them together. Published templates take milliseconds."""

Message = Mapping[str, Any]
OPEN, CLOSE = "<think>", "</think>"
QUESTION = {"role": "user", "content": "Where was Ada Voss born?"}
SYSTEM = {"role": "system", "content": "Answer from the encyclopaedia."}
ANSWER = {"role": "assistant", "content": "I look it up."}
MARKED = re.compile("<[|\uff5c][^<>]{1,40}[|\uff5c]>")
"""What looks like a control token, whether it is one or not."""
CHAT = DIALECTS["chat"]
TOOLS = [CHAT.tool.schema] if CHAT.tool else []
NATIVE = listed(sorted(one.name for one in (*DIALECTS.values(), *family.other_dialects()) if one.frame != "text"))
HARD = 'Is "Tarn" <in> Osmark?\nÉ'
"""A query with what templates and parsers get wrong: quotes, brackets, a line break, a letter beyond ASCII."""
FLAGS: dict[str, tuple[Any, ...]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "reasoning_effort": ("low", "high"),
}
"""Variables of published templates that change how a model thinks."""
RAW = 'fix the template, or use prompt_role = "raw"'
TEXT_DIALECTS = 'use a dialect of plain text, such as dialect = "sleuth", which needs no tools from the template'


class TemplateRefusedError(Exception):
    """The template raised an error for these messages; the argument is its message, on one line."""


class TemplateLimitError(Exception):
    """The template reached a limit; the argument says which."""


class BoundedTemplate:
    """The chat template `source` with the tokenizer's special tokens, rendered within a time by the process that
    renders for all, as `apply_chat_template(tokenize=False)` of transformers does."""

    def __init__(self, source: str, tokenizer: PreTrainedTokenizerFast) -> None:
        self.source = source
        special = tokenizer.special_tokens_map.items()
        self._variables = {name: token for name, token in special if isinstance(token, str)}
        self._seconds = ALL_SECONDS

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] = (),
        prompt: bool = True,
        flags: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of the messages; with `prompt`, up to where the next answer begins. `flags` are further variables.
        Raises TemplateRefusedError or TemplateLimitError."""
        if self._seconds <= 0:
            raise TemplateLimitError(f"its renderings together take more than {ALL_SECONDS:.0f} s")
        request = {
            "source": self.source,
            "messages": list(messages),
            "tools": list(tools) or None,
            "prompt": prompt,
            "variables": self._variables | dict(flags or {}),
        }
        process, began = shared_process(), time.monotonic()
        rendered = process.rendered(request, min(RENDER_SECONDS, self._seconds))
        self._seconds -= time.monotonic() - began
        if "limit" in rendered:
            raise TemplateLimitError(rendered["limit"])
        if "error" in rendered:
            raise TemplateRefusedError(rendered["error"])
        return rendered["text"]


def template_findings(files: ModelFiles, template: BoundedTemplate) -> Iterator[Finding]:
    """All that is found of a template, or why it cannot be examined."""
    try:
        yield from _findings(files, template)
    except TemplateLimitError as limit:
        fix = "do not use this template: it can stop a trainer or a server"
        yield Finding("template", "problem", f"rendering was stopped: {limit}", fix)
    except TemplateRefusedError as error:
        yield Finding("template", "problem", f"it cannot render a conversation of several turns: {error}", RAW)


def _findings(files: ModelFiles, template: BoundedTemplate) -> Iterator[Finding]:
    try:
        prompt = template.render([QUESTION])
    except TemplateRefusedError as error:
        yield Finding("template", "problem", f"it cannot render a user's question: {error}", RAW)
        return
    if QUESTION["content"] not in prompt:
        yield Finding("template", "problem", "it drops the user's question, if that is no list of parts", RAW)
        return
    answered = template.render([QUESTION, ANSWER], prompt=False)
    if ANSWER["content"] not in answered:
        yield Finding("template", "problem", "it drops what the assistant said", RAW)
        return
    yield _system_finding(template)
    if "strftime_now" in template.source and f"{date.today():%Y}" in prompt:
        line = "it writes today's date into the prompt, so that the same episode is other tokens tomorrow"
        fix = "give the date by template_flags if it reads one, such as date_string, or fix it in a copy of it"
        yield Finding("template", "warning", line, fix)
    problem = _tools_problem(files.tokenizer)
    yield _call_finding(template, problem)
    if not problem:
        yield _history_finding(template)
    rest = answered.rpartition(ANSWER["content"])[2].lstrip()
    marked = MARKED.match(rest)
    controls = (name for name in files.controls if rest.startswith(name))
    yield _end_finding(files, next(controls, marked[0] if marked else ""))
    yield _thinking_finding(template, prompt)


def _system_finding(template: BoundedTemplate) -> Finding:
    fix = 'put its text into the user\'s: prompt_role = "user"'
    try:
        if SYSTEM["content"] in template.render([SYSTEM, QUESTION]):
            return Finding("template", "ok", "it renders system, user and assistant")
        return Finding("template", "warning", "it drops a system message", fix)
    except TemplateRefusedError as error:
        return Finding("template", "warning", f"it refuses a system message: {error}", fix)


def _end_finding(files: ModelFiles, end: str) -> Finding:
    """Whether sampling stops at `end`, the control token with which the template ends a message; empty if none does."""
    check, ends = "stop tokens", f"the template ends a turn with {end}"
    if not end:
        line = "the template ends a turn with no control token: a policy cannot end its turn there"
        fix = 'use prompt_role = "raw" and a dialect of plain text, whose tags end turns'
        return Finding(check, "warning", line, fix)
    tokens = encode(files.tokenizer, end)
    if len(tokens) != 1:
        fix = "add it to the tokenizer as a special token, and train its embedding"
        return Finding(check, "problem", f"{ends}, which the tokenizer splits into {len(tokens)} tokens", fix)
    stops = listed(sorted(map(files.token, files.eos_ids))) or "none"
    if tokens[0] not in files.eos_ids:
        fix = f"add {tokens[0]} to eos_token_id in generation_config.json"
        return Finding(check, "problem", f"{ends}, and sampling stops at {stops}: turns run on to their limit", fix)
    if (own := str(files.tokenizer.eos_token)) != end:
        fix = f"set eos_token to {end} before a supervised stage"
        return Finding(check, "warning", f"{ends}, but examples end with eos_token, {own}", fix)
    return Finding(check, "ok", f"{ends}; stops: {stops}")


# -- calls -------------------------------------------------------------------------------------------------------------


def _tools_problem(tokenizer: PreTrainedTokenizerFast) -> str:
    """Why training refuses our dialects of native calls with the tokenizer's template; empty if it does not."""
    try:
        ChatTemplate(tokenizer, tools=TOOLS)
        return ""
    except SleuthError as error:
        return str(error).partition(": use a ")[0]


def _call_finding(template: BoundedTemplate, problem: str) -> Finding:
    """Whether our dialects of native calls can be used, and read the calls that the template teaches."""
    check = "tool calls"
    if problem:
        return Finding(check, "warning", f"{NATIVE} cannot be used: {problem}", TEXT_DIALECTS)
    if not (text := _call_text(template)):
        line = f"{NATIVE} can be used; the template writes no calls, so that the policy learns them from prompts"
        return Finding(check, "ok", line)
    match = CHAT.find_action(text)
    if match and match["kind"] != "answer" and queries_of(match["text"].strip(), CHAT.tool) == (HARD,):
        return Finding(check, "ok", f"written as {shown(match[0])}, which {NATIVE} read")
    call = shown(text.rpartition(CLOSE)[2].strip())
    line = f"{NATIVE} cannot read the calls that the template teaches: {call}"
    return Finding(check, "warning", line, TEXT_DIALECTS)


def _call_text(template: BoundedTemplate) -> str:
    """A call of `search` as the template writes it, with arguments as an object or as JSON text; empty if it cannot."""
    prompt = template.render([QUESTION], tools=TOOLS)
    for arguments, content in product(({"query": HARD}, json.dumps({"query": HARD})), ("", None)):
        function = {"name": "search", "arguments": arguments}
        call = {"id": "call00001", "type": "function", "function": function}  # Mistral wants nine characters
        message = {"role": "assistant", "content": content, "tool_calls": [call]}
        try:
            text = template.render([QUESTION, message], tools=TOOLS, prompt=False)
        except TemplateRefusedError:
            continue
        written = text[_shared_length(prompt, text) :]
        if "Osmark" in written:
            return written
    return ""


# -- earlier turns -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """What the policy says: a `thought` and a `text`; then the `reply`, which findings call `name`."""

    thought: str
    text: str
    reply: Message
    name: str

    def written_after(self, prompt: str) -> str:
        """What the policy writes after a prompt, which may have opened its thought, or closed an empty one."""
        if prompt.rstrip().endswith(CLOSE):
            return self.text
        opening = "" if prompt.rstrip().endswith(OPEN) else f"{OPEN}\n"
        return f"{opening}{self.thought}\n{CLOSE}\n\n{self.text}"


TURNS = (
    Turn(
        "Her birthplace comes first.",
        '<tool_call>\n{"name": "search", "arguments": {"query": "Ada Voss birthplace"}}\n</tool_call>',
        {"role": "tool", "content": "Ada Voss was born in Tarn."},
        "the tool's answer",
    ),
    Turn(
        "Both facts are known.",
        "She was born in Tarn, which is in Osmark.",
        {"role": "user", "content": "And who rules Osmark?"},
        "the second question",
    ),
)


def _history_finding(template: BoundedTemplate) -> Finding:
    """Whether the template only appends to turns that are given back as the policy wrote them."""
    try:
        change = _first_change(template)
    except TemplateRefusedError as error:
        line = f"the template refuses turns as the policy wrote them: {error}"
        return Finding("history", "warning", line, TEXT_DIALECTS)
    if not change:
        return Finding("history", "ok", f"append-only over {len(TURNS)} turns")
    fix = "begin a new trajectory there (Sleuth's dialect chat does), or keep the sampled tokens (verl does)"
    return Finding("history", "warning", change, fix)


def _first_change(template: BoundedTemplate) -> str:
    """What the template changes of earlier text, where it does so first; empty if it only appends."""
    messages: list[Message] = [QUESTION]
    for number, turn in enumerate(TURNS, 1):
        prompt = template.render(messages, tools=TOOLS)
        wrote = turn.written_after(prompt)
        messages += [{"role": "assistant", "content": wrote}, turn.reply]
        seen, after = prompt + wrote, template.render(messages, tools=TOOLS)
        if after.startswith(seen):
            continue
        thoughts = [(str(at), earlier.thought) for at, earlier in enumerate(TURNS[:number], 1)]
        if lost := [at for at, thought in thoughts if thought in seen and thought not in after]:
            several = "s" if len(lost) > 1 else ""
            return f"at {turn.name} the template drops the thought{several} of turn{several} {listed(lost)}"
        at = _shared_length(seen, after)
        now, was = shown(after[at : at + 40]), shown(seen[at : at + 40])
        return f"at {turn.name} the template changes earlier text: {now} stands where {was} was"
    return ""


def _shared_length(one: str, other: str) -> int:
    """How many characters two texts begin with alike. Where they part within a tag, it counts to none of it."""
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return len(re.sub(r"[<\[][^<>\[\]\s]*\Z", "", one[:at]))


# -- thoughts ----------------------------------------------------------------------------------------------------------


def _thinking_finding(template: BoundedTemplate, prompt: str) -> Finding:
    """Whether prompts open a thought, and what each flag for thoughts changes of them."""
    opens = prompt.rstrip().endswith(OPEN)
    lines = ["every prompt opens a thought, so that what the policy writes begins inside it"] * opens
    lines += _flag_effects(template, prompt)
    line = "; ".join(lines) or "prompts open no thought, and no flag for thoughts changes them"
    return Finding("thinking", "ok", line)


def _flag_effects(template: BoundedTemplate, usual: str) -> Iterator[str]:
    for flag, values in FLAGS.items():
        for value in values if re.search(rf"\b{flag}\b", template.source) else ():
            try:
                prompt = template.render([QUESTION], flags={flag: value})
            except TemplateRefusedError as error:
                yield f"{flag} = {json.dumps(value)} is refused: {error}"
                continue
            at = _shared_length(usual, prompt)
            if prompt != usual:
                instead = f" instead of {shown(usual[at:])}" if usual[at:] else ""
                yield f"{flag} = {json.dumps(value)}: the prompt ends with {shown(prompt[at:])}{instead}"
