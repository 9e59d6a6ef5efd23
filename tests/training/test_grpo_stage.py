"""A GRPO run as a whole: what it leaves, that it can be stopped, and that nothing moves it but its recipe."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from run_files import evaluation, figures, groups, log, manifest, weights
from safetensors.torch import load_file
from small_stages import SECOND_STAGE
from transformers import AutoModelForCausalLM, AutoTokenizer

from sleuth.dialect import DIALECTS
from sleuth.episodes.protocol import ProtocolCard
from sleuth.judges.factory import JudgePool
from sleuth.recipe import GrpoRecipe, load_recipe
from sleuth.runs.rollouts import read_advantages
from sleuth.runs.run_folder import RunFolder
from sleuth.training.grpo import GRPOTrainer
from sleuth.training.stage_context import StageContext
from sleuth.types import (
    UNKNOWN_RETRIEVER,
    Group,
    Passage,
    RetrievalFailed,
    Score,
    SleuthError,
    Task,
)

ROOT = Path(__file__).parents[2]
FEW = ("stage.1.prompts_per_step=2", "stage.1.samples_per_prompt=4")
BRIEF = (*FEW, "stage.0.data.limit=1", "stage.1.env.turn_tokens=12", "stage.2.data.limit=1")
"""Where it is all the same what is played."""


def test_a_run_leaves_a_folder_that_can_be_read_evaluated_and_continued(run, recipe_file, tmp_path):
    folder = tmp_path / "run"
    last = run(recipe_file, folder, "stage.1.probe_prompts=4", *FEW)
    assert last == folder / "checkpoints" / "step-000004"
    AutoModelForCausalLM.from_pretrained(last)
    assert AutoTokenizer.from_pretrained(last).decode(AutoTokenizer.from_pretrained(last)("<search> a").input_ids)
    card, bm25 = ProtocolCard.read(last), {"kind": "bm25", "k1": 1.2, "b": 0.75}
    assert card is not None
    assert (card.prompt_text, card.context) == ("Question: {question}\n", 400)
    assert card.dialect == dataclasses.replace(DIALECTS["sleuth"], turn_tokens=14)
    readme = (last / "README.md").read_text()
    assert readme.startswith("---")
    assert '| `retriever.kind` | `"bm25"` |' in readme
    assert [row["step"] for row in figures(folder)] == [1, 2, 3, 4]
    for name in ("base", "trained"):
        found = evaluation(folder, name)
        assert found["em"]["n"] == len(found["records"]) == 4
        assert found["protocol"]["retriever"] == bm25
    assert manifest(folder)["retrievers"] == {"grpo": bm25}
    assert json.loads((last / "protocol.json").read_text())["retriever"] == bm25
    assert all(planned["memory_bytes"] > 10**8 for planned in manifest(folder)["planned"].values())


@pytest.mark.sentinel
def test_what_was_sampled_is_what_is_recorded_and_the_learner_agrees_with_the_engine(finished):
    last = finished()
    tokenizer, folder = AutoTokenizer.from_pretrained(last), last.parents[1]
    played = groups(folder, 2)
    assert [len(group.episodes) for group in played] == [8] * 4
    for group in played:
        for episode in group.episodes:
            for segment in episode.trajectory.segments:
                sampled = segment.author == "policy"
                assert (segment.logprobs is not None) is sampled
                assert not sampled or segment.policy_version == 1
                assert tokenizer.decode(segment.tokens).startswith(segment.text)
    measured = [row["sampler_learner_kl"] for row in figures(folder) if row["loss"] is not None]
    assert measured
    assert max(map(abs, measured)) < 1e-9
    assert len(read_advantages(folder / "rollouts" / "step-000002.parquet")) == 4


@pytest.mark.sentinel
def test_stopped_and_continued_is_the_run_that_never_stopped(run, finished, recipe_file, tmp_path):
    whole = finished()
    shutil.copytree(finished("stage.1.stop_after=2").parents[1], tmp_path / "parts")
    continued = run(recipe_file, tmp_path / "parts")
    assert weights(continued) == weights(whole)
    assert figures(tmp_path / "parts") == figures(whole.parents[1])
    assert groups(tmp_path / "parts") == groups(whole.parents[1])
    parts, together = (evaluation(folder, "trained") for folder in (tmp_path / "parts", whole.parents[1]))
    assert parts["records"] == together["records"]


def test_a_step_that_is_played_again_finds_what_its_servers_found_before(run, recipe_file, tmp_path, monkeypatch):
    """The retriever answers otherwise at each call. The run is killed after step 2, and its last checkpoint is of step
    1."""
    asked: list[str] = []

    class Fickle:
        def __init__(self, urls: Sequence[str], seconds: float) -> None: ...

        async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
            asked.extend(queries)
            return [[Passage(id=f"{len(asked)}", title="Ada", text=f"born {len(asked)}")] for _ in queries]

    monkeypatch.setattr("sleuth.search.setting.Remote", Fickle)
    monkeypatch.setattr("sleuth.search.setting.wait_until_ready", lambda urls, log: (None, UNKNOWN_RETRIEVER))
    env = "kind='search', dialect='sleuth', prompt='plain', retriever='remote', turn_tokens=20"
    env += ", urls=['http://127.0.0.1:1']"
    overrides = [f"stage.1.env={{ {env} }}", "stage.1.steps=2", "stage.1.save_every=1", *FEW]
    overrides += ["stage.0.data.limit=1", "stage.2.data.limit=1", "stage.1.loss.old_logprobs=learner"]
    folder = tmp_path / "run"
    before, made = weights(run(recipe_file, folder, *overrides)), len(asked)
    played = groups(folder, 2)
    assert any(action.passages for group in played for episode in group.episodes for action in episode.whole.actions)
    shutil.rmtree(folder / "checkpoints/step-000002")
    (folder / "eval/trained.json").unlink()
    assert weights(run(recipe_file, folder, *overrides)) == before
    assert groups(folder, 2) == played
    assert len(asked) - made < 4  # those of the one question that the evaluation asks again


def test_questions_that_are_too_long_are_skipped_also_where_a_run_goes_on(run, recipe_file, world, tmp_path):
    rows = (world / "qa_train.jsonl").read_text().splitlines(keepends=True)[:5]
    long = json.dumps(json.loads(rows[0]) | {"id": "long", "question": "Where was Ada born? " * 100}) + "\n"
    (tmp_path / "fitting.jsonl").write_text("".join(rows))
    (tmp_path / "all.jsonl").write_text("".join([*rows[:2], long, *rows[2:]]))
    small = [*BRIEF, "grpo.steps=2", "grpo.save_every=1"]
    skipping = [*small, f"grpo.data.questions={tmp_path}/all.jsonl", "grpo.data.too_long=skip"]
    run(recipe_file, tmp_path / "skipping", *skipping, "grpo.stop_after=1")
    last = run(recipe_file, tmp_path / "skipping", *skipping)
    other = run(recipe_file, tmp_path / "fitting", *small, f"grpo.data.questions={tmp_path}/fitting.jsonl")
    assert weights(last) == weights(other)
    assert manifest(tmp_path / "skipping")["skipped"] == {"grpo": {"rows": 1, "of": 6, "first": ["long"]}}


def test_a_stage_that_goes_on_sends_the_stages_after_it_back_to_their_beginning(run, recipe_file, tmp_path):
    with recipe_file.open("a") as file:
        file.write(SECOND_STAGE)
    whole = run(recipe_file, tmp_path / "whole", *BRIEF)
    short = run(recipe_file, tmp_path / "parts", *BRIEF, "stage.1.stop_after=2")
    assert run(recipe_file, tmp_path / "parts", *BRIEF, "stage.1.stop_after=2") == short
    continued = run(recipe_file, tmp_path / "parts", *BRIEF)
    assert weights(continued) == weights(whole)
    assert sorted(map(str, figures(tmp_path / "parts"))) == sorted(map(str, figures(tmp_path / "whole")))


def test_groups_with_signal_move_the_weights(finished):
    rows = figures(finished().parents[1])
    moved = [row["changed_weights_fraction"] for row in rows if row["nonzero_advantage_fraction"] > 0]
    assert moved
    assert min(moved) > 0.5


# -- one step by itself ------------------------------------------------------------------------------------------------


@contextmanager
def learning(recipe_file: Path, folder: Path, *overrides: str) -> Iterator[GRPOTrainer]:
    """The learner of the recipe's `grpo` stage, before its first step."""
    recipe = load_recipe(recipe_file, overrides)
    stage = recipe.stage[1]
    assert isinstance(stage, GrpoRecipe)
    with RunFolder.open(folder, recipe) as place:
        context = StageContext(recipe=recipe, index=1, folder=place, model=recipe.model)
        with JudgePool(place.verdicts) as judge_pool:
            yield GRPOTrainer(stage, context, None, judge_pool)


def learned(trainer: GRPOTrainer) -> list[torch.Tensor]:
    """Every weight, and every moment of the optimiser."""
    moments = [
        moment
        for part in trainer.policy.optimiser.parts.values()
        for of_weight in part.state.values()
        for moment in of_weight.values()
    ]
    return [*trainer.model.state_dict().values(), *moments]


class ByQuestion:
    """Pays the first `right` siblings of a question; no more is known of any."""

    def __init__(self, right: Callable[[Task], int]) -> None:
        self.right = right

    async def __call__(self, group: Group) -> list[Score]:
        return [Score(value=float(episode.sample < self.right(group.task)), note="paid") for episode in group.episodes]


class Missing:
    """No verdict on any sibling but the first."""

    async def __call__(self, group: Group) -> list[Score]:
        return [Score(value=None if e.sample else 1.0, note="judge asleep") for e in group.episodes]


class Broken:
    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        raise RetrievalFailed("the shelf is on fire")


def test_what_fails_stops_the_run_with_the_reason_and_never_scores_zero(recipe_file, tmp_path):
    with learning(recipe_file, tmp_path / "retriever", "stage.1.max_missing_fraction=0.0") as trainer:
        trainer.worker.setting = dataclasses.replace(trainer.worker.setting, retriever=Broken())
        with pytest.raises(SleuthError, match=r"\d+ of 32 scores are missing \(retriever failed: the shelf is"):
            trainer.step(1)
    with learning(recipe_file, tmp_path / "judge", "stage.1.max_missing_fraction=1.0") as trainer:
        trainer.worker.reward = Missing()
        expected = r"28 of 32 scores are missing \(judge asleep\), so that no group keeps the 2 scores"
        with pytest.raises(SleuthError, match=expected):
            trainer.step(1)


def test_a_step_without_signal_leaves_weights_momentum_and_schedule_alone(recipe_file, tmp_path):
    with learning(recipe_file, tmp_path / "run") as trainer:
        trainer.worker.reward = ByQuestion(lambda task: 4)
        assert trainer.step(1)["changed_weights_fraction"] > 0.5
        before = copy.deepcopy(learned(trainer))
        trainer.worker.reward = ByQuestion(lambda task: 8)
        found = trainer.step(2)
        after = learned(trainer)
    assert len(before) > len(list(trainer.model.parameters()))
    assert all(torch.equal(was, now) for was, now in zip(before, after, strict=True))
    assert trainer.policy.optimiser.steps == 1
    assert (found["reward_mean"], found["nonzero_advantage_fraction"], found["loss"]) == (1.0, 0.0, None)
    assert (found["changed_weights_fraction"], found["tokens_trained"]) == (0, 0)
    assert len(groups(tmp_path / "run", 2)) == 4


def test_a_step_without_signal_is_said_on_the_console_and_in_the_log(run, recipe_file, tmp_path, capsys):
    unanswerable = tmp_path / "q.jsonl"
    row = {"id": "1", "question": "Where?", "golden_answers": ["no model would ever say this"]}
    unanswerable.write_text(json.dumps(row) + "\n")
    last = run(recipe_file, tmp_path / "run", *BRIEF, f"stage.1.data.questions={unanswerable}", "stage.1.stop_after=2")
    told = "step 2: in no group do the scores differ, so there was nothing to learn and no update"
    assert told in capsys.readouterr().err
    assert told in log(tmp_path / "run")
    assert [(row["loss"], row["reward_mean"]) for row in figures(tmp_path / "run")] == [(None, 0.0)] * 2
    base, trained = load_file(ROOT / "models/tiny-base/model.safetensors"), load_file(last / "model.safetensors")
    assert all(torch.equal(base[name].float(), trained[name]) for name in base)


def test_groups_without_signal_make_room_and_stay_on_record_as_they_were_played(recipe_file, tmp_path):
    with learning(
        recipe_file, tmp_path / "run", "stage.1.replace_no_signal=2", "stage.1.prompts_per_step=2"
    ) as trainer:
        asked = [task.id for task in trainer.worker.order.peek(5)]
        useful = {asked[1], asked[3]}  # of the first two, one is replaced by the third, that one by the fourth
        trainer.worker.reward = ByQuestion(lambda task: 4 if task.id in useful else 0)
        found = trainer.step(1)
    played = groups(tmp_path / "run", 1)
    advantages = read_advantages(tmp_path / "run" / "rollouts" / "step-000001.parquet")
    assert [group.task.id for group in played] == asked[:4]
    assert [set(of_group) for of_group in advantages] == [{None}, {1.0, -1.0}, {None}, {1.0, -1.0}]
    assert all(len(group.scores) == 8 for group in played)
    assert (found["replaced_groups"], found["dropped_groups"], found["nonzero_advantage_fraction"]) == (2, 0, 0.5)
    assert found["reward_mean"] == 0.25
    trained = [e.trajectory for group in played if group.task.id in useful for e in group.episodes]
    written = sum(len(s.tokens) for trajectory in trained for s in trajectory.segments if s.author == "policy")
    assert found["tokens_trained"] == written


@pytest.mark.parametrize(("old", "share"), [("learner", None), ("sampler", 0.0)])
def test_a_share_of_clipped_tokens_is_claimed_only_where_a_bound_could_have_acted(recipe_file, tmp_path, old, share):
    with learning(recipe_file, tmp_path / "run", f"stage.1.loss.old_logprobs={old}") as trainer:
        trainer.worker.reward = ByQuestion(lambda task: 4)
        found = trainer.step(1)
    assert (found["clip_fraction"], found["old_logprobs"]) == (share, old)
