"""The inspect-ai task of `examples/`, where inspect-ai is installed, against the tiny model in the generated world."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from listening import listening
from small_agents import app_of
from verb import sleuth

from sleuth.evaluation.eval_session import open_eval_session
from sleuth.serve.agent import agent_of

ROOT = Path(__file__).parents[3]
QUESTIONS = 40  # of which the untrained model answers three


@pytest.mark.slow
def test_inspect_ai_finds_what_sleuth_eval_finds(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inspect_ai = pytest.importorskip("inspect_ai", reason="pip install inspect-ai openai")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SERVED_API_KEY", "none")
    rows = [json.loads(line) for line in (world / "qa_test.jsonl").read_text().splitlines()[:QUESTIONS]]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model, index = ROOT / "models" / "tiny-base", world / "index"
    session, _ = open_eval_session(str(model), [], index=index)
    with listening(app_of(agent_of(session, "tiny", index), conversations=40)) as url:
        [log] = inspect_ai.eval(
            "examples/inspect_search.py",
            model="openai-api/served/tiny",
            model_base_url=f"{url}/v1",
            task_args={"questions": str(tmp_path / "q.jsonl")},
            log_dir=str(tmp_path / "logs"),
            display="none",
        )
    assert log.status == "success", log.error
    found = sleuth("eval", model, "--questions", tmp_path / "q.jsonl", "--index", index, "--json")
    em = json.loads(found.stdout)["em"]["value"]
    right = [sample for sample in log.samples if sample.scores["exact"].value == "C"]
    assert len(right) / QUESTIONS == em > 0
