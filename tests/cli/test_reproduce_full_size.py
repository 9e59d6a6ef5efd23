"""`sleuth reproduce` of full-size recipes, shrunk in steps, questions and weights alone, on the servers they launch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from real_vllm import VLLM
from small_models import counting_judge, random_policy
from verb import sleuth, write_rows

from sleuth.cli.published_rows import write_published_rows
from sleuth.data.rows import read_rows
from sleuth.retrieval.bm25 import build_index

STEPS = ("steps=2", "stop_after=2", "warmup_steps=0", "prompts_per_step=2", "samples_per_prompt=2", "probe_prompts=0")
SETS = '{suite="runs/world/sets", per_set=3}'
SEARCH = [
    *(f"grpo.{key}" for key in STEPS),
    *(f"{stage}.data={{}}" for stage in ("base", "trained")),
    *(f"{stage}.data={SETS}" for stage in ("base", "trained")),
    'grpo.data.questions="runs/world/nq_hotpotqa_train/train.parquet"',
    'grpo.env.index="runs/world/index"',
    "grpo.env.required_retriever={}",
    'grpo.env.required_retriever={kind="bm25"}',
]
ROWS = 'questions="runs/world/refiner_rl/train.jsonl", ask_with="prompt"'
REFINER = [
    *(f"grpo.{key}" for key in STEPS),
    *(f"{stage}.data={{{ROWS}, limit=3}}" for stage in ("base", "trained")),
    f'grpo.data={{{ROWS}, skip=3, limit=20, too_long="skip"}}',
    "grpo.env.turn_tokens=24",
    "grpo.engine={}",
    'grpo.engine={launch="vllm", command="VLLM", memory="1GB"}',
    *(f"grpo.reward.{at}.judge={{}}" for at in (0, 1)),
    *(f"grpo.reward.{at}.judge=JUDGE" for at in (0, 1)),
]
TEXTS = (("self-improving", "train"), ("against_base", "test"))
HELD_OUT = ("thinking.held_out", "gate.data", "gate_after.data", "thoughts.data", "thoughts.held_out")
JUDGES = (
    "self-improving.reward.0",
    "against_base",
    "gate.reward.0",
    "rlmt.reward.0",
    "gate_after.reward.0",
    "thoughts",
)
PLACES = ("least_before=8", "least_behind=1")
GATES = ("gate", "gate_after")
THINKING = [
    *(f"{stage}.{key}" for stage in ("self-improving", "rlmt") for key in STEPS if not key.startswith("probe")),
    *("thinking.steps=2", "thinking.warmup_steps=0", "thinking.rows_per_step=2"),
    *(f'{stage}.data.texts="runs/world/text_{part}.jsonl"' for stage, part in TEXTS),
    *(f"{stage}.data.{key}" for stage, _ in TEXTS for key in ("prefix_tokens=24", "suffix_tokens=16")),
    *(f"{stage}.data.least_tokens=48" for stage, _ in TEXTS),
    "against_base.data.limit=2",
    *(f'{stage}.data.texts="runs/world/companion/train.jsonl"' for stage in ("thinking", "rlmt")),
    *(f'{stage}.texts="runs/world/companion/held_out.jsonl"' for stage in HELD_OUT),
    *(f"{stage}.data.{key}" for stage in (*GATES, "rlmt", "thoughts") for key in PLACES),
    *(f"{stage}.data.limit=3" for stage in (*GATES, "thoughts")),
    *(f"{stage}.{key}=1.0" for stage in GATES for key in ("max_missing_fraction", "max_no_signal_fraction")),
    *(f"{stage}.samples=2" for stage in (*GATES, "thoughts")),
    "thoughts.held_out.limit=3",
    *(f"{at}.judge={{}}" for at in JUDGES),
    *(f"{at}.judge=JUDGE" for at in JUDGES),
]
SYSTEMS = {
    "search-r1-slime": ([], [*SEARCH, "grpo.env.prompt=search_example", 'grpo.env.hint="hint.txt"']),
    "reason-over-search": (["--arm", "rules"], [*SEARCH, "grpo.env.prompt=research_rules"]),
    "refiner-rubric": ([], REFINER),
    "refiner-balanced": ([], REFINER),
    "interleaved-thinking": (["--arm", "companion"], THINKING),
}


@pytest.mark.servers
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_full_size_recipe_runs_to_its_table_on_the_servers_that_it_launches(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    lay_out(world, tmp_path)
    arms, changes = SYSTEMS[name]
    judge = f'{{kind="http", launch="vllm", command="{VLLM}", model="judge", memory="1GB", seconds=300}}'
    common = ["model=small", "device=cpu", "dtype=float32"]
    told = [text.replace("VLLM", str(VLLM)).replace("JUDGE", judge) for text in (*common, *changes)]
    result = sleuth("reproduce", name, *arms, "--run", "run", *(part for text in told for part in ("--set", text)))
    assert result.exit_code == 0, result.stderr
    rows = json.loads(Path("run/reproduction.json").read_text())["rows"]
    assert rows
    assert all(row["ours"] is not None for row in rows), rows
    asked = sum(log.read_text().count('/v1/chat/completions HTTP/1.1" 200') for log in Path("run").rglob("*judge*.log"))
    assert (asked > 0) == ("JUDGE" in "".join(changes))


def lay_out(world: Path, place: Path) -> None:
    """The world's rows in the published layouts, its index, a policy and a judge."""
    for file in world.glob("*.jsonl"):
        (place / "runs/world").mkdir(parents=True, exist_ok=True)
        (place / "runs/world" / file.name).symlink_to(file)
    write_published_rows(place / "runs/world")
    build_index(place / "runs/world/corpus.jsonl", place / "runs/world/index")
    companion = [row for _, row in read_rows(place / "runs/world/companion/train.jsonl")]
    write_rows(place / "runs/world/companion/held_out.jsonl", companion[-40:])
    write_rows(place / "runs/world/companion/train.jsonl", companion[:-40])
    (place / "hint.txt").write_text("Try again.\n")
    random_policy(place / "small")
    counting_judge(place / "judge")
