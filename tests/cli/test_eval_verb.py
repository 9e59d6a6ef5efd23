"""`sleuth eval`: whose protocol is used, and what is printed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sleuth.cli.app import app
from sleuth.runs.protocol import ProtocolCard, text_sha256

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
PROMPT = "Asked: {question}\n"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The tiny base with a protocol of its own: few tokens a turn, one search."""
    folder = Path(shutil.copytree(BASE, tmp_path / "checkpoint"))
    ProtocolCard(
        dialect="sleuth",
        prompt="mine",
        prompt_text=PROMPT,
        prompt_sha256=text_sha256(PROMPT),
        tags=(
            "<think>",
            "</think>",
            "<search>",
            "</search>",
            "<information>",
            "</information>",
            "<answer>",
            "</answer>",
        ),
        stops=("</search>", "</answer>"),
        top_k=2,
        searches=1,
        turn_tokens=5,
        passage_tokens=30,
        scorer="strict",
        sleuth_version="0",
    ).write(folder)
    rows = [{"id": str(i), "question": "Where was Ada born?", "golden_answers": ["Tarn"]} for i in range(3)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "other.txt").write_text("Question: {question}\n")
    return folder


def ask(checkpoint: Path, *more: object) -> tuple[Result, dict]:
    out = checkpoint.parent / "out.json"
    arguments = ["eval", checkpoint, "--questions", checkpoint.parent / "q.jsonl", "--out", out, *more]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    return result, json.loads(out.read_text()) if out.exists() else {}


def test_a_checkpoint_is_asked_under_the_protocol_it_carries(checkpoint: Path) -> None:
    result, found = ask(checkpoint, "--json")
    assert json.loads(result.stdout)["em"]["n"] == 3
    assert result.stdout.count("\n") == 1
    assert "note:" not in result.stderr
    assert found["protocol"]["turn_tokens"] == 5
    segments = [segment for record in found["records"] for segment in record["segments"]]
    assert {segment["text"] for segment in segments if segment["author"] == "template"} == {
        "Asked: Where was Ada born?\n"
    }
    assert max(segment["tokens"] for segment in segments if segment["author"] == "policy") <= 5


def test_another_prompt_is_said_and_leaves_the_budgets_as_they_were(checkpoint: Path) -> None:
    result, found = ask(checkpoint, "--prompt", checkpoint.parent / "other.txt")
    assert "note: the prompt is not what the checkpoint was trained with" in result.stderr
    assert (found["protocol"]["prompt"], found["protocol"]["turn_tokens"]) == ("other", 5)


def test_another_dialect_is_said(checkpoint: Path) -> None:
    result, found = ask(checkpoint, "--prompt", checkpoint.parent / "other.txt", "--dialect", "search_r1", "--limit", 1)
    assert "was trained in the dialect 'sleuth': asked in the dialect 'search_r1'" in result.stderr
    assert found["protocol"]["turn_tokens"] == 500


def test_the_table_has_every_figure_and_the_outcomes(checkpoint: Path) -> None:
    result, _ = ask(checkpoint)
    assert result.exit_code == 0
    for shown in ("em", "searched", "missing", "outcomes: "):
        assert shown in result.stdout


def test_a_model_without_a_protocol_is_said(checkpoint: Path) -> None:
    (checkpoint / "protocol.json").unlink()
    result, _ = ask(checkpoint, "--prompt", checkpoint.parent / "other.txt", "--limit", 1)
    assert "carries no protocol: asked in the dialect 'sleuth'" in result.stderr
