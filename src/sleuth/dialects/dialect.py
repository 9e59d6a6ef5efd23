"""What a search protocol is made of. A dialect is data: the environment reads it and holds all control flow."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """An opening and a closing tag. `Tags(open="<search>", close="</search>")`."""

    open: str
    close: str

    def around(self, text: str) -> str:
        return f"{self.open}{text}{self.close}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a policy asks, how results come back, and what a turn costs.

    `action` is a regular expression with the groups `kind` (`search` or `answer`) and `text`, searched in what the
    policy wrote in one turn; no match is a bad action, which gets `hint`. `passage` formats one result from `rank`,
    `title` and `text`; `margin` stands between the results and their tags. `passage_tokens` limits each result by
    itself; `results_tokens` limits all results of a search together, their tags not counted. `hints` is how many bad
    actions are forgiven; None: any number, but each uses up a search.

    Raises ValueError for an `action` or a `passage` that cannot be used: a dialect may come with a checkpoint.
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
    searches: int
    turn_tokens: int
    passage_tokens: int | None
    results_tokens: int | None

    def __post_init__(self) -> None:
        try:
            groups = re.compile(self.action).groupindex
        except re.error as error:
            raise ValueError(f"action is no regular expression: {error}") from None
        if not {"kind", "text"} <= groups.keys():
            raise ValueError("action has no groups (?P<kind>...) and (?P<text>...)")
        try:
            self.passage.format(rank=1, title="", text="")
        except (LookupError, ValueError, AttributeError):
            raise ValueError(f"passage = {self.passage!r} does not format rank, title and text") from None

    @property
    def tags(self) -> tuple[str, ...]:
        """Every tag a tokenizer must be able to write."""
        return tuple(
            tag for pair in (self.think, self.search, self.information, self.answer) for tag in (pair.open, pair.close)
        )
