"""Searches of right episodes are paid by themselves, for what they made likelier."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sleuth.recipe import load_recipe
from sleuth.runs.rollouts import read_rollouts
from sleuth.types import SleuthError

BRIEF = ("stage.0.data.limit=1", "stage.1.prompts_per_step=2", "stage.2.data.limit=1")
CREDIT = 'stage.1.credit={kind="search_gain", margin=2.0, bonus=0.5, penalty=0.25}'
FORCED = "stage.1.env.forced_search=true"  # so that there is something to credit within four steps


@pytest.fixture
def finished(finished: Callable[..., Path]) -> Callable[..., Path]:
    return partial(finished, *BRIEF)


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_right_episodes_alone_are_credited_and_only_where_they_searched(finished: Callable[..., Path]) -> None:
    folder = finished(CREDIT, FORCED).parents[1]
    credited = 0
    for file in sorted((folder / "rollouts").glob("*.parquet")):
        for group in read_rollouts(file):
            for episode, score in zip(group.episodes, group.scores, strict=True):
                segments = episode.trajectory.segments
                assert {credit.value for credit in score.credits} <= {0.5, -0.25}
                assert all(segments[credit.segment].author == "policy" for credit in score.credits)
                assert score.parts["em"] == 1 or not score.credits
                credited += len(score.credits)
    assert credited
    rows = [row for row in metrics(folder) if row["stage"] == "grpo"]
    told = [row for row in rows if row.get("search_gain") is not None]
    assert told
    assert all(0 <= row["idle_searches"] <= 1 for row in told)


def test_credit_changes_what_is_learned_and_nothing_that_was_played_before(finished: Callable[..., Path]) -> None:
    plain, paid = finished(FORCED), finished(CREDIT, FORCED)
    one, other = (read_rollouts(last.parents[1] / "rollouts" / "step-000001.parquet") for last in (plain, paid))
    assert [group.episodes for group in one] == [group.episodes for group in other]
    assert (plain / "model.safetensors").read_bytes() != (paid / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('stage.1.credit={kind="search_gain"}', "credit has no effect"),
        ('stage.1.credit={kind="search_gain", penalty=-1.0}', "stage.1.credit.penalty"),
        ('stage.1.credit={kind="passage_gain", penalty=1.0}', "stage.1.credit.kind"),
    ],
)
def test_a_credit_that_is_none_is_told_before_the_run(recipe_file: Path, change: str, said: str) -> None:
    with pytest.raises(SleuthError, match=said):
        load_recipe(recipe_file, [change])
