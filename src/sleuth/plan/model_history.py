"""Whether a chat template only appends: the next prompt begins with what the policy saw and wrote.

Where it does not, the sampled text is not what the next turn reads, and a trainer that lays the turns end to end trains
on texts that were never seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sleuth.plan.model_bounded_template import BoundedTemplate, Message, TemplateRefusedError
from sleuth.plan.model_finding import TEXT_DIALECTS, Finding, listed, shown

OPEN, CLOSE = "<think>", "</think>"
QUESTION = {"role": "user", "content": "Where was Ada Voss born?"}


@dataclass(frozen=True, slots=True, kw_only=True)
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
        thought="Her birthplace comes first.",
        text='<tool_call>\n{"name": "search", "arguments": {"query": "Ada Voss birthplace"}}\n</tool_call>',
        reply={"role": "tool", "content": "Ada Voss was born in Tarn."},
        name="the tool's answer",
    ),
    Turn(
        thought="Both facts are known.",
        text="She was born in Tarn, which is in Osmark.",
        reply={"role": "user", "content": "And who rules Osmark?"},
        name="the second question",
    ),
)


def history_finding(template: BoundedTemplate, tools: Sequence[Message]) -> Finding:
    """One line on the turns of a policy with `tools`, given back as it wrote them."""
    try:
        changed = _first_change(template, tools)
    except TemplateRefusedError as error:
        line = f"the template refuses turns as the policy wrote them: {error}"
        return Finding(check="history", level="warning", line=line, fix=TEXT_DIALECTS)
    if not changed:
        return Finding(check="history", level="ok", line=f"append-only over {len(TURNS)} turns")
    return Finding(
        check="history",
        level="warning",
        line=changed,
        fix="begin a new trajectory there (Sleuth's dialect chat does), or keep the sampled tokens (verl does)",
    )


def _first_change(template: BoundedTemplate, tools: Sequence[Message]) -> str:
    """What the template changes of earlier text, where it does so first; empty if it only appends."""
    messages: list[Message] = [QUESTION]
    for number, turn in enumerate(TURNS, 1):
        prompt = template.render(messages, tools=tools)
        wrote = turn.written_after(prompt)
        messages += [{"role": "assistant", "content": wrote}, turn.reply]
        seen, after = prompt + wrote, template.render(messages, tools=tools)
        if after.startswith(seen):
            continue
        thoughts = [(str(at), earlier.thought) for at, earlier in enumerate(TURNS[:number], 1)]
        if lost := [at for at, thought in thoughts if thought in seen and thought not in after]:
            several = "s" if len(lost) > 1 else ""
            return f"at {turn.name} the template drops the thought{several} of turn{several} {listed(lost)}"
        at = shared_length(seen, after)
        now, was = shown(after[at : at + 40]), shown(seen[at : at + 40])
        return f"at {turn.name} the template changes earlier text: {now} stands where {was} was"
    return ""


def shared_length(one: str, other: str) -> int:
    """How many characters two texts begin with alike. Where they part within a tag, it counts to none of it."""
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return len(re.sub(r"[<\[][^<>\[\]\s]*\Z", "", one[:at]))
