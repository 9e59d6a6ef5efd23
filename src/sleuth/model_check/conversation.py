"""An invented conversation, and how a chat template renders it, turn by turn."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sleuth.model_check.bounded_template import BoundedTemplate

OPEN, CLOSE = "<think>", "</think>"
MARKED_END = re.compile("(<[|\uff5c][^<>]{1,40}[|\uff5c]>)\\s*\\Z")
"""A message's end that looks like a control token, whether it is one or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the policy says: a thought, then a call of `search` with the `arguments`, or the `content` of an answer."""

    thought: str
    arguments: Mapping[str, Any] | None = None
    call_id: str = ""
    content: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What is said to the policy. `name` is what findings call it; `call_id` is of a tool's answer."""

    content: str
    name: str
    call_id: str = ""

    @property
    def message(self) -> dict[str, Any]:
        """The message as chat completions take it."""
        if not self.call_id:
            return {"role": "user", "content": self.content}
        return {"role": "tool", "name": "search", "tool_call_id": self.call_id, "content": self.content}


Script = tuple[Turn | Said, ...]


def agent_script(arguments: Sequence[Mapping[str, Any]]) -> Script:
    """A question with two searches, with these arguments, and a second question. Mistral's templates accept ids of
    calls with nine characters only."""
    first, second = arguments
    return (
        Said(content="Where was Ada Voss born?", name="the first question"),
        Turn(thought="Her birthplace comes first.", arguments=first, call_id="call00001"),
        Said(content="Ada Voss was born in Tarn.", name="the first tool answer", call_id="call00001"),
        Turn(thought="Now the country of that town.", arguments=second, call_id="call00002"),
        Said(content="Tarn lies in Osmark.", name="the second tool answer", call_id="call00002"),
        *ANSWERED,
    )


ANSWERED: Script = (
    Turn(thought="Both facts are known.", content="She was born in Tarn, which is in Osmark."),
    Said(content="And who rules Osmark?", name="the second question"),
    Turn(thought="That is common knowledge.", content="Queen Ilse rules it."),
    Said(content="Thank you.", name="the third question"),
)
CHAT: Script = (Said(content="Where was Ada Voss born?", name="the first question"), *ANSWERED)
"""Questions without a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a parsed turn is given to a template: with `thoughts` as `reasoning_content`, the `arguments` of a call as an
    object or as JSON text, and an empty `content` or None beside a call."""

    thoughts: bool = True
    arguments: Literal["object", "text"] = "object"
    content: Literal[""] | None = ""

    def message(self, turn: Turn) -> dict[str, Any]:
        """The message as a server of chat completions parses it."""
        message: dict[str, Any] = {"role": "assistant", "content": turn.content}
        if self.thoughts:
            message["reasoning_content"] = turn.thought
        if turn.arguments is not None:
            arguments = dict(turn.arguments) if self.arguments == "object" else json.dumps(turn.arguments)
            function = {"name": "search", "arguments": arguments}
            message["content"] = self.content
            message["tool_calls"] = [{"id": turn.call_id, "type": "function", "function": function}]
        return message


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One turn. The policy saw the `prompt`, of which `bare` are the messages; it `wrote` a text, and the `end` of its
    message; `after` is the prompt of its next turn, which begins because of what `then` says."""

    turn: Turn
    prompt: str
    bare: str
    wrote: str
    end: str
    after: str
    then: str

    @property
    def seen(self) -> str:
        """Everything up to the end of what the policy wrote."""
        return self.prompt + self.wrote

    @property
    def began(self) -> str:
        """What the prompt has after its messages, without white space around; empty if it changes them."""
        return self.prompt[len(self.bare) :].strip() if self.prompt.startswith(self.bare) else ""

    @property
    def appends(self) -> bool:
        """Whether the next prompt begins with what the policy saw and wrote."""
        return self.after.startswith(self.seen)

    @property
    def with_thought(self) -> str:
        """What the policy wrote, with its thought in tags where the template does not write it, unless the prompt has
        closed an empty one."""
        if self.turn.thought in self.wrote or CLOSE in self.began:
            return self.wrote
        opening = "" if self.prompt.rstrip().endswith(OPEN) else f"{OPEN}\n"
        return f"{opening}{self.turn.thought}\n{CLOSE}\n\n{self.wrote}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A script for a chat template, with the schemas of `tools` and further variables `flags`. `controls` are the names
    of control tokens, the longest first; one may end a message."""

    template: BoundedTemplate
    script: Script
    controls: Sequence[str]
    tools: Sequence[Mapping[str, Any]] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)

    def render(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = True) -> str:
        """The text of messages. Raises TemplateRefusedError or TemplateLimitError."""
        return self.template.render(messages, tools=self.tools, prompt=prompt, flags=self.flags)

    @property
    def thinks(self) -> bool:
        """Whether the policy may think: the prompt has not closed an empty thought already."""
        first = self.script[0]
        assert isinstance(first, Said)
        prompt, bare = (self.render([first.message], prompt=prompt) for prompt in (True, False))
        return CLOSE not in prompt.removeprefix(bare)

    def parsed_steps(self, form: Form) -> list[Step]:
        """Each turn, given back to the template as a parser of tool calls and thoughts reads it."""
        return self._steps([form.message(part) for part in self.script if isinstance(part, Turn)], [])

    def written_steps(self, texts: Sequence[str]) -> list[Step]:
        """Each turn, given back as the text that the policy wrote."""
        return self._steps([{"role": "assistant", "content": text} for text in texts], texts)

    def _steps(self, messages: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> list[Step]:
        """`texts` is what the policy wrote; without them, it wrote what the template makes of its last message."""
        history: list[Mapping[str, Any]] = []
        found: list[Step] = []
        for part, follows in zip(self.script, (*self.script[1:], None), strict=True):
            if isinstance(part, Said):
                history.append(part.message)
                continue
            assert isinstance(follows, Said)
            message, prompt, bare = messages[len(found)], self.render(history), self.render(history, prompt=False)
            last = self.render([*history, message], prompt=False)
            wrote, end = self._split_at_end(last[shared_length(prompt, last) :], part)
            history.append(message)
            found.append(
                Step(
                    turn=part,
                    prompt=prompt,
                    bare=bare,
                    wrote=texts[len(found)] if texts else wrote,
                    end=end,
                    after=self.render([*history, follows.message]),
                    then=follows.name,
                )
            )
        return found

    def _split_at_end(self, text: str, turn: Turn) -> tuple[str, str]:
        """A message's text, and the control token that ends it; empty if there is none."""
        at = text.rfind(turn.content) + len(turn.content) if turn.content in text else 0
        if turn.content and at:
            rest = text[at:].lstrip()
            end = next((name for name in self.controls if rest.startswith(name)), "")
            if end:
                return text[:at], end
        text = text.rstrip()
        end = next((name for name in self.controls if text.endswith(name)), "")
        if not end and (marked := MARKED_END.search(text)):
            end = marked[1]
        return text.removesuffix(end), end


def shared_length(one: str, other: str) -> int:
    """How many characters two texts begin with alike. Where they part within a tag, it counts to none of it."""
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if at is None:
        return min(len(one), len(other))
    opened = max(one.rfind("<", 0, at), one.rfind("[", 0, at))
    return opened if opened >= 0 and not set(">] \n") & set(one[opened:at]) else at
