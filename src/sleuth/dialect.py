"""The parts of a search protocol as data. All control flow is in the environment.

In one thing all dialects depart from the published systems: in questions and passages, the names of added tokens and
the dialect's own tags are encoded letter by letter, so that no passage can close its block or act for the policy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, Literal, cast

from sleuth import family
from sleuth.types import SleuthError

Frame = Literal["text", "messages", "conversation"]
"""Where results go: into the `text` that the policy is writing; into `messages` that the model's chat template appends;
or into a `conversation` that the template renders whole at every turn, history included."""

BUDGETS = ("top_k", "searches", "turns", "turn_tokens", "response_tokens", "passage_tokens", "results_tokens")
"""The limits of a dialect that a recipe may override."""
LARGEST_LIMIT = 2**31 - 1
PATTERN_SECONDS = 1.0
"""How long a regular expression that is not of the package may take for one text; ours take microseconds."""
PATTERN_CHARACTERS = 4000
_SLOW_PATTERNS: set[str] = set()
"""Those that took longer, which are not tried again: a server would stop once for each request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """An opening and a closing tag. `Tags(open="<search>", close="</search>")`."""

    open: str
    close: str

    def around(self, text: str) -> str:
        return f"{self.open}{text}{self.close}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Search as a native tool: the policy calls `name` in JSON, with the query in `argument`, or a list of queries if
    `several`. The two descriptions are for the model."""

    name: str
    argument: str
    several: bool
    description: str
    argument_description: str

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in OpenAI's function schema, which chat templates take."""
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
    """Tags, formats and limits of a search protocol.

    `action` is a regular expression with the groups `kind` and `text`, searched in one policy turn: `kind` is `answer`
    for an answer and anything else for a search; no match is an invalid action, which gets `hint`. `answer_inner`, with
    a group `text`, finds the answer in the answer element; `answer_form` writes it there. Of a result that the answer
    cites, a group `quoted` is what follows the answer there, a group `sentence` one that says so. With a `tool`, the
    text of a search is a JSON call of it.

    `passage` formats one result from `rank`, `title` and `text`; `between` separates results, `between_queries` those
    of different queries, and `margin` the results from their tags. With `results_key`, all results are the value of
    that key in a JSON object. With `question_again`, a tag, the question follows the results, behind that tag. With
    `sentences_of`, the `top_k` results are sentences of so many passages, those that share most words with the query.
    `passage_tokens` limits each result; `results_tokens` limits all results of a search together, without their tags.

    `searches` limits searches, `turns` the policy's turns: after the last search there is one more turn, while the last
    of `turns` may not search. None is no limit. `hints` is how many invalid actions may be retried; None: any number,
    but each uses up a search. `turn_tokens` limits a turn, `response_tokens` all tokens after the prompt. With
    `cut_ends`, a turn that reaches its limit ends the episode, whatever it contains.

    Raises ValueError for unusable expressions, formats, tags and limits, since a dialect may be loaded from a
    checkpoint.
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
    question_again: str | None = None
    sentences_of: int | None = None
    turns: int | None = None
    response_tokens: int | None = None
    cut_ends: bool = False

    def __post_init__(self) -> None:
        _require_groups("action", self.action, {"kind", "text"})
        if self.answer_inner is not None:
            _require_groups("answer_inner", self.answer_inner, {"text"})
        _require_format("passage", self.passage, "rank, title and text")
        _require_format("answer_form", self.answer_form, "text")
        for name in (*BUDGETS, "hints", "sentences_of"):
            least = 0 if name in ("searches", "hints") else 1
            if (value := getattr(self, name)) is not None and not least <= value <= LARGEST_LIMIT:
                raise ValueError(f"{name} = {value}: should be a number from {least} to {LARGEST_LIMIT}")
        for name in ("think", "search", "information", "answer"):
            if not (getattr(self, name).open and getattr(self, name).close):
                raise ValueError(f"{name} has an empty tag: name both tags, such as <{name}> and </{name}>")
        if "" in self.stops:
            raise ValueError("stops has an empty text: remove it")
        if self.question_again and self.frame != "text":
            raise ValueError(f'question_again = {self.question_again!r} needs frame = "text"')

    def find_action(self, turn: str) -> re.Match[str] | None:
        """The match of `action` in a policy turn. Raises SleuthError if it takes too long."""
        return _search("action", self.action, turn)

    def find_answer(self, answer: str) -> re.Match[str] | None:
        """The match of `answer_inner` in an answer element, of whatever text if there is none; raises likewise."""
        return _search("answer_inner", self.answer_inner or "", answer)

    @property
    def cites(self) -> bool:
        """Whether an answer cites a passage, by quoting it."""
        return not {"quoted", "sentence"}.isdisjoint(re.compile(self.answer_inner or "").groupindex)

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags, which the tokenizer must be able to write."""
        pairs = (self.think, self.search, self.information, self.answer)
        again = [self.question_again] if self.question_again else []
        return (*(tag for pair in pairs for tag in (pair.open, pair.close)), *again)


class _Registered(Mapping[str, Dialect]):
    """The dialects of the families, each imported when it is first asked for."""

    def __getitem__(self, name: str) -> Dialect:
        return family.table("dialects", name)

    def __iter__(self) -> Iterator[str]:
        return iter(family.kinds("dialects"))

    def __len__(self) -> int:
        return len(family.kinds("dialects"))


DIALECTS: Mapping[str, Dialect] = _Registered()
"""The dialects that a recipe can name."""


def dialect_of(name: str) -> Dialect:
    """The dialect of this name. Raises SleuthError if there is none."""
    if not family.knows("dialects", name):
        raise SleuthError(f"dialect = {name!r}: there is no such dialect; there are {', '.join(DIALECTS)}")
    return DIALECTS[name]


def require_speakable(
    dialect: Dialect, prompt_role: str, *, forced_search: bool = False, closed_book: bool = False
) -> None:
    """Raises SleuthError if the dialect cannot be used with this prompt role, or not with a forced search or a closed
    book."""
    if dialect.frame != "text" and prompt_role == "raw":
        raise SleuthError(
            f'prompt_role = "raw": the dialect {dialect.name!r} needs messages of the model\'s chat template; '
            'set prompt_role = "user" or "system"'
        )
    if dialect.frame != "text" and forced_search:
        raise SleuthError(
            f"forced_search = true: the dialect {dialect.name!r} has no opening search tag; set forced_search = false"
        )
    if dialect.frame != "text" and closed_book:
        raise SleuthError(
            f"closed_book = true: a turn in the dialect {dialect.name!r} is a whole message, which the environment "
            "cannot begin; set closed_book = false"
        )


@family.cached
def _own_patterns() -> frozenset[str]:
    """The regular expressions of the package's dialects."""
    ours = (*DIALECTS.values(), *family.other_dialects())
    return frozenset(pattern for dialect in ours for pattern in (dialect.action, dialect.answer_inner or ""))


def _search(name: str, pattern: str, text: str) -> re.Match[str] | None:
    """`re.search`, with a limit of time unless the pattern is of the package: a checkpoint's can take for ever."""
    if pattern in _own_patterns():
        return re.search(pattern, text)
    import regex  # which can stop, and lets other threads run meanwhile

    if pattern not in _SLOW_PATTERNS:
        try:
            return cast(
                Any, regex.search(pattern, text, timeout=PATTERN_SECONDS)
            )  # with all that is used of a re.Match
        except TimeoutError:
            _SLOW_PATTERNS.add(pattern)
    raise SleuthError(
        f"the protocol's dialect.{name} takes more than {PATTERN_SECONDS:.0f} s to read a turn, and is not an "
        "expression of this package: give --dialect NAME, or take another checkpoint"
    )


def _require_format(name: str, form: str, fields: str) -> None:
    """Fields alone: `{text:>1000000000}` would fill the memory, and `{text.__class__}` leave the text."""
    try:
        parts = list(Formatter().parse(form))
    except ValueError:
        parts = [("", "", "", None)]
    known = fields.replace(" and", ",").split(", ")
    if any(field is not None and (field not in known or more or kind) for _, field, more, kind in parts):
        raise ValueError(f"{name} = {form!r} is not a format of {fields}")


def _require_groups(name: str, expression: str, groups: set[str]) -> None:
    if len(expression) > PATTERN_CHARACTERS:
        raise ValueError(f"{name} has {len(expression):,} characters: should have at most {PATTERN_CHARACTERS:,}")
    try:
        present = re.compile(expression).groupindex.keys()
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{name} is not a regular expression: {error}") from None
    if not groups <= present:
        required = " and ".join(f"(?P<{group}>...)" for group in sorted(groups))
        raise ValueError(f"{name} has no {'groups' if len(groups) > 1 else 'group'} {required}")
