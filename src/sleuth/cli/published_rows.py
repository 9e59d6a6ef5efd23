"""The rows of a generated world in the layouts of the published systems, so that a twin reads what its system reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sleuth.data.rows import read_rows
from sleuth.episodes.library import read_prompt
from sleuth.host.atomic import replacing_file
from sleuth.think.splicing import insert_thoughts
from sleuth.types import Thought

SOURCES = {"one_hop": "nq", "two_hop": "hotpotqa"}
"""The set that a kind of question stands for."""
Row = Mapping[str, Any]


def write_published_rows(world: Path) -> None:
    """Writes, beside the world's own files: `nq_hotpotqa_train/train.parquet` as Search-R1's, `sets/nq/test.jsonl` and
    `sets/hotpotqa/dev.jsonl` as FlashRAG's, `refiner_rl/train.jsonl` and `test.jsonl` as the refiners' rows, and
    `companion/train.jsonl` as the companion set of thoughts."""
    import pyarrow as pa
    from pyarrow import parquet

    questions = {split: [row for _, row in read_rows(world / f"qa_{split}.jsonl")] for split in ("train", "test")}
    _write(
        world / "nq_hotpotqa_train/train.parquet",
        lambda file: parquet.write_table(pa.Table.from_pylist([*map(_search_r1, questions["train"])]), file),
    )
    for kind, place in (("one_hop", "nq/test"), ("two_hop", "hotpotqa/dev")):
        asked = [row for row in questions["test"] if row["type"] == kind]
        split = place.rpartition("/")[2]
        rows = [
            {"id": f"{split}_{at}", "question": row["question"], "golden_answers": row["golden_answers"]}
            for at, row in enumerate(asked)
        ]
        _write_lines(world / "sets" / f"{place}.jsonl", iter(rows))
    for split in ("train", "test"):
        made = (_refined(row) for _, row in read_rows(world / f"refiner_{split}.jsonl"))
        _write_lines(world / "refiner_rl" / f"{split}.jsonl", made)
    shown = (_companion(row) for _, row in read_rows(world / "hasty_train.jsonl"))
    _write_lines(world / "companion" / "train.jsonl", shown)


def _search_r1(row: Row) -> dict[str, Any]:
    prompt = read_prompt("search_rules").format(question=row["question"])
    number = int(row["id"].rpartition("-")[2])
    return {
        "id": f"train_{number}",
        "question": row["question"],
        "golden_answers": row["golden_answers"],
        "data_source": SOURCES[row["type"]],
        "prompt": [{"content": prompt, "role": "user"}],
        "ability": "fact-reasoning",
        "reward_model": {"ground_truth": {"target": row["golden_answers"]}, "style": "rule"},
        "extra_info": {"index": number, "split": "train"},
    }


def _refined(row: Row) -> dict[str, Any]:
    """Question and reasoning before the tool output, as the refiners' environment asks with its prompt "bare"."""
    message = f"Question: {row['question']}\nReasoning: {row['reasoning']}\n"
    message += f"<tool_output>\n{row['tool_output'].strip()}\n</tool_output>"
    turns = [{"role": "user", "content": message}, {"role": "assistant", "content": row["answer"]}]
    applicable = {"citation_score_applicable": row["answerable"]}
    metadata = {"sample_id": row["id"], "tool_query": row["question"], "citation_metrics": applicable}
    return {"conversations": turns, "metadata": metadata, "rubrics": json.dumps(row["rubrics"])}


def _companion(row: Row) -> dict[str, Any]:
    thoughts = [Thought(at=thought["at"], text=thought["text"]) for thought in row["thoughts"]]
    copied = insert_thoughts(row["text"], thoughts)
    texts = {"raw_text": row["text"], "augmented_text": copied, "thought_count": len(thoughts)}
    return {"id": row["id"], "split": "train", **texts}


def _write_lines(file: Path, rows: Iterator[Row]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    _write(file, lambda place: place.write_text(text, encoding="utf-8"))


def _write(file: Path, write: Callable[[Path], object]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing_file(file) as partial:
        write(partial)
