"""A GRPO run as a whole: what it leaves, that it can be stopped, and that nothing moves it but its recipe."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from sleuth.recipe import GrpoRecipe, load_recipe
from sleuth.runs.protocol import ProtocolCard
from sleuth.runs.rollouts import read_advantages, read_rollouts
from sleuth.runs.run_folder import RunFolder
from sleuth.stages.grpo import Learner, shuffled_scores
from sleuth.stages.stage_run import StageRun
from sleuth.types import Episode, Group, Passage, RetrievalFailed, Score, SleuthError, Task, Trajectory

Run = Callable[..., Path]


def weights(checkpoint: Path) -> bytes:
    return (checkpoint / "model.safetensors").read_bytes()


def metrics(folder: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in rows]


def records(folder: Path, name: str) -> list[dict[str, object]]:
    return json.loads((folder / "eval" / f"{name}.json").read_text())["records"]


def test_a_run_leaves_a_folder_that_can_be_read_evaluated_and_continued(
    run: Run, recipe_file: Path, tmp_path: Path
) -> None:
    last = run(recipe_file, tmp_path / "run")
    assert last == tmp_path / "run" / "checkpoints" / "step-000004"
    AutoModelForCausalLM.from_pretrained(last)
    assert AutoTokenizer.from_pretrained(last).decode(AutoTokenizer.from_pretrained(last)("<search> a").input_ids)
    card = ProtocolCard.read(last)
    assert card is not None
    assert card.prompt_text == "Question: {question}\n"
    assert (last / "README.md").read_text().startswith("---")
    assert [row["step"] for row in metrics(tmp_path / "run")] == [1, 2, 3, 4]
    for name in ("base", "trained"):
        found = json.loads((tmp_path / "run" / "eval" / f"{name}.json").read_text())
        assert found["em"]["n"] == len(found["records"]) == 12


def test_what_was_sampled_is_what_is_recorded_and_the_learner_agrees_with_the_engine(
    run: Run, recipe_file: Path, tmp_path: Path
) -> None:
    run(recipe_file, tmp_path / "run")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "checkpoints" / "step-000004")
    groups = read_rollouts(tmp_path / "run" / "rollouts" / "step-000002.parquet")
    assert [len(group.episodes) for group in groups] == [4] * 4
    for group in groups:
        for episode in group.episodes:
            for segment in episode.trajectory.segments:
                sampled = segment.author == "policy"
                assert (segment.logprobs is not None) is sampled
                assert not sampled or segment.policy_version == 1
                assert tokenizer.decode(segment.tokens).startswith(segment.text)
    assert all(abs(float(str(row["mismatch_kl"]))) < 1e-9 for row in metrics(tmp_path / "run"))
    assert len(read_advantages(tmp_path / "run" / "rollouts" / "step-000002.parquet")) == 4


def test_stopped_and_continued_is_the_run_that_never_stopped(run: Run, recipe_file: Path, tmp_path: Path) -> None:
    whole = run(recipe_file, tmp_path / "whole")
    run(recipe_file, tmp_path / "parts", "stage.1.stop_after=2")
    continued = run(recipe_file, tmp_path / "parts")
    assert weights(continued) == weights(whole)
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    for step in range(1, 5):
        name = f"rollouts/step-{step:06d}.parquet"
        assert read_rollouts(tmp_path / "parts" / name) == read_rollouts(tmp_path / "whole" / name)
    assert records(tmp_path / "parts", "trained") == records(tmp_path / "whole", "trained")


SECOND_STAGE = """
[[stage]]
kind = "supervised"
name = "after"
steps = 2
rows_per_step = 2
learning_rate = 1e-4
data = {{ kind = "world_text", people = 2000, mix = {{ phrasing = 1.0 }} }}
"""


def test_a_stage_that_goes_on_sends_the_stages_after_it_back_to_their_beginning(
    run: Run, recipe_file: Path, tmp_path: Path
) -> None:
    with recipe_file.open("a") as file:
        file.write(SECOND_STAGE.format())
    whole = run(recipe_file, tmp_path / "whole")
    short = run(recipe_file, tmp_path / "parts", "stage.1.stop_after=2")
    assert run(recipe_file, tmp_path / "parts", "stage.1.stop_after=2") == short
    continued = run(recipe_file, tmp_path / "parts")
    assert weights(continued) == weights(whole)
    assert sorted(map(str, metrics(tmp_path / "parts"))) == sorted(map(str, metrics(tmp_path / "whole")))


def test_a_finished_run_is_not_run_again(run: Run, recipe_file: Path, tmp_path: Path) -> None:
    last = run(recipe_file, tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes(), weights(last)
    assert run(recipe_file, tmp_path / "run") == last
    assert ((tmp_path / "run" / "metrics.jsonl").read_bytes(), weights(last)) == before


def test_another_seed_is_another_run(run: Run, recipe_file: Path, tmp_path: Path) -> None:
    run(recipe_file, tmp_path / "one", "stage.1.stop_after=1")
    run(recipe_file, tmp_path / "other", "stage.1.stop_after=1", "seed=4")
    assert metrics(tmp_path / "one") != metrics(tmp_path / "other")


def test_groups_with_signal_move_the_weights(run: Run, recipe_file: Path, tmp_path: Path) -> None:
    run(recipe_file, tmp_path / "run")
    rows = metrics(tmp_path / "run")
    moved = [float(str(row["changed_weights_fraction"])) for row in rows if float(str(row["signal_fraction"])) > 0]
    assert moved
    assert min(moved) > 0.5


class Broken:
    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        raise RetrievalFailed("the shelf is on fire")


def test_a_retriever_that_fails_stops_the_run_with_the_reason_and_never_scores_zero(
    recipe_file: Path, tmp_path: Path
) -> None:
    recipe = load_recipe(recipe_file, ["stage.1.max_missing_fraction=0.0"])
    stage = recipe.stage[1]
    assert isinstance(stage, GrpoRecipe)
    with RunFolder.open(tmp_path / "run", recipe) as folder:
        learner = Learner(stage, StageRun(recipe=recipe, index=1, folder=folder, model=recipe.model), None)
        learner.setting = dataclasses.replace(learner.setting, retriever=Broken())
        with pytest.raises(SleuthError, match=r"\d+ of 16 scores are missing \(retriever failed\)"):
            learner.step(1)


def test_shuffled_scores_are_the_same_scores_on_other_episodes() -> None:
    task = Task(id="q", question="?", golden_answers=("x",))
    episodes = tuple(Episode(task=task, sample=i, trajectories=(Trajectory(segments=()),)) for i in range(4))
    groups = [
        Group(task=task, episodes=episodes, scores=tuple(Score(value=float(4 * g + i)) for i in range(4)))
        for g in range(8)
    ]
    dealt = shuffled_scores(groups, key=(0, 1, 2))
    before = [score.value for group in groups for score in group.scores]
    after = [score.value for group in dealt for score in group.scores]
    assert sorted(map(float, after)) == before
    assert after != before
    assert shuffled_scores(groups, key=(0, 1, 2)) == dealt
