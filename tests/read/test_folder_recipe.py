"""The recipes that adapt a model to a folder of documents read its home, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from served_models import quoting_policy
from verb import sleuth, write_rows

from sleuth.answers.answer import given_answer
from sleuth.episodes.protocol import ProtocolCard
from sleuth.recipe.shipped import HOME, shipped
from sleuth.retrieval.bm25 import build_index
from sleuth.runs.rollouts import read_rollouts
from sleuth.search.dialects import QUOTING
from sleuth.world.names import words_for

TEXT = "Ada Voss was born in Tarn, a town by a lake. In 1901 she founded the brewery of Kolm, which has 40 rooms."
ASKED = (("Where was Ada Voss born?", "Tarn"), ("When did Ada Voss found the brewery of Kolm?", "1901"))
RECIPES = ("tiny/folder", "folder_0.6b_single_gpu")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """What `sleuth learn` has made before it trains."""
    passages = [{"id": "guide.md#1", "contents": f'"guide"\n{TEXT}'}, {"id": "b.md#1", "contents": '"b"\nAn inn.'}]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages))
    build_index(tmp_path / "corpus.jsonl", tmp_path / "index")
    (tmp_path / "questions").mkdir()
    for part in ("train", "test"):
        rows = [
            {
                "id": f"form:guide.md#1:{at}",
                "question": question,
                "golden_answers": [answer],
                "gold_ids": ["guide.md#1"],
                "answer_start": TEXT.index(answer),
                "type": "form",
                "document": "guide.md",
            }
            for at, (question, answer) in enumerate(ASKED)
        ]
        (tmp_path / f"questions/{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def in_home(name: str, home: Path) -> Path:
    """A recipe whose home is another one."""
    text = shipped(f"recipes/{name}.toml").read_text()
    (home / "recipe.toml").write_text(text.replace(HOME.as_posix(), home.as_posix()))
    return home / "recipe.toml"


@pytest.mark.parametrize("name", RECIPES)
def test_all_that_a_recipe_reads_is_in_the_home(name: str, home: Path) -> None:
    recipe = in_home(name, home)
    assert not re.findall(r'= "(?:runs|indexes)/', recipe.read_text())
    said = sleuth("check", "recipe", str(recipe))
    assert not [line for line in said.stderr.splitlines() if "Qwen/Qwen3-0.6B" not in line], said.stderr


def test_a_home_that_is_not_there_is_named_with_what_writes_it() -> None:
    said = sleuth("check", "recipe", "tiny/folder").stderr
    assert "no such file; `sleuth learn FOLDER --run runs/folder` writes it" in said


@pytest.mark.slow
def test_the_reader_that_ships_is_trained_on_a_home_in_its_own_protocol(home: Path, run: Callable[..., Path]) -> None:
    small = ("grpo.stop_after=1", "grpo.prompts_per_step=2", "grpo.samples_per_prompt=2")
    last = run(in_home("tiny/folder", home), home / "training", *small)
    taught, trained = (ProtocolCard.read(folder) for folder in (shipped("models/tiny-real"), last))
    assert taught is not None
    assert trained is not None
    assert (trained.dialect, trained.prompt_text, trained.context) == (
        taught.dialect,
        taught.prompt_text,
        taught.context,
    )
    assert trained.reward == taught.reward


@pytest.mark.slow
def test_the_recipe_of_a_card_rewards_what_is_quoted_and_what_is_not_in_the_documents(
    tmp_path: Path, run: Callable[..., Path]
) -> None:
    words = words_for(200)
    born = {f"{words.first[at]} {words.family[at]}": words.places[at] if at < 6 else None for at in range(8)}
    texts = [f"{name} was born in {town}" if town else f"nothing is known of {name}" for name, town in born.items()]
    write_rows(
        tmp_path / "corpus.jsonl",
        [{"id": f"{at}.md#1", "contents": f'"Page {at}"\nIn 1900, {text}.'} for at, text in enumerate(texts)],
    )
    build_index(tmp_path / "corpus.jsonl", tmp_path / "index")
    rows = [
        {"question": f"Where was {name} born?", "golden_answers": [town or "not in the documents"], "type": "one_hop"}
        for name, town in born.items()
    ]
    for part in ("train", "test"):
        write_rows(tmp_path / f"questions/{part}.jsonl", rows)
    quoting_policy(tmp_path / "small")
    run(
        in_home("folder_0.6b_single_gpu", tmp_path),
        tmp_path / "training",
        *(f'model="{tmp_path}/small"', "device=cpu", "dtype=float32"),
        *("warm_start.prompts=4", "grpo.steps=2", "grpo.prompts_per_step=8", "grpo.samples_per_prompt=4"),
        *("grpo.warmup_steps=0", "grpo.probe_prompts=0"),
    )
    evaluated = json.loads((tmp_path / "training/eval/trained.json").read_text())
    assert evaluated["em"]["value"] == 1.0
    seen = set()
    for file in (tmp_path / "training/rollouts").glob("*.parquet"):
        for group in read_rollouts(file):
            for episode, score in zip(group.episodes, group.scores, strict=True):
                answer, _ = given_answer(episode, QUOTING)
                cites = score.parts["cited_answer"]
                assert score.value == pytest.approx(0.7 + 0.2 * cites + 0.1)
                seen.add((answer == "not in the documents", cites))
    assert seen == {(False, 1.0), (False, 0.0), (True, 0.0)}
