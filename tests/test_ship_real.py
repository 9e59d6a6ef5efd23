"""What tools/ship_real.py writes of a small run and small data: the model, its passages, questions and card."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from sleuth.dialect import DIALECTS
from sleuth.episodes.protocol import ProtocolCard, text_sha256
from sleuth.host.checksums import require_intact
from sleuth.learn.models import load_model
from tools import ship_real
from tools.ship_real import SOURCES, ship

BASE = Path(__file__).parents[1] / "models" / "tiny-base"
RECIPE = """
name = "tiny-real"
[[stage]]
kind = "supervised"
name = "reading"
steps = 7
[stage.data]
kind = "reading"
passages = ["data/reading_corpus.jsonl.gz", "data/reading_intros.jsonl.gz"]
"""
SHARE = {"value": 0.25, "low": 0.2, "high": 0.3, "n": 1200}


def packed(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Passages of every source, and a test question about each."""
    folder = tmp_path / "data"
    folder.mkdir()
    sources = ["squad_train_part", "squad_dev", "ottqa", "hybridqa", "qamr", "fairytaleqa", "timeqa", "qed", "new"]
    passages = [{"id": f"r{at}", "contents": f'"Title {at}"\nÉté {at}.'} for at in range(len(sources))]
    rows = [row | {"source": source} for row, source in zip(passages, sources, strict=True)]
    packed(folder / "reading_corpus.jsonl.gz", rows)
    intros = [{"id": f"ri{at}", "contents": f'"Intro {at}"\nText.', "source": "wiki_intro"} for at in range(5)]
    packed(folder / "reading_intros.jsonl.gz", intros)
    gold = [*passages, *intros]
    questions = [
        {
            "id": f"q{at}",
            "question": f"What is {at}?",
            "golden_answers": [f"the {at}"],
            "gold_ids": [row["id"]],
            "data_source": "x",
            "standalone": at != 10,
        }
        for at, row in enumerate(gold)
    ]
    packed(folder / "reading_test.jsonl.gz", questions)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose second checkpoint is the tiny base, with a protocol and an evaluation."""
    folder = tmp_path / "run"
    for step in (1, 2):
        shutil.copytree(BASE, folder / f"checkpoints/step-00000{step}")
    prompt = "<question> {question}"
    ProtocolCard(
        dialect=DIALECTS["reading"],
        prompt="reading",
        prompt_text=prompt,
        prompt_sha256=text_sha256(prompt),
        context=512,
        scorer="strict",
        sleuth_version="0.1.0",
    ).write(folder / "checkpoints/step-000002")
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "eval").mkdir()
    records: list[dict[str, Any]] = [
        {"id": f"q{at}", "question": f"What is {at}?", "golden_answers": [f"the {at}"], "answer": f"{at}"}
        for at in range(14)
    ]
    records[0]["answer"] = "something else"
    records[1]["answer"] = None
    (folder / "eval/trained.json").write_text(json.dumps({"name": "trained", "em": SHARE, "records": records}))
    return folder


def rows_of(file: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return [json.loads(line) for line in text.splitlines()]


def test_the_last_checkpoint_is_shipped_in_bfloat16_and_in_the_same_bytes_again(
    run: Path, data: Path, tmp_path: Path
) -> None:
    ship(run, folder := tmp_path / "tiny-real", data)
    model, _ = load_model(str(folder), dtype="float32", device="cpu")
    base, _ = load_model(str(BASE), dtype="float32", device="cpu")
    for ours, given in zip(model.parameters(), base.parameters(), strict=True):
        assert torch.equal(ours, given.to(torch.bfloat16).float())
    assert ProtocolCard.read(folder) == ProtocolCard.read(run / "checkpoints/step-000002")
    require_intact(folder)
    ship(run, again := tmp_path / "again", data)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        file.name: file.read_bytes() for file in again.iterdir()
    }


def test_questions_are_drawn_by_the_seed_from_those_answered_right(run: Path, data: Path, tmp_path: Path) -> None:
    drawn = set()
    for seed in range(12):
        ship(run, tmp_path / "tiny-real", data, evaluation="trained", seed=seed)
        questions = rows_of(tmp_path / "tiny-real/questions.jsonl")
        assert len({row["id"] for row in questions}) == 3
        drawn |= {row["id"] for row in questions}
    shipped = {row["id"] for row in rows_of(tmp_path / "tiny-real/corpus.jsonl.gz")}
    right = {row["id"] for row in rows_of(data / "reading_test.jsonl.gz") if row["gold_ids"][0] in shipped}
    assert drawn == right - {"q0", "q1", "q10"}  # wrong, without an answer, and not standalone


def test_the_card_has_the_figures_of_the_run_the_sources_and_the_licence(run: Path, data: Path, tmp_path: Path) -> None:
    ship(run, folder := tmp_path / "tiny-real", data, evaluation="trained")
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlicense: cc-by-sa-4.0\n")
    assert "| trained | em | 0.250 | 0.200 to 0.300 | 1,200 |" in card
    assert "| `reading` | supervised | 7 |" in card
    assert "| `qamr` | QAMR" in card  # trained on, and not in the folder
    assert [source.name for source in SOURCES if f"| `{source.name}` |" not in card] == []
    assert "https://en.wikipedia.org/wiki/" in card
    (run / "eval/trained.json").unlink()
    ship(run, tmp_path / "without", data)
    assert "The run has no evaluation." in (tmp_path / "without/README.md").read_text()
    notice = (folder / ship_real.LICENCE_FILE).read_text()
    assert ship_real.LEGAL_CODE in notice
