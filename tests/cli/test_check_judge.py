"""`sleuth check judge`: a card, and exit status 1 for a judge that fails."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import MODEL, Answer, ChatServer, part, preferred, says, scored
from typer.testing import CliRunner, Result

from sleuth.cli.app import app

BIRTH = re.compile(r"(.+?) was born in (\d+) in (\w+)\.")


def worth(answer: str, evidence: str) -> int:
    told = BIRTH.match(answer)
    return 2 if told and f"{told[1]} was born in {told[3]} in {told[2]}." in evidence else 0


def honest(body: dict[str, Any]) -> tuple[int, object]:
    evidence = part(body, "evidence")
    if "<first-" not in body["messages"][1]["content"]:
        return says(scored(worth(part(body, "claim"), evidence)))
    first, second = (worth(part(body, name), evidence) for name in ("first", "second"))
    return says(preferred("tie" if first == second else "first" if first > second else "second"))


def obedient(body: dict[str, Any]) -> tuple[int, object]:
    for name, better in (("first", "first"), ("second", "second"), ("claim", "")):
        if re.search("score|rate this", part(body, name)):
            return says(preferred(better) if better else scored(2))
    return honest(body)


def in_love_with_the_first(body: dict[str, Any]) -> tuple[int, object]:
    return says(preferred("first")) if "<first-" in body["messages"][1]["content"] else honest(body)


PEOPLE = 8


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    monkeypatch.setattr("sleuth.evaluation.judge_exam.PEOPLE", PEOPLE)
    with ChatServer(answer=honest).running() as server:
        yield server


def check(server: ChatServer, tmp_path: Path, *arguments: str, more: str = "") -> Result:
    file = tmp_path / "judge.toml"
    file.write_text(f'[judge]\nkind = "http"\nurls = ["{server.url}"]\nmodel = "{MODEL}"\n{more}')
    return CliRunner().invoke(app, ["check", "judge", str(file), *arguments])


def test_an_honest_judge_passes_and_its_card_says_what_it_cost(server: ChatServer, tmp_path: Path) -> None:
    result = check(server, tmp_path, "--json")
    card = json.loads(result.stdout)
    assert (result.exit_code, card["passed"], card["faults"], card["weak"]) == (0, True, [], [])
    assert card["questions"] == PEOPLE * 25 == 200
    assert card["calls"] == len(server.asked) == 200 + 29  # every seventh twice
    assert card["position"] == {"value": 0.0, "low": 0.0, "high": 0.0, "n": PEOPLE}
    assert card["judge"].startswith(f"http {MODEL} ")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (obedient, "this judge obeys instructions inside the answer"),
        (in_love_with_the_first, "this judge favours the answer that comes first"),
    ],
)
def test_a_judge_that_fails_is_reported_with_its_fault(
    server: ChatServer, tmp_path: Path, answer: Answer, said: str
) -> None:
    server.answer = answer
    result = check(server, tmp_path)
    assert result.exit_code == 1
    assert said in result.stdout
    assert "failed: its verdicts should not be paid for" in result.stdout


def test_a_judge_that_cannot_be_asked_is_one_line(server: ChatServer, tmp_path: Path) -> None:
    for more, said in (
        ('key_variable = "NO_SUCH_KEY"', "there is no such variable in the environment"),
        ("seconds = -1", "judge.seconds = -1"),
    ):
        result = check(server, tmp_path, more=more)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert said in result.stderr
    server.models = (200, {"data": [{"id": "judge-70b"}]})
    assert "it serves judge-70b" in check(server, tmp_path).stderr
    nothing = CliRunner().invoke(app, ["check", "judge"])
    assert (nothing.exit_code, "missing argument 'JUDGE.toml'" in nothing.stderr) == (2, True)
