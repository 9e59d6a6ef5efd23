"""From public questions to a trained refiner, by the commands of docs/tutorials/refiner.md and a recipe that ships."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import MODEL, ChatServer, part, says, scored
from typer.testing import CliRunner

from sleuth.cli.app import app
from sleuth.data.questions import load_questions
from sleuth.judges.lexical import LexicalJudge
from sleuth.types import Case

MODELS = Path(__file__).parents[2] / "models"
BASE, READER = MODELS / "tiny-base", MODELS / "tiny-reader"
STUDENT = """
name = "student"
model = "{model}"

[[stage]]
kind = "supervised"
steps = 40
rows_per_step = 2
learning_rate = 3e-3
tokens = ["<snippet id=", "</snippet>", "<tool_output>", "</tool_output>"]
data = {{ kind = "rows", questions = "extracted.jsonl" }}
env = {{ kind = "refine", prompt = "bare", turn_tokens = 60 }}
"""
SMALL = """
extends = "refiner_4b_rubric.toml"
name = "small"
model = "{model}"
dtype = "float32"
without = ["grpo.engine"]

[set]
"stage.0.data.limit" = 1
"stage.2.data.limit" = 1
"stage.4.data.limit" = 1
"stage.1.steps" = 1
"stage.1.warmup_steps" = 0
"stage.1.rows_per_step" = 2
"stage.3.steps" = 1
"stage.3.stop_after" = 1
"stage.3.prompts_per_step" = 2
"stage.3.samples_per_prompt" = 2
"stage.3.slots" = 8
"stage.3.context" = 1024
"stage.3.env.turn_tokens" = 60
# it knows no criteria but those of the teacher here
"stage.3.reward.0.judge" = {{ kind = "http", urls = ["{url}"], model = "{judge}", least_accuracy = 0.01 }}
"stage.3.reward.1.judge" = {{ kind = "http", urls = ["{url}"], model = "{judge}", least_accuracy = 0.01 }}
"""


def lexical(body: dict[str, Any]) -> tuple[int, object]:
    """A teacher who wants what the good answer says, and a judge that compares words."""
    if wanted := part(body, "criterion"):
        return says(scored(2 * (wanted.removeprefix("Says: ") in part(body, "answer"))))
    if criteria := part(body, "criteria"):
        said = [line.rpartition("Says: ")[2] in part(body, "answer") for line in criteria.splitlines()]
        entries = [{"criterion": at, "reason": "so", "score": 2 * one} for at, one in enumerate(said, start=1)]
        return says(json.dumps({"verdicts": entries}))
    if claims := part(body, "claims"):
        cases = []
        for line in claims.splitlines():
            named, _, claim = line.partition(") ")
            snippets = [part(body, f"snippet-{number}") for number in re.findall(r"\d+", named)[1:]]
            cases.append(Case(claim=claim, evidence="\n\n".join(snippets)))
        verdicts = asyncio.run(LexicalJudge().judge(cases))
        entries = [
            {"claim": number, "reason": "so", "score": round(2 * (verdict.score or 0))}
            for number, verdict in enumerate(verdicts, start=1)
        ]
        return says(json.dumps({"verdicts": entries}))
    if good := part(body, "good_answer"):
        wanted = {"title": "The fact", "description": f"Says: {good.split('>')[-3].split('<')[0].strip()}"}
        return says(json.dumps({"positive_rubrics": [wanted], "negative_rubrics": []}))
    case = Case(question=part(body, "question"), evidence=part(body, "evidence"), claim=part(body, "claim"))
    [verdict] = asyncio.run(LexicalJudge().judge([case]))
    return says(scored(round(2 * (verdict.score or 0))))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(answer=lexical).running() as server:
        yield server


def sleuth(*arguments: object) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, f"{arguments}: {result.output}"
    return result.output


def a_refiner_for(rows: Path) -> Path:
    """A model that learned by heart to answer these rows with the first snippet that has a golden answer: what a
    teacher of another size does unaided."""
    with Path("extracted.jsonl").open("w") as out:
        for task, line in zip(load_questions(rows), rows.read_text().splitlines(), strict=True):
            assert task.evidence is not None
            telling = [s for s in task.evidence.snippets if any(gold in s.text for gold in task.golden_answers)]
            snippet = [*telling, *task.evidence.snippets][0]
            answer = f"<answer><snippet id={snippet.id}>{snippet.text.partition(' | ')[2]}</snippet></answer>"
            out.write(json.dumps(json.loads(line) | {"answer": answer}) + "\n")
    Path("student.toml").write_text(STUDENT.format(model=READER))
    sleuth("train", "student.toml", "--run", "student")
    return Path("student/checkpoints/step-000040")


def test_questions_become_a_trained_refiner(
    world: Path, server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = f'urls = ["{server.url}"]\nmodel = "{MODEL}"\n'
    Path("teacher.toml").write_text(f"[teacher]\n{told}")
    Path("judge.toml").write_text(f'[judge]\nkind = "http"\n{told}')
    searches, accepted, train = (Path(f"refiner/{name}.jsonl") for name in ("searches", "accepted", "train"))

    agent = ("eval", BASE, "--prompt", "plain", "--forced-search", "--index", world / "index")
    sleuth(*agent, "--questions", world / "qa_train.jsonl", "--limit", 6, "--rows", searches)
    sleuth(*agent, "--questions", world / "qa_test.jsonl", "--limit", 4, "--rows", "refiner/test.jsonl")
    refiner = a_refiner_for(searches)
    sleuth("eval", refiner, "--questions", searches, "--judge", "judge.toml", "--rows", accepted)
    sleuth("annotate", "rubrics", accepted, "--teacher", "teacher.toml", "--judge", "judge.toml", "--out", train)
    for file in (searches, accepted, train):
        assert load_questions(file)
        assert file.name in file.with_suffix(".md").read_text()
    assert f"by the judge `http {MODEL}" in train.with_suffix(".md").read_text()
    assert f"claims judged by | `http {MODEL}" in accepted.with_suffix(".md").read_text()
    assert all(task.rubrics and task.reference for task in load_questions(train))
    sleuth("check", "data", train, "--against", "refiner/test.jsonl")

    hybrid = shutil.copytree(BASE, Path("hybrid"))  # whose template has the flag that the recipe sets
    with (hybrid / "chat_template.jinja").open("a") as template:
        template.write("{% if enable_thinking %}{% endif %}")
    small = Path("small.toml")
    small.write_text(SMALL.format(model=hybrid, url=server.url, judge=MODEL))
    sleuth("train", small, "--run", "run")
    assert json.loads(Path("run/eval/trained.json").read_text())["records"]
    steps = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert {"rubric", "citation_f1"} <= steps[-1].keys()
