"""Two ranks that train with one real vLLM make the run that one process makes with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from real_vllm import LARGEST_KL, RealVllm, running
from run_files import figures, groups
from runs_on_ranks import run_on
from test_stages_on_ranks import assert_same_run

pytestmark = pytest.mark.servers

BASE = Path(__file__).parents[3] / "models" / "tiny-base"


@pytest.fixture
def vllm(tmp_path) -> Iterator[RealVllm]:
    yield from running(BASE, tmp_path)


def test_two_ranks_with_a_real_vllm_are_the_run_of_one_process_with_it(recipes, vllm, tmp_path):
    """Token by token: a turn's seed depends on its question, sample and turn, and on no rank. vLLM's sums depend on the
    batch by about 1e-6, so that of a thousand runs one may draw another token somewhere."""
    pool = f"stage.0.engine={{ urls = ['{vllm.url}'] }}"
    alone, shared = (tmp_path / str(ranks) for ranks in (1, 2))
    for ranks, folder in ((1, alone), (2, shared)):
        run_on(ranks, recipes["grpo"], folder, pool, "stage.0.stop_after=2")
    for mine, other in zip(groups(shared), groups(alone), strict=True):
        assert [episode.sample for episode in mine.episodes] == list(range(8))
        assert [one.trajectory.tokens for one in mine.episodes] == [one.trajectory.tokens for one in other.episodes]
    rows, of_one = figures(shared), figures(alone)
    assert [row["step"] for row in rows if row["loss"]] == [1, 2], "something was learned in each step"
    assert max(abs(row["sampler_learner_kl"]) for row in rows) <= LARGEST_KL
    assert sum(row["servers_reloaded"] for row in rows) == 0
    for row in (*rows, *of_one):
        del row["turns_redrawn"]  # of busy cores: a turn that is sampled again has the same tokens
    assert_same_run(rows, of_one)
