"""Interleaved thoughts are taught, and what a thought does for the text behind it is measured before and after."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from continuations import BASE, metrics_of, plain_nll
from refusals import refused

from sleuth.cli.pipeline import require_inputs
from sleuth.learn.models import load_model
from sleuth.recipe import load_recipe
from sleuth.render import Renderer
from sleuth.think.thought_rows import (
    LogprobScorer,
    ThoughtRows,
    conditions_of,
    positions_of,
    suffix_nlls,
    thought_figures,
)
from sleuth.training.sft import text_batch
from sleuth.types import Document, Piece, SleuthError, Thought

Run = Callable[..., Path]
RECIPE = """
name = "thinking"
model = "{model}"
seed = 2

[[stage]]
kind = "supervised"
name = "thinking"
steps = 4
rows_per_step = 4
learning_rate = 1e-3
save_every = 2
data = {{ kind = "thoughts", texts = "{world}/text_train.jsonl", limit = 40 }}
held_out = {{ texts = "{world}/text_test.jsonl", limit = 8 }}
"""


@pytest.fixture
def recipe(world: Path, tmp_path: Path) -> Path:
    file = tmp_path / "thinking.toml"
    file.write_text(RECIPE.format(world=world, model=BASE))
    return file


@pytest.fixture(scope="module")
def scorer() -> LogprobScorer:
    model, tokenizer = load_model(str(BASE), dtype=None, device="cpu")
    return LogprobScorer(model=model, renderer=Renderer(tokenizer), budget=512)


def document(name: str, **changes: object) -> Document:
    text = " Tamton is a town in Osmark. The region of Tamton is Osmark."
    thoughts = (Thought(at=text.rindex(" Osmark"), text=" Tamton is in Osmark"),)
    return Document(**{"id": name, "text": text, "origin": name, "thoughts": thoughts, "kind": "k"} | changes)


def test_a_run_measures_held_out_thoughts_before_and_after_and_goes_on_as_if_never_stopped(
    run: Run, recipe: Path, tmp_path: Path
) -> None:
    last = run(recipe, tmp_path / "one")
    before, after = (
        json.loads((tmp_path / "one" / "eval" / f"thinking_{when}.json").read_text()) for when in ("before", "after")
    )
    for told in (before, after):
        assert told["documents"] == told["thought_nll"]["n"] == 8
        assert told["thought_nll"]["low"] <= told["thought_nll"]["value"] <= told["thought_nll"]["high"]
    assert {"text_nll", *(f"suffix_nll_{name}" for name in ("raw", "blank", "true", "corrupted"))} <= after.keys()
    assert after["thought_nll"]["value"] < before["thought_nll"]["value"]
    rows = metrics_of(tmp_path / "one")
    assert [row.get("held_out_thought_nll") is not None for row in rows] == [False, True, False, True]
    assert rows[-1]["held_out_thought_nll"] == after["thought_nll"]["value"]
    assert "thinking_before" in (last / "README.md").read_text()
    run(recipe, tmp_path / "two", "stage.0.stop_after=2")
    again = run(recipe, tmp_path / "two")
    assert (last / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()
    assert json.loads((tmp_path / "two" / "eval" / "thinking_before.json").read_text()) == before


def test_in_a_share_of_the_rows_nothing_is_thought_and_nobody_learns_to_think_nothing(scorer: LogprobScorer) -> None:
    documents = [document(str(number)) for number in range(10)]
    rows = ThoughtRows(documents, scorer.renderer, 768, empty=0.25, key=(3,))
    drawn = [rows.row(index) for index in range(400)]
    silent = [row for row in drawn if row[1].text == "<think></think>"]
    assert len(silent) / 400 == pytest.approx(0.25, abs=0.06)
    assert all([piece.author for piece in row] == ["source", "env", "source"] for row in silent)
    assert all(row[1].author == "teacher" for row in drawn if row not in silent)
    batch = text_batch([silent[0]], scorer.renderer, source_weight=1.0)
    tags = [token in scorer.renderer.render(silent[0][1]).tokens for token in batch.tokens[0].tolist()]
    assert [not trained for trained in batch.trained[0].tolist()][1:] == tags[1:]  # nothing foretells the first
    assert rows.row(7) == drawn[7]


def test_loss_on_thoughts_only_leaves_the_text_without_weight(scorer: LogprobScorer) -> None:
    pieces = [Piece(text=" Osmark is", author="source"), Piece(text="<think> Osmark</think>", author="teacher")]
    alone = text_batch([pieces], scorer.renderer, source_weight=0.0)
    assert alone.trained.tolist() == [[False, False, True, True, True]]
    assert alone.weights[0].tolist() == pytest.approx([0, 0, 1 / 3, 1 / 3, 1 / 3])
    whole = text_batch([pieces], scorer.renderer, source_weight=1.0)
    assert whole.weights[0].tolist() == pytest.approx([0, 1 / 4, 1 / 4, 1 / 4, 1 / 4])


def test_suffix_and_thought_nll_are_those_of_a_plain_forward_pass(scorer: LogprobScorer) -> None:
    own = document("a")
    [place] = positions_of(scorer, own, 16)
    found = suffix_nlls(scorer, [place], {"raw": [None], "blank": [""], "true": [place.thought]})

    def plain(between: str) -> float:
        inserted = scorer.renderer.render(Piece(text=between, author="teacher")).tokens
        return plain_nll(scorer.model, (*place.before, *inserted), place.behind)

    told = {"raw": "", "blank": "<think></think>", "true": "<think> Tamton is in Osmark</think>"}
    assert {name: nll for name, [nll] in found.items()} == pytest.approx(
        {name: plain(between) for name, between in told.items()}, abs=1e-4
    )
    figures = thought_figures(scorer, [own, document("b")], row_tokens=64, suffix_tokens=16)
    thought = len(scorer.renderer.render(Piece(text="<think> Tamton is in Osmark</think>", author="teacher")).tokens)
    assert figures["thought_nats"].value == pytest.approx(thought * (figures["thought_nll"].value or 0), rel=1e-5)
    gain = (figures["suffix_nll_blank"].value or 0) - (figures["suffix_nll_true"].value or 0)
    assert figures["thought_gain"].value == pytest.approx(gain, abs=1e-6)


def test_a_corrupted_thought_is_that_of_another_document_of_the_kind(scorer: LogprobScorer) -> None:
    others = [
        document(name, kind=kind, thoughts=(Thought(at=9, text=thought),))
        for name, kind, thought in (("a", "k", " one"), ("b", "l", " two"), ("c", "k", " three"), ("d", "l", " two"))
    ]
    places = [place for other in others for place in positions_of(scorer, other, 8)]
    assert conditions_of(places)["corrupted"] == [" three", " three", " one", " one"]


def test_what_does_not_fit_is_refused_before_the_first_step(recipe: Path, world: Path) -> None:
    require_inputs(load_recipe(recipe))
    assert "stage.0 (thinking): data.row_tokens = 2000 is more than the 1024 positions" in refused(
        recipe, "stage.0.data.row_tokens=2000"
    )
    same = f"stage.0.held_out.texts={world}/text_train.jsonl"
    assert "held_out: the text of 'train-0' is trained too" in refused(recipe, same)
    assert "corpus.jsonl:1: no `text`" in refused(recipe, f"stage.0.data.texts={world}/corpus.jsonl")


def test_texts_alone_are_taught_as_they_were_cut(run: Run, recipe: Path, world: Path, tmp_path: Path) -> None:
    cut = f"stage.0.data={{ kind = 'text', texts = '{world}/text_train.jsonl', limit = 30, prefix_tokens = 200 }}"
    run(recipe, tmp_path / "raw", cut)
    rows = metrics_of(tmp_path / "raw")
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[-1]["held_out_thought_nll"] is not None
    with pytest.raises(SleuthError, match=r"source_weight = 0 leaves no loss"):
        load_recipe(recipe, [cut, "stage.0.source_weight=0"])
