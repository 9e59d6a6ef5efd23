"""The conversation of an agent as a chat template renders it, parsed and as written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sleuth.dialects import DIALECTS, Tool
from sleuth.model_check.bounded_template import TemplateRefusedError
from sleuth.model_check.conversation import Form, Said, Scene, Script, Step, Turn, agent_script
from sleuth.model_check.parsers import as_hermes

AGENT = agent_script([{"query": "Ada Voss birthplace"}, {"query": "country of Tarn"}])
QUESTION = AGENT[:1]
TOOL_ANSWER = next(part for part in AGENT if isinstance(part, Said) and part.call_id)
FORMS = (Form(), Form(content=None), Form(arguments="text", content=None), Form(arguments="text"))
"""The forms of parsed calls, the most usual first."""


def tool_of(name: str) -> Tool:
    """The tool of one of our dialects of native calls."""
    tool = DIALECTS[name].tool
    assert tool is not None
    return tool


def messages_of(script: Script) -> list[dict[str, Any]]:
    """What is said to the policy in a script, as messages."""
    return [part.message for part in script if isinstance(part, Said)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """An agent's conversation as the template renders it: the `form` of parsed calls, None where it writes none, and
    `why_not`; the turns as parsed, and as written, or why it refuses those."""

    form: Form | None
    parsed: list[Step]
    written: list[Step]
    why_not: str = ""
    written_refused: str = ""


def play(scene: Scene, plain: Scene) -> Played:
    """The conversation with tools if the template renders calls and a tool's answers, without where it does not."""
    why_not, form = "", None
    parsed: list[Step] = []
    for usual in FORMS:
        tried = replace(usual, thoughts=plain.thinks)
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
        parsed = plain.parsed_steps(Form(thoughts=plain.thinks))
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
    calls = [
        replace(parsed[0], turn=turn, wrote=as_hermes(turn.arguments)).with_thought
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
