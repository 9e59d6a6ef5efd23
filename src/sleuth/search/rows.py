"""Files of others: question rows of Search-R1 and its ports, a retrieval benchmark in BEIR's layout, and TREC runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sleuth.data.layouts import QuestionLayout
from sleuth.data.rows import Row, checked_text, read_rows, text_of
from sleuth.types import Passage, SleuthError, Task

VERL_PREFIX = "searchR1_"
QUERIES, JUDGEMENTS = "queries.jsonl", Path("qrels", "test.tsv")


def standard_row(row: Row, where: str) -> Row:
    """A question row of Search-R1 (arXiv:2503.09516) or its ports in our layout.

    - Search-R1's own parquet, `nq_hotpotqa_train`: `id`, `question`, `golden_answers` and `data_source`, and what verl
      trains from: `prompt` (chat messages), `reward_model` and `extra_info`.
    - verl's rewrite: no `id`, `question` or `golden_answers`; the question is in `extra_info`, the answers are the
      target of `reward_model`, and `data_source` starts with `searchR1_`.
    - SkyRL's rewrite: as verl's, with `reward_spec` instead of `reward_model`.

    Ids restart in every source, so that ours are prefixed with the source: `nq/train_0`, `hotpotqa/train_0`.
    `extra_info.index` restarts too and is ignored: a row without an id is named by its line, `nq/row_17`.
    """
    source = str(row.get("data_source") or "").removeprefix(VERL_PREFIX)
    own_id = text_of(row, "id", where) if row.get("id") is not None else f"row_{where.rpartition(':')[2]}"
    return {
        "id": f"{source}/{own_id}" if source else own_id,
        "question": _question(row, where),
        "golden_answers": row["golden_answers"] if row.get("golden_answers") is not None else _target(row, where),
        "data_source": source,
    }


def _question(row: Row, where: str) -> str:
    if row.get("question") is not None:
        return text_of(row, "question", where)
    info = row.get("extra_info")
    if isinstance(info, Mapping) and info.get("question") is not None:
        return checked_text(info["question"], "extra_info.question", where)
    raise SleuthError(f"{where}: no `question`, neither as a column nor in `extra_info`")


def _target(row: Row, where: str) -> Any:
    """The golden answers of the row's own reward: `{"ground_truth": {"target": ["Tarn"]}}`."""
    key = "reward_model" if row.get("reward_model") is not None else "reward_spec"
    reward = row.get(key)
    truth = reward.get("ground_truth") if isinstance(reward, Mapping) else None
    target = truth.get("target") if isinstance(truth, Mapping) else truth
    if target is None:
        raise SleuthError(
            f'{where}: no `golden_answers`, and no `{key}` of the form {{"ground_truth": {{"target": []}}}}'
        )
    return target


SEARCH_R1 = QuestionLayout(
    columns=("reward_model.ground_truth", "reward_spec.ground_truth", "extra_info.question"),
    fits=lambda row: "reward_model" in row or "reward_spec" in row,
    standard_row=standard_row,
)


def is_beir(path: Path) -> bool:
    """Whether these questions are those of a benchmark: a folder, or one of its tables of judgements."""
    return path.suffix == ".tsv" or path.is_dir()


def load_beir(path: Path) -> list[Task]:
    """The judged queries of a benchmark in BEIR's layout (arXiv:2104.08663) as tasks, whose gold passages have a
    positive score: of a folder's test split, or of the table of judgements at `path`, in its order.

    A folder has `corpus.jsonl` (read by `sleuth.retrieval.corpus`), `queries.jsonl` with rows
    `{"_id": "q7", "text": "where was Ada Voss born?"}` and, for each split, a table such as `qrels/test.tsv` with the
    columns query-id, corpus-id and score. It has no answers. Raises SleuthError with file:line for a malformed row.
    """
    table, folder = (path, path.parent.parent) if path.suffix == ".tsv" else (path / JUDGEMENTS, path)
    queries: dict[str, str] = {}
    for where, row in read_rows(folder / QUERIES):
        if (name := text_of(row, "_id", where)) in queries:
            raise SleuthError(f"{where}: id {name!r} was used by an earlier query; ids should be unique")
        queries[name] = text_of(row, "text", where).strip()
    gold: dict[str, list[str]] = {}
    for where, row in read_rows(table):
        query, passage, score = (text_of(row, name, where) for name in ("query-id", "corpus-id", "score"))
        if query not in queries:
            raise SleuthError(f"{where}: there is no query {query!r} in {folder / QUERIES}")
        try:
            gold.setdefault(query, []).extend([passage] if int(score) > 0 else [])
        except ValueError:
            raise SleuthError(f"{where}: score {score[:40]!r}: expected a whole number, such as 1") from None
    if not gold:
        raise SleuthError(f"{table}: no judgements in this file")
    return [
        Task(id=query, question=queries[query], golden_answers=(), gold_passages=tuple(dict.fromkeys(passages)))
        for query, passages in gold.items()
    ]


def run_lines(tasks: Sequence[Task], found: Sequence[Sequence[Passage]], tag: str) -> Iterator[str]:
    """The lines of a TREC run, which trec_eval, pytrec_eval, ir_measures and ranx read, from the passages of each task,
    best first: one for each passage, `QUESTION Q0 PASSAGE RANK SCORE TAG`, such as `q7 Q0 17 1 11.342187 sleuth-bm25`.

    The tools order by score alone, as float32, and each breaks ties in its own way; so a score that is not lower than
    the one before is written as the next lower number. Raises SleuthError for an id with white space.
    """
    for task, passages in zip(tasks, found, strict=True):
        _require_word(task.id, "question")
        last = np.float32(np.inf)
        for rank, passage in enumerate(passages, start=1):
            _require_word(passage.id, "passage")
            last = min(np.float32(passage.score), np.nextafter(last, np.float32(-np.inf)))
            yield f"{task.id} Q0 {passage.id} {rank} {last!s} {tag}"


def _require_word(name: str, noun: str) -> None:
    if name.split() != [name]:
        raise SleuthError(f"{noun} {name!r}: white space in an id, and that separates the columns of a TREC run")
