"""What a chat template does with an invented conversation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import date

from sleuth.model_check.bounded_template import BoundedTemplate, TemplateRefusedError
from sleuth.model_check.conversation import CHAT, Scene
from sleuth.model_check.finding import TEXT_DIALECTS, Finding
from sleuth.model_check.history import history_finding
from sleuth.model_check.model_files import ModelFiles
from sleuth.model_check.played import AGENT, QUESTION, TOOL_ANSWER, messages_of, play, tool_of
from sleuth.model_check.thinking import thinking_findings
from sleuth.model_check.tokens import end_findings
from sleuth.model_check.tool_calls import call_findings, dialect_findings
from sleuth.render import encode

SYSTEM, ANSWER = "Answer from the encyclopaedia.", "I look it up."


def template_findings(files: ModelFiles, template: BoundedTemplate) -> Iterator[Finding]:
    """All that is found of a template. Raises TemplateLimitError."""
    scene = Scene(template=template, script=AGENT, controls=files.controls, tools=[tool_of("chat").schema])
    plain = replace(scene, script=CHAT, tools=())
    try:
        prompt = plain.render(messages_of(QUESTION))
        refused = ""
    except TemplateRefusedError as error:
        prompt, refused = "", f"it cannot render a user's question: {error}"
    if not refused and messages_of(QUESTION)[0]["content"] not in prompt:
        refused = "it drops the user's question, if that is text and no list of parts"
    if not refused and ANSWER not in plain.render([*messages_of(QUESTION), {"role": "assistant", "content": ANSWER}]):
        refused = "it drops what the assistant said"
    if refused:
        yield Finding(
            check="template", level="problem", line=refused, fix='fix the template, or use prompt_role = "raw"'
        )
        return
    yield from _role_findings(plain, prompt)
    played = play(scene, plain)
    yield from call_findings(scene, plain, played)
    yield from dialect_findings(files, scene, played)
    yield history_finding("parsed", played.parsed, files.tokenizer)
    if played.written_refused:
        yield Finding(
            check="history as written",
            level="warning",
            line=f"the template refuses turns as the policy wrote them: {played.written_refused}",
            fix="give turns back parsed, and keep the sampled tokens beside them",
        )
    else:
        yield history_finding("written", played.written, files.tokenizer)
    yield from end_findings(files, played.parsed)
    yield from thinking_findings(scene if played.form else plain, played)
    yield _room_finding(files, scene, plain)


def _role_findings(plain: Scene, prompt: str) -> Iterator[Finding]:
    check = "template"
    question, system = messages_of(QUESTION), {"role": "system", "content": SYSTEM}
    found: list[tuple[str, str]] = []
    try:
        if SYSTEM not in plain.render([system, *question]):
            found.append(("it drops a system message", 'put its text into the user\'s: prompt_role = "user"'))
    except TemplateRefusedError as error:
        found.append((f"it refuses a system message: {error}", 'put its text into the user\'s: prompt_role = "user"'))
    try:
        plain.render([*question, *question])
    except TemplateRefusedError as error:
        found.append(
            (f"it refuses two messages of the user in a row: {error}", "join messages of one role before rendering")
        )
    try:
        answered = plain.render([*question, {"role": "assistant", "content": ANSWER}, TOOL_ANSWER.message])
        if TOOL_ANSWER.content not in answered:
            found.append(("it drops a tool's answers without an error", TEXT_DIALECTS))
    except TemplateRefusedError:  # some want a call first, which the findings on calls give
        pass
    if "strftime_now" in plain.template.source and f"{date.today():%Y}" in prompt:
        fixed = re.search(r"\bdate_string\b", plain.template.source)
        found.append(
            (
                "it writes today's date into the prompt, so that the same episode is other tokens tomorrow",
                'fix it: template_flags = { date_string = "26 Jul 2024" }' if fixed else "fix the date in a copy of it",
            )
        )
    for line, fix in found:
        yield Finding(check=check, level="warning", line=line, fix=fix)
    if not found:
        yield Finding(check=check, level="ok", line="it renders system, user and assistant")


def _room_finding(files: ModelFiles, scene: Scene, plain: Scene) -> Finding:
    question = messages_of(QUESTION)
    bare = len(encode(files.tokenizer, plain.render(question)))
    line = f"a question is a prompt of {bare:,} tokens"
    with suppress(TemplateRefusedError):  # another finding says so
        offered = len(encode(files.tokenizer, scene.render(question)))
        line += f", of {offered:,} with one tool" if offered != bare else ""
    if files.context is None:
        return Finding(
            check="context",
            level="warning",
            line=f"{line}; the config names no longest sequence",
            fix="set context in the recipe to what the model was trained with",
        )
    return Finding(check="context", level="ok", line=f"{line}; the model was made for {files.context:,}")
