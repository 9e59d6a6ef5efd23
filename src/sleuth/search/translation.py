"""Translation of policy turns from one dialect to another."""

from __future__ import annotations

from sleuth.dialect import Dialect
from sleuth.episodes.calls import call_of, calls_in, queries_of


def translated(turn: str, source: Dialect, into: Dialect) -> str | None:
    """A turn of `source` written in `into`: its thoughts, then its search or answer, with the same white space.

    None if it has no action, a call that cannot be parsed, several calls, or several queries where `into` allows one.
    """
    match = source.find_action(turn)
    if match is None:
        return None
    answers = match["kind"] == "answer"
    if not answers and len(calls_in(turn, match, source)) > 1:
        return None
    opened = turn.rindex((source.answer if answers else source.search).open, 0, match.start("text"))
    thoughts = turn[:opened].replace(source.think.open, into.think.open).replace(source.think.close, into.think.close)
    action = _answer(match["text"], source, into) if answers else _search(match["text"], source, into)
    return None if action is None else thoughts + action


def _answer(text: str, source: Dialect, into: Dialect) -> str | None:
    if source.answer_inner is not None:
        inner = source.find_answer(text)
        if inner is None:
            return None
        text = inner["text"]
    return into.answer.around(into.answer_form.format(text=text))


def _search(text: str, source: Dialect, into: Dialect) -> str | None:
    queries = queries_of(text, source.tool)
    several = into.tool is not None and into.tool.several
    if not queries or (len(queries) > 1 and not several):
        return None
    return into.search.around(call_of(queries, into.tool))
