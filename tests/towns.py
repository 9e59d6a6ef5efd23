"""Passages about small towns, questions about them, and a recipe that learns to read them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from sleuth.read.texts import ReadingRecipe
from sleuth.recipe import load_recipe

TOWNS = ("Tarn", "Kolm", "Belport", "Ostrava", "Lund", "Vesper", "Harrow", "Mirador")
RECIPE = """
name = "reader"

[[stage]]
kind = "supervised"
name = "reading"
steps = 4
rows_per_step = 6
optimiser = "muon"
learning_rate = 1e-3
embedding_learning_rate = 1e-2
copying_weight = 1.0
save_every = 2

[stage.data]
kind = "reading"
questions = "{folder}/questions.jsonl.gz"
passages = ["{folder}/passages.jsonl"]
held_out = ["Tarn"]
mix = {{ walks = 1, talks = 2 }}

[stage.init]
layers = 4
width = 48
heads = 4
kv_heads = 4
head_dim = 40
mlp = 64
context = 512
rope_theta = 1e7
vocabulary = 420
reading = true
"""


def write_towns(folder: Path) -> Path:
    """Three passages about each of eight towns, two questions about each passage, and the recipe; the folder."""
    passages, questions = [], []
    for town in TOWNS:
        for number in range(3):
            year, name = str(1900 + 7 * len(passages)), f"p{len(passages)}"
            text = f"The harbour was built in {year} by old Emil Voss. People of {town} sold 40 boats. It rained there."
            passages.append({"id": name, "contents": f'"{town}"\n{text}'})
            questions += [
                question(f"When was the harbour of {town} built?", year, text, name, "walks"),
                question(f"Who built harbour number {number}?", "Emil Voss", text, name, "talks"),
            ]
    write(folder / "passages.jsonl", passages)
    write(folder / "questions.jsonl.gz", questions)
    (folder / "recipe.toml").write_text(RECIPE.format(folder=folder))
    return folder


def question(text: str, answer: str, passage: str, name: str, source: str) -> dict:
    return {
        "id": f"{name}-{source}",
        "question": text,
        "golden_answers": [answer],
        "gold_ids": [name],
        "answer_start": passage.index(answer),
        "data_source": source,
    }


def write(file: Path, rows: list[dict]) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(lines) if file.suffix == ".gz" else lines)


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in gzip.open(file)]


def data_of(folder: Path) -> ReadingRecipe:
    data = load_recipe(folder / "recipe.toml").stage[0].data  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(data, ReadingRecipe)
    return data
