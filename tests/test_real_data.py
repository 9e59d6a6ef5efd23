"""The tiny model on real questions and passages: it knows no English, but nothing may break."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sleuth.data.questions import load_questions
from sleuth.evaluation.eval_session import open_eval_session
from sleuth.evaluation.evaluate import evaluation
from sleuth.learn.models import random_model
from sleuth.recipe import InitRecipe
from sleuth.render import load_tokenizer
from sleuth.retrieval.bm25 import build_index
from sleuth.runs.rollouts import read_rollouts, write_rollouts
from sleuth.types import Group

ROOT = Path(__file__).parents[1]
BASE = ROOT / "models" / "tiny-base"
DATA = ROOT.parent / "shared" / "data"
UNTRAINED = InitRecipe(layers=1, width=16, heads=1, kv_heads=1, head_dim=16, mlp=16, context=1024)
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the real data is not on this machine")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real") / "index"
    build_index(DATA / "corpus.jsonl.gz", folder)
    return folder


@pytest.fixture(params=["base", "untrained"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "base":
        return BASE
    tokenizer = load_tokenizer(str(BASE))
    random_model(UNTRAINED, tokenizer, seed=0).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_real_questions_give_complete_records_that_account_for_every_token(
    model: Path, index: Path, tmp_path: Path
) -> None:
    tasks = load_questions(DATA / "qa_test.jsonl")[:12]
    session, notes = open_eval_session(str(model), tasks, index=index, samples=3, forced_search=True)
    answered = session.ask(tasks, "real questions")
    contents = json.loads(json.dumps(evaluation(answered, session, name="real", model=str(model))))
    assert notes == [f"{model} carries no protocol: asked in the dialect 'sleuth'"]
    assert contents["em"]["n"] == len(tasks)
    assert len(contents["records"]) == 3 * len(tasks)
    tokenizer = session.tokenizer
    for (episode, _), record in zip(answered, contents["records"], strict=True):
        trajectory = episode.trajectory
        assert len(trajectory.tokens) <= session.context
        assert sum(segment["tokens"] for segment in record["segments"]) == len(trajectory.tokens)
        for segment in trajectory.segments:
            written = tokenizer.decode(segment.tokens)
            assert written.startswith(segment.text)
            assert segment.author == "policy" or written == segment.text
    groups = [Group(task=episode.task, episodes=(episode,), scores=(score,)) for episode, score in answered]
    write_rollouts(tmp_path / "real.parquet", groups, [[None]] * len(groups))
    assert read_rollouts(tmp_path / "real.parquet") == groups
    assert model != BASE or any(episode.trajectory.passages for episode, _ in answered)
