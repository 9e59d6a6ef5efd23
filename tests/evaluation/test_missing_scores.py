"""Why scores are missing: on the console, in the file, in the records and in rollouts, with the exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chat_server import ChatServer
from verb import sleuth

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
PASSAGE = {"document": {"id": "1", "contents": '"Ada"\nAda was born in Tarn.'}, "score": 1.0}


@contextmanager
def failing(status: int, headers: dict[str, str] | None = None) -> Iterator[str]:
    """A retriever that answers the probe of a start, and every later request with `status`."""

    def answer(body: object) -> tuple[int, object]:
        return (200, {"result": [[PASSAGE]]}) if len(server.asked) == 1 else (status, {"detail": "out of order"})

    server = ChatServer(answer=answer, models=(404, {}), path="/retrieve", headers=headers or {})
    with server.running():
        yield server.url


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    rows = [{"id": str(n), "question": "Where was Ada Voss born?", "golden_answers": ["Tarn"]} for n in range(2)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "q.jsonl"


@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [
        (500, None, 'status 500: {"detail": "out of order"}'),
        (307, {"location": "http://elsewhere/retrieve"}, "redirected with status 307 to http://elsewhere/retrieve"),
    ],
)
def test_a_dead_retriever_is_explained_and_ends_with_status_1(
    questions: Path, tmp_path: Path, status: int, headers: dict[str, str] | None, reason: str
) -> None:
    out = tmp_path / "out.json"
    with failing(status, headers) as url:
        arguments = ("--questions", questions, "--retriever", url, "--forced-search", "--out", out, "--json")
        result = sleuth("eval", BASE, *arguments)
    assert result.exit_code == 1
    assert "note: 2 of 2 episodes have no score: retriever failed: no passages after" in result.stderr
    assert reason in result.stderr
    printed, written = json.loads(result.stdout), json.loads(out.read_text())
    assert printed["outcomes"] == {"retriever failed": 2}
    assert sum(printed["missing_because"].values()) == 2
    assert all(reason in why for why in written["missing_because"])
    for record in written["records"]:
        assert reason in record["note"]
        assert reason in record["actions"][-1]["failure"]
        assert record["em"] is None
