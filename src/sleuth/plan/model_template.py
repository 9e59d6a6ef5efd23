"""What a chat template does with an invented conversation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date

from sleuth.plan.model_bounded_template import BoundedTemplate, TemplateRefusedError
from sleuth.plan.model_files import ModelFiles
from sleuth.plan.model_finding import Finding
from sleuth.plan.model_history import QUESTION, history_finding
from sleuth.plan.model_thinking import thinking_finding
from sleuth.plan.model_tokens import end_finding
from sleuth.plan.model_tool_calls import TOOLS, call_finding, tools_problem

SYSTEM = {"role": "system", "content": "Answer from the encyclopaedia."}
ANSWER = {"role": "assistant", "content": "I look it up."}
MARKED = re.compile("<[|\uff5c][^<>]{1,40}[|\uff5c]>")
"""What looks like a control token, whether it is one or not."""


def template_findings(files: ModelFiles, template: BoundedTemplate) -> Iterator[Finding]:
    """All that is found of a template. Raises TemplateLimitError, and TemplateRefusedError if it cannot render several
    turns."""
    try:
        prompt = template.render([QUESTION])
        refused = "" if QUESTION["content"] in prompt else "it drops the user's question, if that is no list of parts"
    except TemplateRefusedError as error:
        prompt, refused = "", f"it cannot render a user's question: {error}"
    answered = "" if refused else template.render([QUESTION, ANSWER], prompt=False)
    if not refused and ANSWER["content"] not in answered:
        refused = "it drops what the assistant said"
    if refused:
        fix = 'fix the template, or use prompt_role = "raw"'
        yield Finding(check="template", level="problem", line=refused, fix=fix)
        return
    yield from _prompt_findings(template, prompt)
    problem = tools_problem(files.tokenizer)
    yield call_finding(template, problem)
    if not problem:
        yield history_finding(template, TOOLS)
    rest = answered.rpartition(ANSWER["content"])[2].lstrip()
    marked = MARKED.match(rest)
    end = next((name for name in files.controls if rest.startswith(name)), marked[0] if marked else "")
    yield end_finding(files, end)
    yield thinking_finding(template)


def _prompt_findings(template: BoundedTemplate, prompt: str) -> Iterator[Finding]:
    system = "it renders system, user and assistant"
    try:
        if SYSTEM["content"] not in template.render([SYSTEM, QUESTION]):
            system = "it drops a system message"
    except TemplateRefusedError as error:
        system = f"it refuses a system message: {error}"
    bad = not system.startswith("it renders")
    fix = 'put its text into the user\'s: prompt_role = "user"' if bad else ""
    yield Finding(check="template", level="warning" if bad else "ok", line=system, fix=fix)
    if "strftime_now" in template.source and f"{date.today():%Y}" in prompt:
        yield Finding(
            check="template",
            level="warning",
            line="it writes today's date into the prompt, so that the same episode is other tokens tomorrow",
            fix="give the date by template_flags if it reads one, such as date_string, or fix it in a copy of it",
        )
