"""Self-improving pretraining: what is in a pool, what is preferred, and what is counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_server import MODEL, ChatServer, part, preferred, says
from safetensors.torch import load_file

from sleuth.cli.pipeline import require_inputs
from sleuth.recipe import load_recipe
from sleuth.runs.rollouts import read_rollouts
from sleuth.think.comparisons import continuation
from sleuth.think.world_texts import CarelessTexts
from sleuth.types import Group, SleuthError

Run = Callable[..., Path]
ROOT = Path(__file__).parents[2]

RECIPE = """
name = "prefers"
model = "{model}"
seed = 3

[[stage]]
kind = "online_dpo"
steps = 4
prompts_per_step = 4
samples_per_prompt = 3
learning_rate = 1e-3
save_every = 2
stops = ["."]
data = {{ kind = "text", texts = "{texts}", suffix_tokens = 6, limit = 12 }}
reward = [{{ kind = "pairwise", judge = "ending" }}]

[[stage]]
kind = "win_rate"
name = "against_base"
judge = "ending"
stops = ["."]
data = {{ kind = "text", texts = "{held_out}", suffix_tokens = 6 }}
"""


def write_texts(file: Path, split: Any, count: int) -> Path:
    texts = CarelessTexts(200, split, (0,))
    rows = [(f"{split}-{number}", texts.text(number)) for number in range(count)]
    file.write_text(
        "".join(
            json.dumps({"id": id_, "text": t.text, "cut": len(t.beginning), "golden_answers": [t.answer]}) + "\n"
            for id_, t in rows
        )
    )
    return file


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "prefers.toml"
    file.write_text(
        RECIPE.format(
            model=ROOT / "models" / "tiny-base",
            texts=write_texts(tmp_path / "train.jsonl", "train", 12),
            held_out=write_texts(tmp_path / "test.jsonl", "test", 8),
        )
    )
    return file


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "model.safetensors")


def test_a_pool_holds_the_policys_own_and_the_original_and_the_best_is_preferred_to_the_worst(
    run: Run, recipe: Path, tmp_path: Path
) -> None:
    run(recipe, tmp_path / "run")
    row = rows_of(tmp_path / "run")[0]
    groups = read_rollouts(tmp_path / "run" / "rollouts" / "step-000001.parquet")
    pairs = 0
    for group in groups:
        authors = [episode.trajectory.segments[-1].author for episode in group.episodes]
        assert authors == ["policy"] * 3 + ["source"]
        assert {episode.trajectory.segments[0].text for episode in group.episodes} == {group.task.question}
        assert group.episodes[-1].trajectory.segments[-1].text == group.task.reference
        pairs += len({score.value for score in group.scores}) > 1
    assert row["nonzero_advantage_fraction"] == pairs / len(groups)
    assert row["nonzero_advantage_fraction"] + row["ties"] + row["dropped"] == pytest.approx(1)
    assert row["judged_by"] == "ending, round_robin, orders=both"
    assert {"margin", "accuracy", "chosen_gain", "rejected_gain", "chosen_over_original"} <= row.keys()


@pytest.mark.sentinel
def test_n_steps_and_then_m_are_the_same_bytes_as_all_of_them(run: Run, recipe: Path, tmp_path: Path) -> None:
    whole = run(recipe, tmp_path / "whole")
    run(recipe, tmp_path / "parts", "stage.0.stop_after=2")
    resumed = run(recipe, tmp_path / "parts")
    ours, theirs = weights(whole), weights(resumed)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    drop = {"seconds_rollout", "seconds_update"}
    for one, other in zip(rows_of(tmp_path / "whole"), rows_of(tmp_path / "parts"), strict=True):
        assert {k: v for k, v in one.items() if k not in drop} == {k: v for k, v in other.items() if k not in drop}


def test_held_out_prefixes_are_continued_by_both_models_and_compared(run: Run, recipe: Path, tmp_path: Path) -> None:
    last = run(recipe, tmp_path / "run")
    found = json.loads((tmp_path / "run" / "eval" / "against_base.json").read_text())
    assert found["wins"] + found["ties"] + found["losses"] + found["no_verdict"] == 8
    assert found["win_rate"].keys() == {"value", "low", "high", "n"}
    assert (Path(found["model"]).name, found["against"]) == (last.name, str(ROOT / "models" / "tiny-base"))
    for record in found["records"]:
        golden = record["golden_answers"][0].split()
        sentences = [record[side].strip().split(".")[0].split() for side in ("ours", "theirs")]
        right = [sentence[-len(golden) :] == golden for sentence in sentences]
        assert record["score"] == (1 + right[0] - right[1]) / 2
    assert "| against_base | win_rate |" in (last / "README.md").read_text()


# -- control arms ------------------------------------------------------------------------------------------------------


def test_continued_pretraining_plays_and_judges_nothing(run: Run, recipe: Path, tmp_path: Path) -> None:
    run(recipe, tmp_path / "run", 'stage.0.loss.kind="original_nll"')
    row = rows_of(tmp_path / "run")[0]
    assert row["judged_by"] == "nobody"
    assert "ties" not in row
    assert "margin" not in row
    assert not list((tmp_path / "run" / "rollouts").glob("*.parquet"))
    texts = CarelessTexts(200, "train", (0,))
    assert row["tokens_trained"] <= 4 * 6
    assert row["loss"] > 0
    assert texts.text(0).ending


def test_continued_pretraining_needs_no_judge_to_be_there(run: Run, recipe: Path, tmp_path: Path) -> None:
    gone = "stage.0.reward=[{kind='pairwise', judge={kind='http', urls=['http://127.0.0.1:9'], model='gone'}}]"
    run(recipe, tmp_path / "run", 'stage.0.loss.kind="original_nll"', gone, "stage.0.steps=1")
    [row] = rows_of(tmp_path / "run")
    assert row["judged_by"] == "nobody"


def test_winner_nll_learns_the_best_alone(run: Run, recipe: Path, tmp_path: Path) -> None:
    run(recipe, tmp_path / "run", 'stage.0.loss.kind="winner_nll"', "stage.0.steps=1")
    [row] = rows_of(tmp_path / "run")
    groups = read_rollouts(tmp_path / "run" / "rollouts" / "step-000001.parquet")
    assert "margin" not in row
    best, worst = (sums_of_tokens(groups, end) for end in (max, min))
    assert row["tokens_trained"] in best - worst


def sums_of_tokens(groups: Sequence[Group], end: Callable[..., float]) -> set[int]:
    """Possible numbers of tokens of the continuations with the best or the worst score, one of each pool that has
    several scores; among equal ones any may be drawn."""
    pools = [
        [(score.value, len(continuation(one).tokens)) for score, one in zip(group.scores, group.episodes, strict=True)]
        for group in groups
    ]
    drawn = [
        {count for value, count in pool if value == end(value for value, _ in pool)}
        for pool in pools
        if len({value for value, _ in pool}) > 1
    ]
    return {sum(counts) for counts in product(*drawn)}


# -- what is dropped ---------------------------------------------------------------------------------------------------


def test_where_every_pool_ties_there_is_no_update(run: Run, recipe: Path, tmp_path: Path) -> None:
    """Of one text alone: the policy is greedy and the text's own suffix is what it would write."""
    texts = tmp_path / "train.jsonl"
    rows = [json.loads(line) for line in texts.read_text().splitlines()]
    for row in rows:
        row["golden_answers"] = ["nobody writes this"]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    last = run(recipe, tmp_path / "run", "stage.0.steps=1")
    [row] = rows_of(tmp_path / "run")
    assert (row["ties"], row["loss"], row["margin"], row["tokens_trained"]) == (1.0, None, None, 0)
    before, after = weights(ROOT / "models" / "tiny-base"), weights(last)
    assert all(torch.equal(before[name], after[name]) for name in before)


def longer(body: dict[str, Any]) -> tuple[int, object]:
    first, second = part(body, "first"), part(body, "second")
    return says(preferred("first" if len(first) > len(second) else "second" if len(first) < len(second) else "tie"))


def test_a_model_that_judges_is_asked_in_both_orders_and_never_about_equal_texts(
    run: Run, recipe: Path, tmp_path: Path
) -> None:
    with ChatServer(answer=longer).running() as server:
        judge = f"{{kind='pairwise', judge={{kind='http', urls=['{server.url}'], model='{MODEL}'}}}}"
        run(recipe, tmp_path / "run", f"stage.0.reward=[{judge}]", "stage.0.steps=1")
        asked = [body for body in server.asked]
    [row] = rows_of(tmp_path / "run")
    pairs = [(part(body, "first"), part(body, "second")) for body in asked]
    assert all(one != other for one, other in pairs)
    assert {(one, other) for one, other in pairs} == {(other, one) for one, other in pairs}
    assert row["judge_asked"] == len(asked)
    assert (row["judge_missing"], row["judge_invalid"]) == (0, 0)


def test_a_judge_that_is_out_drops_pools_and_ends_the_run_before_anything_is_guessed(
    run: Run, recipe: Path, tmp_path: Path
) -> None:
    with ChatServer(answer=lambda body: says("no verdict at all")).running() as server:
        judge = f"{{kind='pairwise', judge={{kind='http', urls=['{server.url}'], model='{MODEL}'}}}}"
        with pytest.raises(SleuthError, match="pools lack verdicts"):
            run(recipe, tmp_path / "run", f"stage.0.reward=[{judge}]", "stage.0.steps=1")
    assert not (tmp_path / "run" / "metrics.jsonl").exists() or not rows_of(tmp_path / "run")


# -- what is refused before the first step -----------------------------------------------------------------------------


def test_texts_without_a_right_ending_are_no_texts_for_a_judge_of_endings(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"id": "d", "text": " Ada was born in Tarn.", "cut": 16}\n')
    with pytest.raises(SleuthError, match=r"stage\.0 .*no golden_answers"):
        require_inputs(load_recipe(recipe))


def test_a_window_that_the_model_cannot_hold_is_refused(recipe: Path) -> None:
    with pytest.raises(SleuthError, match="positions of the model"):
        require_inputs(load_recipe(recipe, ["stage.0.data.prefix_tokens=4000"]))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stage.0.samples_per_prompt=0", "leaves the original as the only candidate"),
        ("stage.0.loss.beta=0.0", "beta"),
        ("stage.0.reward=[{kind='pairwise'}]", "judge"),
        ("stage.0.sampling.top_p=0.9", "samples from the whole vocabulary"),
        ("stage.0.reward=[{kind='pairwise', judge={kind='ending', flip=0.5}}]", "flip"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_key(recipe: Path, override: str, said: str) -> None:
    with pytest.raises(SleuthError, match=said):
        load_recipe(recipe, [override])


def test_a_function_of_the_user_may_rank_the_pool(run: Run, recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "own_ranks.py").write_text("def length(episode): return len(episode.trajectory.segments[-1].text)\n")
    override = "stage.0.reward=[{ kind = 'python', function = 'own_ranks:length' }]"
    run(recipe, tmp_path / "run", override, "stage.0.stop_after=1")
    [row] = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert row["judged_by"] == "own_ranks:length"
    [group, *_] = read_rollouts(tmp_path / "run" / "rollouts" / "step-000001.parquet")
    for episode, score in zip(group.episodes, group.scores, strict=True):
        assert score.value == len(episode.trajectory.segments[-1].text)
    assert list(json.loads((tmp_path / "run" / "manifest.json").read_text())["sources"]["online_dpo"]) == [
        "own_ranks.py"
    ]
    (tmp_path / "own_ranks.py").write_text("def length(episode): return episode.trajectory.segments[9]\n")
    with pytest.raises(SleuthError, match=r"own_ranks[.]py:1: length: IndexError: tuple index out of range"):
        require_inputs(load_recipe(recipe, [override]))


def test_tokens_that_a_stage_adds_are_refused_before_it_trains_where_a_win_rate_needs_those_of_the_base(
    recipe: Path,
) -> None:
    added = """
[[stage]]
kind = "supervised"
steps = 1
rows_per_step = 1
learning_rate = 1e-3
tokens = ["<new>"]
data = { kind = "world_text", people = 20, mix = { reading = 1.0 } }

"""
    text = recipe.read_text()
    require_inputs(load_recipe(recipe))
    recipe.write_text(text.replace('[[stage]]\nkind = "win_rate"', added + '[[stage]]\nkind = "win_rate"'))
    with pytest.raises(SleuthError) as caught:
        require_inputs(load_recipe(recipe))
    assert str(caught.value).startswith("stage.2 (against_base): the run's model and ")
    assert "have different tokenizers: their prefixes would not be the same" in str(caught.value)
