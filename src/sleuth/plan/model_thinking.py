"""What a chat template does with thoughts, and what its flags change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from sleuth.plan.model_bounded_template import BoundedTemplate, TemplateRefusedError
from sleuth.plan.model_finding import Finding, shown
from sleuth.plan.model_history import OPEN, QUESTION, shared_length

FLAGS: dict[str, tuple[Any, ...]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "reasoning_effort": ("low", "high"),
}
"""Variables of published templates that change how a model thinks."""


def thinking_finding(template: BoundedTemplate) -> Finding:
    """One line on whether prompts open a thought, and on each flag that changes them."""
    lines = list(_flag_effects(template))
    if template.render([QUESTION]).rstrip().endswith(OPEN):
        lines.insert(0, "every prompt opens a thought, so that what the policy writes begins inside it")
    line = "; ".join(lines) or "prompts open no thought, and no flag for thoughts changes them"
    return Finding(check="thinking", level="ok", line=line)


def _flag_effects(template: BoundedTemplate) -> Iterator[str]:
    usual = template.render([QUESTION])
    for flag, values in FLAGS.items():
        for value in values if re.search(rf"\b{flag}\b", template.source) else ():
            try:
                prompt = template.render([QUESTION], flags={flag: value})
            except TemplateRefusedError as error:
                yield f"{flag} = {json.dumps(value)} is refused: {error}"
                continue
            at = shared_length(usual, prompt)
            if prompt != usual:
                instead = f" instead of {shown(usual[at:])}" if usual[at:] else ""
                yield f"{flag} = {json.dumps(value)}: the prompt ends with {shown(prompt[at:])}{instead}"
