"""What a chat template does with thoughts, and what its flags change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sleuth.model_check.bounded_template import TemplateRefusedError
from sleuth.model_check.conversation import CLOSE, OPEN, Form, Scene, Step
from sleuth.model_check.finding import Finding, shown
from sleuth.model_check.played import QUESTION, Played, messages_of

FLAGS: dict[str, tuple[Any, ...]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "preserve_thinking": (True,),
    "reasoning_effort": ("low", "high"),
}
"""Variables of published templates that change how a model thinks."""


def thinking_findings(scene: Scene, played: Played) -> Iterator[Finding]:
    """One line on thoughts and on each flag that changes something."""
    question = messages_of(QUESTION)
    prompt, bare = scene.render(question), scene.render(question, prompt=False)
    began, lines = prompt.removeprefix(bare), []
    if OPEN in began and CLOSE not in began:
        lines.append("every prompt opens a thought, so that what the policy writes begins inside it")
    for flag, values in FLAGS.items():
        if not re.search(rf"\b{flag}\b", scene.template.source):
            continue
        flagged = [replace(scene, flags={flag: value}) for value in values]
        if effects := [effect for one in flagged if (effect := _flag_effect(one, scene, played))]:
            lines.append(f"{flag} = {'; '.join(effects)}")
    if any(map(_thinks, played.parsed)):
        lines.append("reasoning_content is rendered")
    elif lines:
        lines.append("reasoning_content is not rendered: thoughts come back only as part of the content")
    line = "; ".join(lines) or "the template knows no thoughts and no flag for them"
    yield Finding(check="thinking", level="ok", line=line)


def _flag_effect(flagged: Scene, scene: Scene, played: Played) -> str:
    """What one value of a flag does to a prompt and to the history; empty if nothing."""
    [value] = flagged.flags.values()
    question = messages_of(QUESTION)
    try:
        prompt, default = flagged.render(question), scene.render(question)
        thoughts = flagged.thinks and any(map(_thinks, played.parsed))
        steps = flagged.parsed_steps(replace(played.form or Form(), thoughts=thoughts))
    except TemplateRefusedError as error:
        return f"{json.dumps(value)} is refused: {error}"
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
    return f"{json.dumps(value)}: {', '.join(effects)}" if effects else ""


def _thinks(step: Step) -> bool:
    """Whether the template writes a turn's thought."""
    return step.turn.thought in step.wrote
