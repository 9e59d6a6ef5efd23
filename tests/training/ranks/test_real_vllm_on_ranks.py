"""Two ranks that train with one real vLLM make the run that one process makes with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import on_ranks
from real_vllm import LARGEST_KL, RealVllm, running
from run_files import figures, groups
from runs_on_ranks import run_on
from sending import published
from test_stages_on_ranks import assert_same_run

from sleuth.render import encode, load_tokenizer
from sleuth.types import Sampling

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


@pytest.mark.parametrize("lora", [False, True])
def test_a_real_vllm_has_the_weights_that_two_ranks_gave_it_in_buckets(vllm, tmp_path, lora):
    """Those of the second of two updates, of which no rank had more than a bucket and its shard."""
    if lora:
        pytest.importorskip("peft")
    tokenizer = load_tokenizer(str(BASE))
    prompts = [encode(tokenizer, text) for text in ("Where was Ada born?", "The river", "A city in the north", "1847")]
    requests = [
        (tokens, Sampling(max_tokens=24, temperature=1.0, key=(0, 0, 1, at, sample, 0)))
        for at, tokens in enumerate(prompts)
        for sample in range(4)
    ]
    (turns, ours, lines), _ = on_ranks(2, published, [vllm.url], tmp_path / "weights", requests, {"lora": lora})
    assert {turn.policy_version for turn in turns} == {2}
    assert sum(len(turn.tokens) for turn in turns) > 100
    for turn, expected in zip(turns, ours, strict=True):
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)
    assert not any("without" in line for line in lines)
    assert len(list((max((tmp_path / "weights").glob("000002-*"))).glob("*.safetensors"))) > 3
