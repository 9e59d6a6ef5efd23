"""Self-improving pretraining: what is in a pool, what is preferred, what is counted, and who wins afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from chat_server import MODEL, ChatServer, part, preferred, says
from continuations import (
    BASE,
    first_groups,
    metrics_of,
    require_the_same_after_a_stop,
    same_weights,
    write_careless,
    write_rows,
)
from refusals import refused
from verb import sleuth

from sleuth.cli.pipeline import require_inputs
from sleuth.evaluation.intervals import wilson
from sleuth.recipe import load_recipe
from sleuth.think.comparisons import continuation
from sleuth.think.win_rate import win_rate
from sleuth.types import Group, SleuthError, Verdict

Run = Callable[..., Path]
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


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "prefers.toml"
    texts, held_out = (
        write_careless(tmp_path / "train.jsonl", "train", 12),
        write_careless(tmp_path / "test.jsonl", "test", 8),
    )
    file.write_text(RECIPE.format(model=BASE, texts=texts, held_out=held_out))
    return file


def test_a_pool_holds_the_policys_own_and_the_original_and_the_best_is_preferred_to_the_worst(
    run: Run, recipe: Path, tmp_path: Path
) -> None:
    last = run(recipe, tmp_path / "run")
    row, groups = metrics_of(tmp_path / "run")[0], first_groups(tmp_path / "run")
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

    found = json.loads((tmp_path / "run" / "eval" / "against_base.json").read_text())
    assert found["wins"] + found["ties"] + found["losses"] + found["no_verdict"] == 8
    assert (Path(found["model"]).name, found["against"]) == (last.name, str(BASE))
    for record in found["records"]:
        golden = record["golden_answers"][0].split()
        sentences = [record[side].strip().split(".")[0].split() for side in ("ours", "theirs")]
        right = [sentence[-len(golden) :] == golden for sentence in sentences]
        assert record["score"] == (1 + right[0] - right[1]) / 2
    card = (last / "README.md").read_text()
    assert "| figure | against_base | n |" in card
    assert "| Continuations that are preferred | " in card


@pytest.mark.sentinel
def test_n_steps_and_then_m_are_the_same_bytes_as_all_of_them(run: Run, recipe: Path, tmp_path: Path) -> None:
    require_the_same_after_a_stop(run, recipe, tmp_path)


def judged_by_http(url: str) -> str:
    return f"stage.0.reward=[{{kind='pairwise', judge={{kind='http', urls=['{url}'], model='{MODEL}'}}}}]"


def test_continued_pretraining_plays_nothing_and_needs_no_judge(run: Run, recipe: Path, tmp_path: Path) -> None:
    gone = judged_by_http("http://127.0.0.1:9")
    run(recipe, tmp_path / "run", 'stage.0.loss.kind="original_nll"', gone, "stage.0.steps=1")
    [row] = metrics_of(tmp_path / "run")
    assert (row["judged_by"], "ties" in row, "margin" in row) == ("nobody", False, False)
    assert not list((tmp_path / "run" / "rollouts").glob("*.parquet"))
    assert row["tokens_trained"] <= 4 * 6
    assert row["loss"] > 0


def test_winner_nll_learns_the_best_alone(run: Run, recipe: Path, tmp_path: Path) -> None:
    run(recipe, tmp_path / "run", 'stage.0.loss.kind="winner_nll"', "stage.0.steps=1")
    [row] = metrics_of(tmp_path / "run")
    assert "margin" not in row
    best, worst = (sums_of_tokens(first_groups(tmp_path / "run"), end) for end in (max, min))
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


def test_where_every_pool_ties_there_is_no_update(run: Run, recipe: Path, tmp_path: Path) -> None:
    texts = tmp_path / "train.jsonl"
    rows = [json.loads(line) for line in texts.read_text().splitlines()]
    write_rows(texts, (row | {"golden_answers": ["nobody writes this"]} for row in rows))
    last = run(recipe, tmp_path / "run", "stage.0.steps=1")
    [row] = metrics_of(tmp_path / "run")
    assert (row["ties"], row["loss"], row["margin"], row["tokens_trained"]) == (1.0, None, None, 0)
    assert same_weights(BASE, last)


def longer(body: dict[str, Any]) -> tuple[int, object]:
    first, second = part(body, "first"), part(body, "second")
    return says(preferred("first" if len(first) > len(second) else "second" if len(first) < len(second) else "tie"))


def test_a_model_that_judges_is_asked_in_both_orders_and_never_about_equal_texts(
    run: Run, recipe: Path, tmp_path: Path
) -> None:
    with ChatServer(answer=longer).running() as server:
        run(recipe, tmp_path / "run", judged_by_http(server.url), "stage.0.steps=1")
    [row] = metrics_of(tmp_path / "run")
    pairs = {(part(body, "first"), part(body, "second")) for body in server.asked}
    assert all(one != other for one, other in pairs)
    assert pairs == {(other, one) for one, other in pairs}
    assert (row["judge_asked"], row["judge_missing"], row["judge_invalid"]) == (len(server.asked), 0, 0)


def test_a_judge_that_is_out_drops_pools_and_ends_the_run_before_anything_is_guessed(
    run: Run, recipe: Path, tmp_path: Path
) -> None:
    silent = ChatServer(answer=lambda body: says("no verdict at all"))
    with silent.running() as server, pytest.raises(SleuthError, match="pools lack verdicts"):
        run(recipe, tmp_path / "run", judged_by_http(server.url), "stage.0.steps=1")
    assert not (tmp_path / "run" / "metrics.jsonl").exists() or not metrics_of(tmp_path / "run")


def test_a_function_of_the_user_may_rank_the_pool(run: Run, recipe: Path, tmp_path: Path) -> None:
    own = tmp_path / "own_ranks.py"
    own.write_text("def length(episode): return len(episode.trajectory.segments[-1].text)\n")
    override = "stage.0.reward=[{ kind = 'python', function = 'own_ranks:length' }]"
    run(recipe, tmp_path / "run", override, "stage.0.stop_after=1")
    [row] = metrics_of(tmp_path / "run")
    assert row["judged_by"] == "own_ranks:length"
    [group, *_] = first_groups(tmp_path / "run")
    lengths = [len(episode.trajectory.segments[-1].text) for episode in group.episodes]
    assert [score.value for score in group.scores] == lengths
    sources = json.loads((tmp_path / "run" / "manifest.json").read_text())["sources"]
    assert [*sources["online_dpo"]] == ["own_ranks.py"]
    own.write_text("def length(episode): return episode.trajectory.segments[9]\n")
    assert "own_ranks.py:1: length: IndexError: tuple index out of range" in refused(recipe, override)


# -- what is refused before the first step -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stage.0.data.prefix_tokens=4000", "positions of the model"),
        ("stage.0.samples_per_prompt=0", "leaves the original as the only candidate"),
        ("stage.0.loss.beta=0.0", "beta"),
        ("stage.0.reward=[{kind='pairwise'}]", "judge"),
        ("stage.0.sampling.top_p=0.9", "samples from the whole vocabulary"),
        ("stage.0.reward=[{kind='pairwise', judge={kind='ending', flip=0.5}}]", "flip"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_key(recipe: Path, override: str, said: str) -> None:
    assert said in refused(recipe, override)


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
    reason = refused(recipe)
    assert reason.startswith("stage.2 (against_base): the run's model and ")
    assert "have different tokenizers: their prefixes would not be the same" in reason


# -- the win rate ------------------------------------------------------------------------------------------------------


def verdicts(*scores: float | None) -> list[Verdict]:
    return [Verdict(score=score) for score in scores]


def test_ties_are_halves_of_the_rate_and_no_part_of_the_sign_test() -> None:
    found = win_rate(verdicts(*[1.0] * 9, 0.0, *[0.5] * 4))
    counts = {"wins": 9, "ties": 4, "losses": 1, "no_verdict": 0, "p": 22 / 1024}
    assert found == {"win_rate": wilson(11, 14).as_json(), **counts}


def test_a_model_ties_with_itself_and_the_file_has_every_pair(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = sleuth("win-rate", BASE, recipe, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["win_rate"]["value"] == 0.5
    assert (figures["wins"], figures["ties"], figures["losses"], figures["p"]) == (0, 8, 0, 1.0)
    assert "records" not in figures
    records = json.loads(out.read_text())["records"]
    assert [record["ours"] for record in records] == [record["theirs"] for record in records]
    assert len(records) == 8
    table = sleuth("win-rate", BASE, recipe).stdout
    for word in ("win_rate", "right_gain", "ties 8", "judged by ending", "sign test"):
        assert word in table
