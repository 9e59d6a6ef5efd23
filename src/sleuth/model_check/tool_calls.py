"""Whether the calls that a chat template writes are read back, by published parsers and by our dialects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sleuth.envs.chat_template import ChatTemplate
from sleuth.model_check.bounded_template import TemplateRefusedError
from sleuth.model_check.conversation import CLOSE, Form, Scene, Turn
from sleuth.model_check.finding import TEXT_DIALECTS, Finding, listed, shown
from sleuth.model_check.model_files import ModelFiles
from sleuth.model_check.parsers import as_hermes, dialects_of, readers_of, reads
from sleuth.model_check.played import QUESTION, TOOL_ANSWER, Played, messages_of, tool_of
from sleuth.types import SleuthError

HARD = 'Is "Tarn" <in> Osmark?\nÉ'
"""A query with what parsers get wrong: quotes, brackets, a line break, a letter beyond ASCII."""


def call_findings(scene: Scene, plain: Scene, played: Played) -> Iterator[Finding]:
    """Whether the template renders tools and calls, and who reads the calls back."""
    check = "tool calls"
    question = messages_of(QUESTION)
    try:
        offered = scene.render(question) != plain.render(question)
    except TemplateRefusedError as error:
        yield Finding(check=check, level="warning", line=f"the template refuses tools: {error}", fix=TEXT_DIALECTS)
        return
    if not offered:
        own = next((name for name in ("xml_tools", "functions") if name in scene.template.source), "")
        hint = f"; it reads `{own}`, which trainers and servers do not pass" if own else ""
        yield Finding(check=check, level="warning", line=f"the template does not render tools{hint}", fix=TEXT_DIALECTS)
    if played.form is None:
        if offered:
            line = f"the template renders tools, but no calls of them: it {played.why_not}"
            yield Finding(check=check, level="warning", line=line, fix=TEXT_DIALECTS)
        return
    easy = {"query": "Ada Voss birthplace"}
    text, hard = (_call_text(scene, played.form, arguments) for arguments in (easy, {"query": HARD}))
    readers, whole = readers_of(text, easy), readers_of(hard, {"query": HARD})
    call = shown(text.rpartition(CLOSE)[2].strip())
    if not readers:
        yield Finding(
            check=check,
            level="warning",
            line=f"no published parser that is known here reads the call that the template writes: {call}",
            fix="find out which parser its publisher names, or give a parser of your own",
        )
    else:
        lost = [name for name in readers if name not in whole]
        also = f"; of quotes, <> and line breaks in arguments {listed(lost)} lose some" if lost else ""
        yield Finding(
            check=check,
            level="warning" if lost else "ok",
            line=f"written as {call}; read back by {listed(readers)}{also}",
            fix="keep arguments to one line of plain text" if lost else "",
        )
    yield from _argument_findings(scene, played.form, text)


def _argument_findings(scene: Scene, form: Form, text: str) -> Iterator[Finding]:
    """Whether arguments may be an object as well as JSON text."""
    other = replace(form, arguments="text" if form.arguments == "object" else "object")
    names = {"object": "an object", "text": "JSON text"}
    try:
        again = _call_text(scene, other, {"query": "Ada Voss birthplace"})
    except TemplateRefusedError as error:
        what = f"are refused ({error})"
    else:
        if _without_spaces(again) == _without_spaces(text):
            return
        what = f"are written otherwise ({shown(again[-60:])})"
    yield Finding(
        check="tool calls",
        level="warning",
        line=f"arguments given back as {names[other.arguments]} {what}",
        fix=f"give them as {names[form.arguments]}{', as vLLM does' if form.arguments == 'object' else ''}",
    )


def _call_text(scene: Scene, form: Form, arguments: Mapping[str, Any]) -> str:
    """A call as the template writes it, without a thought. Raises TemplateRefusedError."""
    turn = Turn(thought="", arguments=arguments, call_id="call00001")
    asked = replace(scene, script=(*QUESTION, turn, TOOL_ANSWER))
    [step] = asked.parsed_steps(replace(form, thoughts=False))
    return step.wrote


def _without_spaces(text: str) -> str:
    return "".join(text.split())


def dialect_findings(files: ModelFiles, scene: Scene, played: Played) -> Iterator[Finding]:
    """Which of our dialects of native calls can be used, and read what the template teaches."""
    check, names = "dialects", [dialect.name for name in ("chat", "verl") for dialect in dialects_of(tool_of(name))]
    try:
        ChatTemplate(files.tokenizer, tools=[tool_of("chat").schema])
    except SleuthError as error:
        yield Finding(
            check=check,
            level="warning",
            line=f"{listed(names)} cannot be used: {str(error).partition(': use a ')[0]}",
            fix=TEXT_DIALECTS,
        )
        return
    if played.form is None:
        yield Finding(
            check=check, level="ok", line=f"{listed(names)} can be used; the policy learns calls from prompts"
        )
        return
    form, read = played.form, []
    for name, arguments, queries in (
        ("chat", {"query": HARD}, (HARD,)),
        ("verl", {"query_list": [HARD, "Tarn"]}, (HARD, "Tarn")),
    ):
        tool = tool_of(name)
        text = _call_text(replace(scene, tools=[tool.schema]), form, arguments)
        read += [dialect.name for dialect in dialects_of(tool) if reads(dialect, tool, text, queries)]
    if unread := [name for name in names if name not in read]:
        yield Finding(
            check=check,
            level="warning",
            line=f"{listed(unread)} cannot read the calls that the template teaches: they read "
            f"{shown(as_hermes({'query': '...'}), 90)}",
            fix=TEXT_DIALECTS,
        )
    else:
        yield Finding(check=check, level="ok", line=f"{listed(names)} read the calls that the template teaches")
