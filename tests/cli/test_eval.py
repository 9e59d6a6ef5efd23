"""`sleuth eval`: whose protocol is used, and what is printed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import Result
from verb import sleuth, write_rows

from sleuth.cite.dialect import REFINERS
from sleuth.dialect import DIALECTS
from sleuth.engines.local.engine import LocalEngine
from sleuth.episodes.protocol import ProtocolCard, text_sha256
from sleuth.host.checksums import write_checksums

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
PROMPT = "Asked: {question}\n"
CARD = ProtocolCard(
    dialect=dataclasses.replace(DIALECTS["sleuth"], top_k=2, searches=1, turn_tokens=5, passage_tokens=30),
    prompt="mine",
    prompt_text=PROMPT,
    prompt_sha256=text_sha256(PROMPT),
    context=200,
    scorer="strict",
    sleuth_version="0",
)


NOTHING_FOUND = "note: there is no index and no retrieval server: every search finds nothing"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The tiny base with a protocol of its own: few tokens a turn, one search."""
    folder = Path(shutil.copytree(BASE, tmp_path / "checkpoint"))
    CARD.write(folder)
    rows = [{"id": str(i), "question": "Where was Ada born?", "golden_answers": ["Tarn"]} for i in range(3)]
    write_rows(tmp_path / "q.jsonl", rows)
    (tmp_path / "other.txt").write_text("Question: {question}\n")
    return folder


def notes_in(said: str) -> list[str]:
    return [line for line in said.splitlines() if "note:" in line]


def ask(checkpoint: Path, *more: object) -> tuple[Result, dict]:
    out = checkpoint.parent / "out.json"
    write_checksums(checkpoint)  # as a save does
    result = sleuth("eval", checkpoint, "--questions", checkpoint.parent / "q.jsonl", "--out", out, *more)
    return result, json.loads(out.read_text()) if out.exists() else {}


def test_a_checkpoint_is_asked_under_its_own_protocol(checkpoint: Path) -> None:
    result, found = ask(checkpoint, "--json")
    assert json.loads(result.stdout)["em"]["n"] == 3
    assert result.stdout.count("\n") == 1
    assert notes_in(result.stderr) == [NOTHING_FOUND]
    assert found["protocol"]["hash"] == CARD.hash
    segments = [segment for record in found["records"] for segment in record["segments"]]
    for record in found["records"]:
        shown = "".join(segment["text"] for segment in record["segments"])
        assert shown.startswith("Asked: Where was Ada born?\n")
    assert max(segment["tokens"] for segment in segments if segment["author"] == "policy") <= 5
    shown, _ = ask(checkpoint)
    for said in ("em", "searched", "missing", "outcomes: "):
        assert said in shown.stdout


@pytest.mark.parametrize(
    ("card", "options", "note", "asked"),
    [
        ({}, "--limit 1", "", {"context": 200}),
        ({}, "--closed-book", "a closed book is not what the checkpoint was trained with", {"closed_book": True}),
        ({}, "--prompt other.txt", "the prompt is not what the checkpoint was trained with", {"prompt": "other"}),
        (
            {},
            "--prompt other.txt --dialect search_r1",
            "was trained in the dialect 'sleuth': asked in the dialect 'search_r1'",
            {"prompt": "other"},
        ),
        ({}, "--context 300", "the context of 300 tokens is not the 200 that the checkpoint was", {"context": 300}),
        ({"forced_search": True}, "--limit 1", "", {"forced_search": True}),
        (
            {"forced_search": True},
            "--no-forced-search",
            "a forced search is not what the checkpoint was trained with",
            {"forced_search": False},
        ),
    ],
)
def test_a_checkpoint_is_asked_as_it_was_trained_and_another_way_is_noted(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, card: dict, options: str, note: str, asked: dict
) -> None:
    monkeypatch.chdir(checkpoint.parent)
    CARD.model_copy(update=card).write(checkpoint)
    result, found = ask(checkpoint, *options.split())
    told = [line for line in notes_in(result.stderr) if line != NOTHING_FOUND]
    assert note in "".join(told)
    assert bool(told) == bool(note)
    assert found["protocol"].items() >= asked.items()
    assert found["protocol"]["dialect"]["turn_tokens"] == (500 if "search_r1" in options else 5)


def test_a_checkpoint_is_asked_with_what_it_was_trained_with_by_default(checkpoint: Path) -> None:
    CARD.model_copy(update={"ask_with": "prompt"}).write(checkpoint)
    message = [{"role": "user", "content": "Say where Ada was born."}]
    row = {"id": "0", "question": "Where was Ada born?", "golden_answers": ["Tarn"], "prompt": message}
    (checkpoint.parent / "q.jsonl").write_text(json.dumps(row) + "\n")

    def opening(*more: object) -> tuple[str, str]:
        result, found = ask(checkpoint, *more)
        assert found["protocol"]["ask_with"] == (more[1] if more else "prompt")
        return "".join(segment["text"] for segment in found["records"][0]["segments"]), result.stderr

    asked, said = opening()
    assert asked.startswith("Asked: Say where Ada was born.\n")
    assert notes_in(said) == [NOTHING_FOUND]


def test_the_dialect_stored_with_a_checkpoint_is_used_even_if_ours_has_changed(checkpoint: Path) -> None:
    nothing_is_an_action = r"(?!)(?P<kind>search|answer)(?P<text>.)"
    theirs = dataclasses.replace(CARD.dialect, name="theirs", action=nothing_is_an_action, hint="\nMORE\n")
    CARD.model_copy(update={"dialect": theirs}).write(checkpoint)
    result, found = ask(checkpoint, "--limit", 1)
    unknown, *others = notes_in(result.stderr)
    assert "its dialect 'theirs' is of no family that is installed here" in unknown
    assert others == [NOTHING_FOUND]
    assert "\nMORE\n" in [segment["text"] for segment in found["records"][0]["segments"]]


def test_a_context_beyond_the_models_positions_is_shortened_and_noted(checkpoint: Path) -> None:
    CARD.model_copy(update={"context": 5000}).write(checkpoint)
    result, found = ask(checkpoint, "--limit", 1)
    assert found["protocol"]["context"] == 1024
    assert "note: the model holds 1024 tokens, not the context of 5000 that it was trained with" in result.stderr


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
)
def test_out_of_memory_while_answering_is_one_line_too(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(LocalEngine, "_forward", full)
    result, _ = ask(checkpoint)
    assert result.exit_code == 2
    assert "--slots 64" in result.stderr.splitlines()[-1]


def test_a_checkpoint_is_scored_by_its_training_reward_beside_strict_exact_match(checkpoint: Path) -> None:
    CARD.model_copy(update={"scorer": "verl"}).write(checkpoint)
    _, found = ask(checkpoint)
    assert found["score_verl"]["n"] == found["em"]["n"] == 3
    _, found = ask(checkpoint, "--scorer", "skyrl")
    assert {key for key in found if key.startswith("score_")} == {"score_skyrl"}
    _, found = ask(checkpoint, "--scorer", "strict")
    assert not {key for key in found if key.startswith("score_")}


def test_a_scorer_that_does_not_fit_the_prompt_is_noted_and_refiners_take_none(checkpoint: Path) -> None:
    CARD.model_copy(update={"scorer": "slime"}).write(checkpoint)
    for name, more in (("slime", ()), ("search_r1", ("--scorer", "search_r1"))):
        result, _ = ask(checkpoint, *more)
        assert f"note: the scorer {name} would pay a well-formed right answer 0, not 1" in result.stderr
    result, _ = ask(checkpoint, "--scorer", "verl")
    assert "the scorer" not in result.stderr
    CARD.model_copy(update={"dialect": REFINERS["answer_only"]}).write(checkpoint)
    row = {"id": "1", "question": "Where?", "reasoning": "I look.", "tool_output": "<snippet id=a>In Tarn.</snippet>"}
    (checkpoint.parent / "q.jsonl").write_text(json.dumps(row) + "\n")
    result, _ = ask(checkpoint, "--scorer", "slime", "--prompt", "refine")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "--scorer slime compares answers with golden ones" in result.stderr
