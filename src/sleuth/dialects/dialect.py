"""What a search protocol is made of. A dialect is data: the environment reads it and holds all control flow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

Frame = Literal["text", "messages", "conversation"]
"""Where results stand: in the `text` that the policy is writing; in `messages` of their own, put behind what is there
by the model's chat template; or in a `conversation` that the template renders whole at every turn, history included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """An opening and a closing tag. `Tags(open="<search>", close="</search>")`."""

    open: str
    close: str

    def around(self, text: str) -> str:
        return f"{self.open}{text}{self.close}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Search as a native tool: the policy calls `name` in JSON, with the query in `argument`, or a list of queries
    where it takes `several`. The other two texts are for the model to read."""

    name: str
    argument: str
    several: bool
    description: str
    argument_description: str

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as chat templates take it (the function schema of OpenAI)."""
        text: dict[str, Any] = {"type": "string"}
        value = {"type": "array", "items": text} if self.several else text
        parameters = {
            "type": "object",
            "properties": {self.argument: value | {"description": self.argument_description}},
            "required": [self.argument],
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a policy asks, how results come back, and what a turn costs.

    `action` is a regular expression with the groups `kind` and `text`, searched in what the policy wrote in one turn:
    `kind` is `answer` for an answer and anything else for a search; no match is a bad action, which gets `hint`.
    `answer_inner`, with a group `text`, is where in an answer the answer is, and `answer_form` puts it there. With a
    `tool` the text of a search is a JSON call of it.

    `passage` formats one result from `rank`, `title` and `text`; `between` stands between two of them,
    `between_queries` between those of two queries, and `margin` between the results and their tags. With `results_key`
    all results are the one value of a JSON object. `passage_tokens` limits each result by itself; `results_tokens`
    limits all results of a search together, their tags not counted.

    `searches` limits searches and `turns` all that the policy writes in: after the last search one more turn is
    granted, but of `turns` the last may not search. None is no limit. `hints` is how many bad actions are forgiven;
    None: any number, but each uses up a search. `turn_tokens` limits a turn and `response_tokens` all that follows the
    prompt; where `cut_ends`, a turn that its limit cut ends the episode, whatever stands in it.

    Raises ValueError for expressions and formats that cannot be used: a dialect may come with a checkpoint.
    """

    name: str
    think: Tags
    search: Tags
    information: Tags
    answer: Tags
    stops: tuple[str, ...]
    action: str
    passage: str
    before_results: str
    margin: str
    after_results: str
    hint: str
    hints: int | None
    top_k: int
    searches: int | None
    turn_tokens: int
    passage_tokens: int | None
    results_tokens: int | None
    frame: Frame = "text"
    tool: Tool | None = None
    answer_inner: str | None = None
    answer_form: str = "{text}"
    between: str = "\n"
    between_queries: str = "\n"
    results_key: str | None = None
    turns: int | None = None
    response_tokens: int | None = None
    cut_ends: bool = False

    def __post_init__(self) -> None:
        _require_groups("action", self.action, {"kind", "text"})
        if self.answer_inner is not None:
            _require_groups("answer_inner", self.answer_inner, {"text"})
        _require_format("passage", self.passage, "rank, title and text", rank=1, title="", text="")
        _require_format("answer_form", self.answer_form, "text", text="")

    @property
    def tags(self) -> tuple[str, ...]:
        """Every tag a tokenizer must be able to write."""
        return tuple(
            tag for pair in (self.think, self.search, self.information, self.answer) for tag in (pair.open, pair.close)
        )


def _require_format(name: str, form: str, what: str, **values: object) -> None:
    try:
        form.format(**values)
    except (LookupError, ValueError, AttributeError):
        raise ValueError(f"{name} = {form!r} does not format {what}") from None


def _require_groups(name: str, expression: str, groups: set[str]) -> None:
    try:
        found = re.compile(expression).groupindex
    except re.error as error:
        raise ValueError(f"{name} is no regular expression: {error}") from None
    if not groups <= found.keys():
        wanted = " and ".join(f"(?P<{group}>...)" for group in sorted(groups))
        raise ValueError(f"{name} has no {'groups' if len(groups) > 1 else 'group'} {wanted}")
