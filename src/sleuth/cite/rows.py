"""Reads and writes rows with a tool output to refine. Three layouts are read:

- ours, which `sleuth world` writes: `id`, `question`, `reasoning` (why the agent searched), `tool_output` and, if
  known, `answer` (a good one), `answerable`, `golden_answers`, `rubrics`, `support` (every claim that the snippets
  state: `{"claim": "...", "snippets": ["a1"], "asked": true}`), `type` and `data_source`;
- the published refiners' (rl_hard_gpt5_sft_gpt54rubric and similar): `conversations` of `role` and `content`, whose
  last assistant turn is an answer, `metadata`, `rubrics` as JSON text, `gpt5_generation`. The tool output is the
  content of `<tool_output>` in user and tool messages; without the tag, these messages in full. `metadata.tool_query`
  is the question, `citation_score_applicable` of its metrics says whether there is anything to cite;
- answers with their sources (ExpertQA, ScholarQABench, ALCE): `question`, `answer` with numbers in brackets, and
  `sources` of `id`, `title`, and `text` or `snippets`, which become the tool output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict
from typing import Any

import numpy as np

from sleuth.cite.claims import bracketed, tagged
from sleuth.data.layouts import QuestionLayout
from sleuth.data.rows import Row, checked_text, table_in, text_of
from sleuth.types import Evidence, Passage, Rubric, SleuthError, StatedClaim, Task

COLUMNS = (
    *("conversations", "rubrics", "gpt5_generation", "reasoning", "tool_output"),
    *("answerable", "answer", "sources", "support"),
    *(f"metadata.{key}" for key in ("sample_id", "traj_idx", "turn_index", "pass", "tool_query")),
    "metadata.citation_metrics.citation_score_applicable",
)
"""The columns of these layouts besides those of questions."""

TOOL_OUTPUT = re.compile(r"<tool_output\b[^<>]*>(.*?)</tool_output>", re.DOTALL | re.IGNORECASE)


def is_refiner(row: Row) -> bool:
    """Whether a row is in one of these layouts."""
    sourced = row.get("sources") is not None and row.get("golden_answers") is None
    return any(row.get(key) is not None for key in ("tool_output", "conversations")) or sourced


def standard_row(row: Row, where: str) -> Row:
    """The row in our layout; a row without an id is named by its line."""
    if row.get("conversations") is not None:
        row = _row_from_conversations(row, where)
    elif row.get("tool_output") is None:
        row = dict(row) | {"tool_output": _output_from_sources(row, where), "reasoning": ""}
    return row if row.get("id") is not None else dict(row) | {"id": f"row_{where.rpartition(':')[2]}"}


def row_of(task: Task) -> dict[str, Any] | None:
    """A task with a tool output as a row in our layout, which loads as the same task without its prompt; else None."""
    evidence = task.evidence
    if evidence is None:
        return None
    return {
        "id": task.id,
        "question": task.question,
        "reasoning": evidence.reasoning,
        "tool_output": evidence.output,
        "answerable": evidence.answerable,
        "golden_answers": list(task.golden_answers),
        "answer": task.reference,
        "rubrics": rubric_table(task.rubrics) if task.rubrics else None,
        "support": [asdict(stated) for stated in evidence.stated],
        "type": task.kind,
        "data_source": task.source,
    }


def rubric_table(rubrics: Sequence[Rubric]) -> dict[str, list[dict[str, str]]]:
    """Criteria as rows have them, the wanted ones and the others."""
    return {
        key: [{"title": one.title, "description": one.description} for one in rubrics if one.wanted == wanted]
        for key, wanted in (("positive_rubrics", True), ("negative_rubrics", False))
    }


def evidence_of(row: Row, where: str) -> Evidence:
    """The evidence of a row in our layout. Raises SleuthError if it has no snippet, unless it is marked
    unanswerable."""
    output = text_of(row, "tool_output", where)
    answerable = row.get("answerable")
    if answerable is not None and not isinstance(answerable, bool):
        raise SleuthError(f"{where}: `answerable` should be true or false, found {answerable!r}")
    snippets = snippets_of(output)
    if not snippets and answerable is not False:
        raise SleuthError(f"{where}: `tool_output` holds no snippet to cite; expected <snippet id=ID>text</snippet>")
    return Evidence(
        reasoning=text_of(row, "reasoning", where) if row.get("reasoning") else "",
        output=output,
        snippets=snippets,
        answerable=answerable,
        stated=tuple(_stated(row, {snippet.id for snippet in snippets}, where)),
    )


def message_of(row: Row, where: str) -> str:
    """The one user message of a published row before its answer, unchanged."""
    if row.get("conversations") is None:
        raise SleuthError(f'{where}: no `conversations`; ask_with = "question" uses the prompt of the environment')
    context = _before_answer(_messages(row, where))
    roles = [message["role"] for message in context]
    if roles != ["user"]:
        raise SleuthError(
            f"{where}: `conversations` should have one user message before the answer, found "
            f'{", ".join(roles) or "none"}; ask_with = "question" uses the prompt of the environment'
        )
    return context[0]["content"]


def _row_from_conversations(row: Row, where: str) -> dict[str, Any]:
    messages = _messages(row, where)
    context = _before_answer(messages)
    inputs = [message["content"] for message in context if message["role"] in ("user", "tool")]
    outputs = [output.strip() for content in inputs for output in TOOL_OUTPUT.findall(content)]
    thoughts = [message["content"] for message in context if message["role"] == "assistant"]
    around = TOOL_OUTPUT.sub("", inputs[-1]).strip() if inputs and outputs else ""
    metadata = table_in(row["metadata"], "metadata", where) if row.get("metadata") is not None else {}
    applicable = table_in(metadata.get("citation_metrics") or {}, "metadata.citation_metrics", where)
    has_sources = applicable.get("citation_score_applicable")
    parts = (metadata.get(key) for key in ("sample_id", "traj_idx", "turn_index", "pass"))
    name = "/".join(str(part) for part in parts if part is not None)
    answers = [message["content"] for message in messages[len(context) :]]
    answer = answers[-1] if answers else row.get("gpt5_generation")
    return {
        "id": name or None,
        "question": metadata.get("tool_query") or around or "\n".join(inputs),
        "reasoning": (thoughts[-1] if thoughts else around).strip(),
        "tool_output": "\n".join(outputs or inputs),
        "answerable": None if has_sources is None else bool(has_sources),
        "answer": answer,
        "rubrics": row.get("rubrics"),
        "golden_answers": row.get("golden_answers"),
        "data_source": row.get("data_source"),
    }


def _messages(row: Row, where: str) -> list[dict[str, str]]:
    messages = _tables(row, "conversations", where, '{"role": "user", "content": "..."}')
    return [
        {key: checked_text(message.get(key), f"conversations.{at}.{key}", where) for key in ("role", "content")}
        for at, message in enumerate(messages)
    ]


def _tables(row: Row, key: str, where: str, example: str) -> list[Mapping[str, Any]]:
    """A list of tables, empty if the row has none."""
    tables = row.get(key)
    is_list = isinstance(tables, Sequence | np.ndarray) and not isinstance(tables, str)
    if tables is not None and (not is_list or not all(isinstance(table, Mapping) for table in tables)):
        raise SleuthError(f"{where}: `{key}` should be a list such as [{example}], found {tables!r:.40}")
    return [] if tables is None else list[Any](tables)


def _before_answer(messages: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The messages up to the last one that is not the assistant's."""
    last = max((index for index, message in enumerate(messages) if message["role"] != "assistant"), default=-1)
    return list(messages[: last + 1])


def _output_from_sources(row: Row, where: str) -> str:
    sources = _tables(row, "sources", where, '{"id": "1", "title": "...", "text": "..."}')
    passages = list(_passages(sources, where))
    if not passages:
        raise SleuthError(f"{where}: none of the `sources` has text to cite")
    return tool_output_of(passages)


def _passages(sources: Sequence[Mapping[str, Any]], where: str) -> Iterator[Passage]:
    """The sources that have text; those whose page could not be read have none."""
    for index, source in enumerate(sources):
        texts = source.get("snippets")
        text = source.get("text") or "\n".join(texts if texts is not None else ())
        if text.strip():
            id_ = source.get("id")
            yield Passage(
                id=checked_text(str(index) if id_ is None else str(id_), f"sources.{index}.id", where),
                title=str(source.get("title") or ""),
                text=checked_text(text, f"sources.{index}.text", where),
            )


def _stated(row: Row, ids: Set[str], where: str) -> Iterator[StatedClaim]:
    """The table of support; its ids must be in the tool output."""
    for index, entry in enumerate(_tables(row, "support", where, '{"claim": "...", "snippets": ["a1"]}')):
        given = entry.get("snippets")
        snippets = tuple(str(id_) for id_ in (given if given is not None else ()))
        unknown = sorted(set(snippets) - ids)
        if not snippets or unknown:
            raise SleuthError(
                f"{where}: `support.{index}.snippets` should name snippets of the tool output, found "
                f"{' and '.join(unknown) or 'none'}"
            )
        claim = checked_text(entry.get("claim"), f"support.{index}.claim", where)
        yield StatedClaim(claim=claim, snippets=snippets, asked=bool(entry.get("asked")))


SNIPPET = re.compile(
    r"<(?P<tag>snippet|webpage)\b(?P<attributes>[^<>]*)>(?P<text>.*?)(?=</(?P=tag)>|<(?:snippet|webpage)\b|\Z)",
    re.DOTALL | re.IGNORECASE,
)
ID = re.compile(r"\bid\s*=\s*[\"']?([^\s\"']+)")
OUTPUT_TAGS = re.compile(r"</?(?:snippet|webpage|tool_output)\b[^<>]*>", re.IGNORECASE)


def snippets_of(output: str) -> tuple[Passage, ...]:
    """The snippets of a tool output, in order; a truncated one keeps its remaining text. Texts under the same id are
    joined into one snippet; snippets without an id cannot be cited and are left out."""
    texts_by_id: dict[str, list[str]] = {}
    for match in SNIPPET.finditer(output):
        id_ = ID.search(match["attributes"])
        if id_ is not None and match["text"].strip():
            texts_by_id.setdefault(id_[1], []).append(match["text"].strip())
    return tuple(Passage(id=id_, title="", text="\n".join(texts)) for id_, texts in texts_by_id.items())


def tool_output_of(snippets: Sequence[Passage]) -> str:
    """Passages as a tool output, `<snippet id=a1> Title | text</snippet>`: `snippets_of` returns them, each with its
    title before its text. Tags of this notation inside the passages are removed."""
    lines = []
    for snippet in snippets:
        parts = (OUTPUT_TAGS.sub("", part).strip() for part in (snippet.title, snippet.text))
        lines.append(f"<snippet id={snippet.id}> {' | '.join(part for part in parts if part)}</snippet>")
    return "\n".join(lines)


def doubtful_citations(task: Task) -> list[str]:
    """The ids that a task's own answer cites and its tool output lacks."""
    if task.evidence is None:
        return []
    answer = tagged(task.reference)
    cited = (answer if answer.claims else bracketed(task.reference)).ids
    return sorted(cited - {snippet.id for snippet in task.evidence.snippets})


LAYOUT = QuestionLayout(
    columns=COLUMNS,
    fits=is_refiner,
    standard_row=standard_row,
    message_of=message_of,
    evidence_of=evidence_of,
    row_of=row_of,
    doubtful_citations=doubtful_citations,
)
