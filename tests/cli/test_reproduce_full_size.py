"""`sleuth reproduce` of full-size recipes, shrunk in steps, questions and weights alone, on the servers they launch."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from real_vllm import VLLM
from served_models import counting_judge, random_policy
from verb import sleuth, write_rows

from sleuth.cli.published_rows import write_published_rows
from sleuth.data.rows import read_rows
from sleuth.retrieval.bm25 import build_index
from sleuth.runs.metrics import MetricsFile

STEPS = ("steps=2", "stop_after=2", "warmup_steps=0", "prompts_per_step=2", "samples_per_prompt=2", "probe_prompts=0")
SETS = '{suite="runs/world/sets", per_set=3}'
SEARCH = [
    *(f"grpo.{key}" for key in STEPS),
    *(f"{stage}.data={SETS}" for stage in ("base", "trained")),
    'grpo.data.questions="runs/world/nq_hotpotqa_train/train.parquet"',
    'grpo.env.index="runs/world/index"',
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
    *(f"{at}.judge=JUDGE" for at in JUDGES),
]
TAUGHT, MADE = ("self-improving", "thinking", "rlmt", "pretraining"), ("self-improving", "pretraining", "against_base")
ARMS = [
    *(f"{stage}.{key}" for stage in TAUGHT for key in ("steps=2", "warmup_steps=0")),
    *("self-improving.prompts_per_step=2", "self-improving.samples_per_prompt=4"),
    *(f"{stage}.rows_per_step=4" for stage in ("thinking", "pretraining")),
    *(f'{at}.texts="runs/world/text_train.jsonl"' for at in (*(f"{stage}.data" for stage in MADE), "annotated")),
    *(f"{stage}.data.{key}" for stage in MADE for key in ("least_tokens=48", "prefix_tokens=32", "suffix_tokens=16")),
    *("annotated.tokens=64", "annotated.limit=400"),
    'annotated.teacher={launch="vllm", command="VLLM", model="judge"}',
    *(f"{stage}.data.{key}" for stage in (*GATES, "rlmt", "thoughts") for key in ("least_before=4", "least_behind=4")),
    *(f"{stage}.data.limit=4" for stage in ("against_base", *GATES, "thoughts")),
    *(f"{stage}.{key}=1.0" for stage in GATES for key in ("max_missing_fraction", "max_no_signal_fraction")),
    *("thoughts.held_out.limit=4", "reasoning.max_tokens=64"),
    'reasoning.sets=[{layout="math_500", problems="runs/world/arithmetic_test.jsonl", limit=2}]',
    *(f"{at}.judge=JUDGE" for at in JUDGES),
]
RELEASED = [f"released.data={SETS}", *(change.replace("grpo.", "released.") for change in SEARCH if ".env." in change)]
RULES = [f"{stage}.env.prompt=research_rules" for stage in ("grpo", "released")]
SYSTEMS = {
    "search-r1-slime": [*SEARCH, "grpo.env.prompt=search_example", 'grpo.env.hint="hint.txt"'],
    "reason-over-search": [*SEARCH, *RELEASED, *RULES],  # its four runs
    "refiner-rubric": REFINER,
    "refiner-balanced": REFINER,
    "interleaved-thinking --arm companion": THINKING,
    "interleaved-thinking": ARMS,
}
SERVER = """#!{python}
import json, sys, time
sys.path.insert(0, {tests!r})
from chat_server import ChatServer, preferred, says, scored
def answer(body):
    asked, even = body["response_format"]["json_schema"]["name"], len(body["messages"][1]["content"]) % 2
    with open({asked!r}, "a") as log:
        print(asked, file=log)
    thoughts = json.dumps({{"thoughts": [{{"place": 1, "thought": "what was said before matters here"}}]}})
    said = {{"thoughts": thoughts, "pair": preferred(["first", "second"][even])}}.get(asked, scored(2 * even))
    status, reply = says(said)
    return status, reply | {{"model": body["model"]}}
with ChatServer(answer=answer, port=int(sys.argv[sys.argv.index("--port") + 1])).running():
    time.sleep(3600)
"""
"""A `vllm` that starts at once and answers by the length of a question, for the nine arms."""


@pytest.mark.servers
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_full_size_recipe_runs_to_its_table_on_the_servers_that_it_launches(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    lay_out(world, tmp_path)
    program, judge = VLLM, '{kind="http", launch="vllm", command="VLLM", model="judge", memory="1GB", seconds=300}'
    changes = ["model=small", "device=cpu", "dtype=float32", *SYSTEMS[name]]
    if changes[3:] == ARMS:
        program, tests, asked = tmp_path / "vllm", str(Path(__file__).parents[1]), str(tmp_path / "asked")
        program.write_text(SERVER.format(python=sys.executable, tests=tests, asked=asked))
        program.chmod(0o755)
    told = [text.replace("JUDGE", judge).replace("VLLM", str(program)) for text in changes]
    result = sleuth("reproduce", *name.split(), "--run", "run", *(part for text in told for part in ("--set", text)))
    assert result.exit_code == 0, result.stderr
    rows = json.loads(Path("run/reproduction.json").read_text())["rows"]
    assert rows
    assert all(row["ours"] is not None for row in rows), rows
    steps = [step for file in Path("run").rglob("metrics.jsonl") for step in MetricsFile(file).rows()]
    assert not any(step.get(f"judge_{fault}") for step in steps for fault in ("missing", "invalid"))
    if program == VLLM:
        judged = "JUDGE" in "".join(changes)
        assert any(step.get("judge_asked") for step in steps) == judged
        assert (list(Path("run").rglob("vllm-judge.log")) != []) == judged
    else:  # the teacher once for each text, and the judge in each way
        questions = Counter(Path("asked").read_text().split())
        assert questions["thoughts"] == 400
        assert questions.keys() == {"thoughts", "pair", "criterion"}


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
