"""The tiny model on real questions and real passages: it knows no English, and nothing may break all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sleuth.data.questions import load_questions
from sleuth.retrieval.bm25 import build_index
from sleuth.stages.evaluate import evaluation
from sleuth.stages.examination import examination_of

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the real data is not on this machine")


def test_real_questions_give_whole_records_and_every_token_is_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    build_index(DATA / "corpus.jsonl.gz", tmp_path / "index")
    tasks = load_questions(DATA / "qa_test.jsonl")[:12]
    examination, notes = examination_of(
        "models/tiny-base",
        tasks,
        index=tmp_path / "index",
        dialect="sleuth",
        prompt="plain",
        samples=3,
        forced_search=True,
    )
    answered = examination.ask(tasks, "real questions")
    contents = json.loads(json.dumps(evaluation(answered, examination, name="real", model="models/tiny-base")))
    assert notes == ["models/tiny-base carries no protocol: asked in the dialect 'sleuth'"]
    assert contents["em"]["n"] == len(tasks)
    assert len(contents["records"]) == 3 * len(tasks)
    tokenizer = examination.tokenizer
    for episode, _ in answered:
        trajectory = episode.trajectory
        assert len(trajectory.tokens) <= examination.context
        assert sum(len(segment.tokens) for segment in trajectory.segments) == len(trajectory.tokens)
        for segment in trajectory.segments:
            if segment.author != "policy" and not segment.cut:
                assert tokenizer.decode(segment.tokens) == segment.text
    assert any(episode.trajectory.passages for episode, _ in answered)
