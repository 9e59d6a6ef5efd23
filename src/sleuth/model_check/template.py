"""What a chat template does with an invented conversation: roles, tool calls, history, thoughts and room."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from sleuth.dialects import DIALECTS, Tool
from sleuth.envs.chat_template import ChatTemplate
from sleuth.model_check.bounded_template import BoundedTemplate, TemplateRefusedError
from sleuth.model_check.conversation import (
    CHAT,
    CLOSE,
    OPEN,
    Form,
    Said,
    Scene,
    Script,
    Step,
    Turn,
    agent_script,
)
from sleuth.model_check.finding import Finding, listed, shown
from sleuth.model_check.history import history_finding
from sleuth.model_check.model_files import ModelFiles
from sleuth.model_check.tokens import end_findings
from sleuth.model_check.tool_calls import as_hermes, dialects_of, readers_of, reads
from sleuth.render import encode
from sleuth.types import SleuthError

AGENT = agent_script([{"query": "Ada Voss birthplace"}, {"query": "country of Tarn"}])
QUESTION = AGENT[:1]
HARD = 'Is "Tarn" <in> Osmark?\nÉ'
"""A query with what parsers get wrong: quotes, brackets, a line break, a letter beyond ASCII."""
SYSTEM = "Answer from the encyclopaedia."
FORMS = (Form(), Form(content=None), Form(arguments="text", content=None), Form(arguments="text"))
"""The forms of parsed calls, the most usual first."""
FLAGS: dict[str, tuple[Any, ...]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "preserve_thinking": (True,),
    "reasoning_effort": ("low", "high"),
}
"""Variables of published templates that change how a model thinks."""
TEXT_DIALECTS = 'use a dialect of plain text, such as dialect = "sleuth", which needs no tools from the template'


def _tool(name: str) -> Tool:
    tool = DIALECTS[name].tool
    assert tool is not None
    return tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """An agent's conversation as the template renders it: the `form` of parsed calls, None where it writes none, and
    `why_not`; the turns as parsed, and as written, or why it refuses those."""

    form: Form | None
    parsed: list[Step]
    written: list[Step]
    why_not: str = ""
    written_refused: str = ""


def template_findings(files: ModelFiles, template: BoundedTemplate) -> Iterator[Finding]:
    """All that is found of a template. Raises TemplateLimitError."""
    scene = Scene(template=template, script=AGENT, controls=files.controls, tools=[_tool("chat").schema])
    plain = replace(scene, script=CHAT, tools=())
    try:
        prompt = plain.render(_messages(QUESTION))
    except TemplateRefusedError as error:
        yield Finding(
            check="template",
            level="problem",
            line=f"it cannot render a user's question: {error}",
            mend='mend the template, or use prompt_role = "raw"',
        )
        return
    yield from _role_findings(plain, prompt)
    played = play(scene, plain)
    yield from _tool_findings(scene, plain, played)
    yield from _dialect_findings(files, scene, played)
    yield history_finding("parsed", played.parsed, files.tokenizer)
    if played.written_refused:
        yield Finding(
            check="history as written",
            level="warning",
            line=f"the template refuses turns as the policy wrote them: {played.written_refused}",
            mend="give turns back parsed, and keep the sampled tokens beside them",
        )
    else:
        yield history_finding("written", played.written, files.tokenizer)
    yield from end_findings(files, played.parsed)
    yield from _thinking_findings(scene if played.form else plain, played)
    yield _room_finding(files, scene, plain)


def play(scene: Scene, plain: Scene) -> Played:
    """The conversation with tools if the template renders calls and a tool's answers, without where it does not."""
    why_not, form = "", None
    parsed: list[Step] = []
    for tried in FORMS:
        try:
            parsed = scene.parsed_steps(tried)
        except TemplateRefusedError as error:
            why_not = why_not or f"refuses them: {error}"
            continue
        if all(_is_rendered(step) for step in parsed):
            form, why_not = tried, ""
            break
        why_not = "drops them, or a tool's answers"
    if form is None:
        parsed = plain.parsed_steps(Form())
    if not any(step.turn.thought in step.wrote for step in parsed):  # it does not read reasoning_content
        form = replace(form, thoughts=False) if form else None
        parsed = scene.parsed_steps(form) if form else plain.parsed_steps(Form(thoughts=False))
    written, refused = _written(scene, plain, form, parsed)
    return Played(form=form, parsed=parsed, written=written, why_not=why_not, written_refused=refused)


def _written(scene: Scene, plain: Scene, form: Form | None, parsed: Sequence[Step]) -> tuple[list[Step], str]:
    """The turns as written, and why the template refuses them, if it does."""
    texts = [step.with_thought for step in parsed]
    if form is not None:
        try:
            return scene.written_steps(texts), ""
        except TemplateRefusedError as error:
            return [], str(error)
    opening = "" if plain.render(_messages(QUESTION)).rstrip().endswith(OPEN) else f"{OPEN}\n"
    calls = [
        f"{opening}{turn.thought}\n{CLOSE}\n\n{as_hermes(turn.arguments)}"
        for turn in AGENT
        if isinstance(turn, Turn) and turn.arguments is not None
    ]
    try:
        agent = scene.written_steps([*calls, *texts])
        if all(_is_answered(step) for step in agent):
            return agent, ""
    except TemplateRefusedError:  # no tool's answers; then without
        pass
    try:
        return plain.written_steps(texts), ""
    except TemplateRefusedError as error:
        return [], str(error)


def _is_rendered(step: Step) -> bool:
    """Whether the call of a turn is written, and the tool's answer after it."""
    call = step.turn.arguments
    return call is None or (str(call["query"]) in step.wrote and _is_answered(step))


def _is_answered(step: Step) -> bool:
    answers = [part.content for part in AGENT if isinstance(part, Said) and part.name == step.then]
    return step.turn.arguments is None or answers[0] in step.after


def _messages(script: Script) -> list[dict[str, Any]]:
    return [part.message for part in script if isinstance(part, Said)]


def _role_findings(plain: Scene, prompt: str) -> Iterator[Finding]:
    check = "template"
    question, system = _messages(QUESTION), {"role": "system", "content": SYSTEM}
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
    if "strftime_now" in plain.template.source and f"{date.today():%Y}" in prompt:
        fixed = re.search(r"\bdate_string\b", plain.template.source)
        found.append(
            (
                "it writes today's date into the prompt, so that the same episode is other tokens tomorrow",
                'fix it: template_flags = { date_string = "26 Jul 2024" }' if fixed else "fix the date in a copy of it",
            )
        )
    for line, mend in found:
        yield Finding(check=check, level="warning", line=line, mend=mend)
    if not found:
        yield Finding(check=check, level="ok", line="it renders system, user and assistant")


def _tool_findings(scene: Scene, plain: Scene, played: Played) -> Iterator[Finding]:
    check = "tool calls"
    question = _messages(QUESTION)
    try:
        offered = scene.render(question) != plain.render(question)
    except TemplateRefusedError as error:
        yield Finding(check=check, level="warning", line=f"the template refuses tools: {error}", mend=TEXT_DIALECTS)
        return
    if not offered:
        own = next((name for name in ("xml_tools", "functions") if name in scene.template.source), "")
        hint = f"; it reads `{own}`, which trainers and servers do not pass" if own else ""
        yield Finding(
            check=check, level="warning", line=f"the template does not render tools{hint}", mend=TEXT_DIALECTS
        )
    if played.form is None:
        if offered:
            line = f"the template renders tools, but no calls of them: it {played.why_not}"
            yield Finding(check=check, level="warning", line=line, mend=TEXT_DIALECTS)
        return
    easy = {"query": "Ada Voss birthplace"}
    text, hard = (_call_text(scene, played.form, arguments) for arguments in (easy, {"query": HARD}))
    readers, whole = readers_of(text, easy), readers_of(hard, {"query": HARD})
    if not readers:
        yield Finding(
            check=check,
            level="warning",
            line=f"no published parser that is known here reads the call that the template writes: {shown(text)}",
            mend="find out which parser its publisher names, or give a parser of your own",
        )
    else:
        lost = [name for name in readers if name not in whole]
        also = f"; of quotes, <> and line breaks in arguments {listed(lost)} lose some" if lost else ""
        yield Finding(
            check=check,
            level="warning" if lost else "ok",
            line=f"written as {shown(text.rpartition(CLOSE)[2].strip())}; read back by {listed(readers)}{also}",
            mend="keep arguments to one line of plain text" if lost else "",
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
        mend=f"give them as {names[form.arguments]}{', as vLLM does' if form.arguments == 'object' else ''}",
    )


def _call_text(scene: Scene, form: Form, arguments: Mapping[str, Any]) -> str:
    """A call as the template writes it, without a thought. Raises TemplateRefusedError."""
    turn = Turn(thought="", arguments=arguments, call_id="call00001")
    asked = replace(scene, script=(*QUESTION, turn, AGENT[2]))
    [step] = asked.parsed_steps(replace(form, thoughts=False))
    return step.wrote


def _without_spaces(text: str) -> str:
    return "".join(text.split())


def _dialect_findings(files: ModelFiles, scene: Scene, played: Played) -> Iterator[Finding]:
    """Which of our dialects of native calls can be used, and read what the template teaches."""
    check, names = "dialects", [dialect.name for name in ("chat", "verl") for dialect in dialects_of(_tool(name))]
    try:
        ChatTemplate(files.tokenizer, tools=[_tool("chat").schema])
    except SleuthError as error:
        yield Finding(
            check=check,
            level="warning",
            line=f"{listed(names)} cannot be used: {str(error).partition(': use a ')[0]}",
            mend=TEXT_DIALECTS,
        )
        return
    if played.form is None:  # then the templates of such dialects are never asked to write a call
        yield Finding(
            check=check, level="ok", line=f"{listed(names)} can be used; the policy learns calls from prompts"
        )
        return
    form, read = played.form, []
    for name, arguments, queries in (
        ("chat", {"query": HARD}, (HARD,)),
        ("verl", {"query_list": [HARD, "Tarn"]}, (HARD, "Tarn")),
    ):
        tool = _tool(name)
        text = _call_text(replace(scene, tools=[tool.schema]), form, arguments)
        read += [dialect.name for dialect in dialects_of(tool) if reads(dialect, tool, text, queries)]
    if unread := [name for name in names if name not in read]:
        yield Finding(
            check=check,
            level="warning",
            line=f"{listed(unread)} cannot read the calls that the template teaches: they read "
            f"{shown(as_hermes({'query': '...'}), 90)}",
            mend=TEXT_DIALECTS,
        )
    else:
        yield Finding(check=check, level="ok", line=f"{listed(names)} read the calls that the template teaches")


def _thinking_findings(scene: Scene, played: Played) -> Iterator[Finding]:
    check = "thinking"
    question = _messages(QUESTION)
    prompt, bare = scene.render(question), scene.render(question, prompt=False)
    began, lines = prompt.removeprefix(bare), []
    if OPEN in began and CLOSE not in began:
        lines.append("every prompt opens a thought, so that what the policy writes begins inside it")
    for flag, values in FLAGS.items():
        if not re.search(rf"\b{flag}\b", scene.template.source):
            continue
        told = [what for value in values if (what := _flag_effect(replace(scene, flags={flag: value}), scene, played))]
        if told:
            lines.append(f"{flag} = {'; '.join(told)}")
    if played.parsed and any(step.turn.thought in step.wrote for step in played.parsed):
        lines.append("reasoning_content is rendered")
    elif lines:
        lines.append("reasoning_content is not rendered: thoughts come back only as part of the content")
    yield Finding(
        check=check, level="ok", line="; ".join(lines) or "the template knows no thoughts and no flag for them"
    )


def _flag_effect(flagged: Scene, scene: Scene, played: Played) -> str:
    """What one value of a flag does to a prompt and to the history; empty if nothing."""
    [value] = flagged.flags.values()
    question = _messages(QUESTION)
    try:
        prompt, default = flagged.render(question), scene.render(question)
        steps = flagged.parsed_steps(played.form or Form(thoughts=any(_thinks(step) for step in played.parsed)))
    except TemplateRefusedError as error:
        return f"{_toml(value)} is refused: {error}"
    effects = []
    began, usually = (
        text.removeprefix(one.render(question, prompt=False)) for text, one in ((prompt, flagged), (default, scene))
    )
    if began != usually and began.startswith(usually):
        effects.append(f"the prompt adds {shown(began.removeprefix(usually))}")
    elif began != usually:
        effects.append(f"the prompt ends with {shown(began)} instead of {shown(usually)}")
    elif prompt != default:
        effects.append("another system message")
    kept, usually_kept = ([step.appends for step in one] for one in (steps, played.parsed))
    if kept != usually_kept:
        worse = sum(kept) < sum(usually_kept)
        effects.append("it is append-only at fewer turns" if worse else "it is append-only at more turns")
    return f"{_toml(value)}: {', '.join(effects)}" if effects else ""


def _thinks(step: Step) -> bool:
    return step.turn.thought in step.wrote


def _toml(value: object) -> str:
    return json.dumps(value)


def _room_finding(files: ModelFiles, scene: Scene, plain: Scene) -> Finding:
    check = "context"
    question = _messages(QUESTION)
    own = len(encode(files.tokenizer, question[0]["content"]))
    around = len(encode(files.tokenizer, plain.render(question))) - own
    line = f"the template takes {around:,} tokens around a question"
    try:
        with_tool = len(encode(files.tokenizer, scene.render(question))) - own
    except TemplateRefusedError:
        with_tool = around
    if with_tool != around:
        line += f", {with_tool:,} with one tool"
    if files.context is None:
        return Finding(
            check=check,
            level="warning",
            line=f"{line}; the config names no longest sequence",
            mend="set context in the recipe to what the model was trained with",
        )
    return Finding(check=check, level="ok", line=f"{line}, of {files.context:,} that the model was made for")
