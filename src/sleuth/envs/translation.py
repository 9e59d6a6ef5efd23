"""What a policy said in one dialect, said in another."""

from __future__ import annotations

import re

from sleuth.dialects import Dialect
from sleuth.envs.calls import call_of, queries_of


def translated(turn: str, spoken: Dialect, into: Dialect) -> str | None:
    """A turn of `spoken` in the forms of `into`: its thoughts, then its search or its answer, white space included.

    None where there is nothing to translate: no action, a call that cannot be read, or several queries for a dialect
    that asks one.
    """
    match = re.search(spoken.action, turn)
    if match is None:
        return None
    answers = match["kind"] == "answer"
    opened = turn.rindex((spoken.answer if answers else spoken.search).open, 0, match.start("text"))
    thoughts = turn[:opened].replace(spoken.think.open, into.think.open).replace(spoken.think.close, into.think.close)
    action = _answer(match["text"], spoken, into) if answers else _search(match["text"], spoken, into)
    return None if action is None else thoughts + action


def _answer(text: str, spoken: Dialect, into: Dialect) -> str | None:
    if spoken.answer_inner is not None:
        inner = re.search(spoken.answer_inner, text)
        if inner is None:
            return None
        text = inner["text"]
    return into.answer.around(into.answer_form.format(text=text))


def _search(text: str, spoken: Dialect, into: Dialect) -> str | None:
    queries = queries_of(text, spoken.tool)
    several = into.tool is not None and into.tool.several
    if not queries or (len(queries) > 1 and not several):
        return None
    return into.search.around(call_of(queries, into.tool))
