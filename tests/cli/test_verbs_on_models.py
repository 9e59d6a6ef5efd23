"""Every verb that takes a model takes every kind of one, or refuses it in one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from verb import sleuth

from sleuth.cli import serve

pytest.importorskip("peft")
pytest.importorskip("gguf")
MODELS = Path(__file__).parents[2] / "models"
BRIEF = ("stage.1.stop_after=2", "stage.1.probe_prompts=0", "stage.0.data.limit=1", "stage.2.data.limit=1")
LORA = "stage.1.lora={ rank = 4, alpha = 8.0 }"
KINDS = ("tiny-base", "tiny-reader", "tiny-real", "plain", "run", "lora", "merged")
VERBS = ("eval", "probe", "serve", "merge", "export", "check", "init", "train")
REFUSED = {"export": "llama.cpp would split texts into other tokens"}
"""What a verb says that takes none of the tiny models but `TAKEN`."""
TAKEN = "tiny-real"


@pytest.fixture
def model(request: pytest.FixtureRequest, finished: Callable[..., Path], tmp_path: Path) -> Path:
    kind = request.param
    if kind.startswith("tiny"):
        return MODELS / kind
    if kind == "plain":
        shutil.copytree(MODELS / "tiny-base", tmp_path / kind, ignore=shutil.ignore_patterns("README.md", "chat*"))
        return tmp_path / kind
    if kind == "merged":
        assert sleuth("merge", finished(*BRIEF), tmp_path / kind, "--dtype", "bfloat16").exit_code == 0
        return tmp_path / kind
    return finished(*BRIEF, *{"run": (), "lora": (LORA,)}[kind])


@pytest.mark.parametrize("model", KINDS, indirect=True)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_takes_a_model_or_refuses_it_in_one_line(
    verb: str, model: Path, world: Path, recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "run", lambda server, listening: listening.close())  # as if it were stopped at once
    questions = ("--questions", world / "qa_test.jsonl")
    index = ("--index", world / "index")
    recipe = (recipe_file, "--run", tmp_path / "new", *(part for one in BRIEF for part in ("--set", one)))
    arguments = {
        "eval": (model, *questions, *index, "--limit", 1),
        "probe": (model, *questions, *index, "--limit", 1),
        "serve": (model, *index, "--port", 0),
        "merge": (model, tmp_path / "out"),
        "export": (model, "--gguf", "--out", tmp_path / "model.gguf"),
        "check": ("model", model),
        "init": (tmp_path / "project", "--model", model, "--corpus", world / "corpus.jsonl", *questions),
        "train": (*recipe, "--set", f'model="{model}"'),
    }
    ended = sleuth(verb, *arguments[verb])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    lines = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    if verb not in REFUSED or model.name == TAKEN:
        assert ended.exit_code == 0, ended.output
    else:
        assert ended.exit_code == 2
        assert len(lines) == 1
        assert REFUSED[verb] in lines[0]
