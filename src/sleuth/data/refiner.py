"""Rows with a tool output to refine, read as tasks. Three layouts:

- ours, which `sleuth world` writes: `id`, `question`, `reasoning` (why the agent searched), `tool_output` and, as far
  as they are known, `answer` (a good one), `answerable`, `golden_answers`, `rubrics`, `support` (every claim that the
  snippets state: `{"claim": "...", "snippets": ["a1"], "asked": true}`), `type` and `data_source`;
- the published refiners' (rl_hard_gpt5_sft_gpt54rubric and its kin): `conversations` of `role` and `content`, whose
  last assistant turn is an answer, `metadata`, `rubrics` as JSON text, `gpt5_generation`. The tool output is what
  stands in `<tool_output>` in what user and tool say; without the tag, all that they say. `metadata.tool_query` is the
  question, `citation_score_applicable` of its metrics says whether there is anything to cite;
- answers with their sources (ExpertQA, ScholarQABench, ALCE): `question`, `answer` with numbers in brackets, and
  `sources` of `id`, `title`, and `text` or `snippets`, which become the tool output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict
from typing import Any

import numpy as np

from sleuth.data.rows import Row, checked_text, text_of
from sleuth.types import Evidence, Passage, Rubric, SleuthError, StatedClaim, Task

COLUMNS = (
    *(
        "conversations",
        "rubrics",
        "gpt5_generation",
        "reasoning",
        "tool_output",
        "answerable",
        "answer",
        "sources",
        "support",
    ),
    *(f"metadata.{key}" for key in ("sample_id", "traj_idx", "turn_index", "pass", "tool_query")),
    "metadata.citation_metrics.citation_score_applicable",
)
"""What is read of these layouts beside the columns of questions."""

TOOL_OUTPUT = re.compile(r"<tool_output\b[^<>]*>(.*?)</tool_output>", re.DOTALL | re.IGNORECASE)


def is_refiner(row: Row) -> bool:
    """Whether a row is in one of these layouts."""
    sourced = row.get("sources") is not None and row.get("golden_answers") is None
    return any(row.get(key) is not None for key in ("tool_output", "conversations")) or sourced


def as_ours(row: Row, where: str) -> Row:
    """The row in the layout of ours; a row without an id is named after its place in the file."""
    if row.get("conversations") is not None:
        row = _of_conversations(row, where)
    elif row.get("tool_output") is None:
        row = dict(row) | {"tool_output": _of_sources(row, where), "reasoning": ""}
    return row if row.get("id") is not None else dict(row) | {"id": f"row_{where.rpartition(':')[2]}"}


def row_of(task: Task) -> dict[str, Any]:
    """A task with a tool output as a row of ours: reading it gives the task again, but for a prompt of its own."""
    evidence = task.evidence
    assert evidence is not None  # whoever has none is no row of this kind
    rubrics = {
        f"{sign}_rubrics": [
            {"title": rubric.title, "description": rubric.description} for rubric in task.rubrics if rubric.wanted == of
        ]
        for sign, of in (("positive", True), ("negative", False))
    }
    return {
        "id": task.id,
        "question": task.question,
        "reasoning": evidence.reasoning,
        "tool_output": evidence.output,
        "answerable": evidence.answerable,
        "golden_answers": list(task.golden_answers),
        "answer": task.reference,
        "rubrics": rubrics if task.rubrics else None,
        "support": [asdict(stated) for stated in evidence.stated],
        "type": task.kind,
        "data_source": task.source,
    }


def evidence_of(row: Row, where: str) -> Evidence:
    """What a row of ours has to refine. Raises SleuthError where there is nothing to cite in it, and something should
    be."""
    output = text_of(row, "tool_output", where)
    answerable = row.get("answerable")
    if answerable is not None and not isinstance(answerable, bool):
        raise SleuthError(f"{where}: `answerable` should be true or false, found {answerable!r}")
    snippets = snippets_of(output)
    if not snippets and answerable is not False:
        raise SleuthError(
            f"{where}: `tool_output` holds no snippet, so that nothing could be cited; expected "
            "<snippet id=ID>text</snippet>"
        )
    reasoning = checked_text(row["reasoning"], "reasoning", where) if row.get("reasoning") else ""
    stated = tuple(_stated(row.get("support"), {snippet.id for snippet in snippets}, where))
    return Evidence(reasoning=reasoning, output=output, snippets=snippets, answerable=answerable, stated=stated)


def rubrics_of(row: Row, where: str) -> tuple[Rubric, ...]:
    """The row's criteria: `{"positive_rubrics": [{"title", "description"}], "negative_rubrics": [...]}`, or that as
    JSON text; none where there are none."""
    if not row.get("rubrics"):
        return ()
    table = _table(row["rubrics"], "rubrics", where)
    unknown = table.keys() - {"positive_rubrics", "negative_rubrics"}
    if unknown:
        raise SleuthError(
            f"{where}: `rubrics` has {', '.join(sorted(unknown))}; expected positive_rubrics and negative_rubrics"
        )
    return (
        *_criteria(table.get("positive_rubrics"), "rubrics.positive_rubrics", where, wanted=True),
        *_criteria(table.get("negative_rubrics"), "rubrics.negative_rubrics", where, wanted=False),
    )


def message_of(row: Row, where: str) -> str:
    """The one user message that a published row asks with, byte for byte."""
    if row.get("conversations") is None:
        raise SleuthError(f'{where}: brings no message of its own; ask_with = "question" asks in the prompt of the env')
    asked = _asked(_messages(row, where))
    roles = [message["role"] for message in asked]
    if roles != ["user"]:
        raise SleuthError(
            f"{where}: `conversations` has the messages {', '.join(roles) or 'of nobody'} before the answer, and an "
            'episode begins with one of the user; ask_with = "question" asks in the prompt of the environment'
        )
    return asked[0]["content"]


def _of_conversations(row: Row, where: str) -> dict[str, Any]:
    messages = _messages(row, where)
    asked = _asked(messages)
    heard = [message["content"] for message in asked if message["role"] in ("user", "tool")]
    marked = [output.strip() for content in heard for output in TOOL_OUTPUT.findall(content)]
    thoughts = [message["content"] for message in asked if message["role"] == "assistant"]
    around = TOOL_OUTPUT.sub("", heard[-1]).strip() if heard and marked else ""
    metadata = _table(row["metadata"], "metadata", where) if row.get("metadata") is not None else {}
    applicable = _table(metadata.get("citation_metrics") or {}, "metadata.citation_metrics", where)
    has_sources = applicable.get("citation_score_applicable")
    parts = (metadata.get(key) for key in ("sample_id", "traj_idx", "turn_index", "pass"))
    name = "/".join(str(part) for part in parts if part is not None)
    answers = [message["content"] for message in messages[len(asked) :]]
    answer = answers[-1] if answers else row.get("gpt5_generation")
    return {
        "id": name or None,
        "question": metadata.get("tool_query") or around or "\n".join(heard),
        "reasoning": (thoughts[-1] if thoughts else around).strip(),
        "tool_output": "\n".join(marked or heard),
        "answerable": None if has_sources is None else bool(has_sources),
        "answer": answer,
        "rubrics": row.get("rubrics"),
        "golden_answers": row.get("golden_answers"),
        "data_source": row.get("data_source"),
    }


def _messages(row: Row, where: str) -> list[dict[str, str]]:
    messages = row["conversations"]
    shaped = isinstance(messages, Sequence | np.ndarray) and not isinstance(messages, str)
    if not shaped or not all(isinstance(message, Mapping) for message in messages):
        raise SleuthError(
            f'{where}: `conversations` should be a list of messages such as {{"role": "user", "content": "..."}}'
        )
    return [
        {
            "role": checked_text(message.get("role"), f"conversations.{at}.role", where),
            "content": checked_text(message.get("content"), f"conversations.{at}.content", where),
        }
        for at, message in enumerate(list[Any](messages))
    ]


def _asked(messages: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The messages up to the one that the answer answers."""
    last = max((at for at, message in enumerate(messages) if message["role"] != "assistant"), default=-1)
    return list(messages[: last + 1])


def _of_sources(row: Row, where: str) -> str:
    sources = row["sources"]
    if not isinstance(sources, Sequence | np.ndarray) or not all(isinstance(source, Mapping) for source in sources):
        raise SleuthError(f'{where}: `sources` should be a list such as [{{"id": "1", "title": "...", "text": "..."}}]')
    passages = list(_passages(list(sources), where))
    if not passages:
        raise SleuthError(f"{where}: none of the `sources` holds any text, so that nothing could be cited")
    return tool_output_of(passages)


def _passages(sources: Sequence[Mapping[str, Any]], where: str) -> Iterator[Passage]:
    """Sources that hold any text; one whose page could not be read has none."""
    for at, source in enumerate(sources):
        texts = source.get("snippets")
        text = source.get("text") or "\n".join(texts if texts is not None else ())
        if text.strip():
            id_ = source.get("id")
            yield Passage(
                id=checked_text(str(at) if id_ is None else str(id_), f"sources.{at}.id", where),
                title=str(source.get("title") or ""),
                text=checked_text(text, f"sources.{at}.text", where),
            )


def _stated(found: Any, ids: Set[str], where: str) -> Iterator[StatedClaim]:
    """The table of support, whose ids are those of the tool output."""
    entries = [] if found is None else found
    if isinstance(entries, str) or not isinstance(entries, Sequence | np.ndarray):
        raise SleuthError(f'{where}: `support` should be a list such as [{{"claim": "...", "snippets": ["a1"]}}]')
    for at, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise SleuthError(f"{where}: `support.{at}` should have claim, snippets and asked, found {entry!r:.40}")
        given = entry.get("snippets")
        snippets = tuple(str(id_) for id_ in (given if given is not None else ()))
        unknown = sorted(set(snippets) - ids)
        if not snippets or unknown:
            raise SleuthError(
                f"{where}: `support.{at}.snippets` should name snippets of the tool output; "
                f"{' and '.join(unknown) or 'there is none'}"
            )
        claim = checked_text(entry.get("claim"), f"support.{at}.claim", where)
        yield StatedClaim(claim=claim, snippets=snippets, asked=bool(entry.get("asked")))


def _criteria(found: Any, key: str, where: str, *, wanted: bool) -> Iterator[Rubric]:
    if found is not None and (isinstance(found, str) or not isinstance(found, Sequence | np.ndarray)):
        raise SleuthError(f'{where}: `{key}` should be a list such as [{{"title": "...", "description": "..."}}]')
    for at, criterion in enumerate(found if found is not None else ()):
        if not isinstance(criterion, Mapping):
            raise SleuthError(f"{where}: `{key}.{at}` should have title and description, found {criterion!r:.40}")
        yield Rubric(
            title=checked_text(criterion.get("title"), f"{key}.{at}.title", where),
            description=checked_text(criterion.get("description"), f"{key}.{at}.description", where),
            wanted=wanted,
        )


def _table(value: Any, key: str, where: str) -> Mapping[str, Any]:
    """A table, or one that is written as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise SleuthError(f"{where}: `{key}` is no JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise SleuthError(f"{where}: `{key}` should be a table, found {type(value).__name__}")
    return value


SNIPPET = re.compile(
    r"<(?P<tag>snippet|webpage)\b(?P<attributes>[^<>]*)>(?P<text>.*?)(?=</(?P=tag)>|<(?:snippet|webpage)\b|\Z)",
    re.DOTALL | re.IGNORECASE,
)
ID = re.compile(r"\bid\s*=\s*[\"']?([^\s\"']+)")
MARKS = re.compile(r"</?(?:snippet|webpage|tool_output)\b[^<>]*>", re.IGNORECASE)


def snippets_of(output: str) -> tuple[Passage, ...]:
    """The snippets of a tool output, in order; of one that was cut off, what is left. What stands twice under one id is
    one snippet, both texts in it; one without an id cannot be cited, and is none."""
    found: dict[str, list[str]] = {}
    for match in SNIPPET.finditer(output):
        id_ = ID.search(match["attributes"])
        if id_ is not None and match["text"].strip():
            found.setdefault(id_[1], []).append(match["text"].strip())
    return tuple(Passage(id=id_, title="", text="\n".join(texts)) for id_, texts in found.items())


def tool_output_of(snippets: Sequence[Passage]) -> str:
    """Passages as a tool output, `<snippet id=a1> Title | text</snippet>`: `snippets_of` gives them back, each with its
    title before its text. What would read as a mark of ours is taken out of them."""
    return "\n".join(f"<snippet id={snippet.id}> {_told(snippet)}</snippet>" for snippet in snippets)


def _told(snippet: Passage) -> str:
    parts = (MARKS.sub("", part).strip() for part in (snippet.title, snippet.text))
    return " | ".join(part for part in parts if part)
