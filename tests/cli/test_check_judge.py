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
SHEET_LINE = re.compile(r"(?P<number>\d+)\. \(by (?P<snippets>[^)]*)\) ?(?P<claim>.*)")


def worth(answer: str, evidence: str) -> int:
    told = BIRTH.match(answer)
    return 2 if told and f"{told[1]} was born in {told[3]} in {told[2]}." in evidence else 0


def on_a_sheet(body: dict[str, Any]) -> tuple[int, object]:
    """Checks each claim by the snippets in front of it."""
    entries = []
    for line in part(body, "claims").splitlines():
        asked = SHEET_LINE.fullmatch(line)
        assert asked is not None
        snippets = (part(body, f"snippet-{number}") for number in re.findall(r"\d+", asked["snippets"]))
        score = worth(asked["claim"], "\n\n".join(snippets))
        entries.append({"claim": int(asked["number"]), "reason": "so it is", "score": score})
    return says(json.dumps({"verdicts": entries}))


def honest(body: dict[str, Any]) -> tuple[int, object]:
    if part(body, "claims"):
        return on_a_sheet(body)
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
    assert card["questions"] == PEOPLE * (25 + 9)  # nine of them once more on a sheet
    assert card["calls"] == len(server.asked) == 200 + 29 + PEOPLE  # every seventh twice, a sheet a person
    assert card["accuracy"] == card["sheet_accuracy"] == 1.0
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


def test_a_judge_that_mixes_up_the_claims_of_a_sheet_fails(server: ChatServer, tmp_path: Path) -> None:
    def mixed_up(body: dict[str, Any]) -> tuple[int, object]:
        if not (claims := part(body, "claims").splitlines()):
            return honest(body)
        entries = [{"claim": n, "reason": "all alike", "score": 2} for n, _ in enumerate(claims, start=1)]
        return says(json.dumps({"verdicts": entries}))

    server.answer = mixed_up
    result = check(server, tmp_path)
    assert result.exit_code == 1
    assert "right about claims, each kind alike: 1.000; several in one call: 0.222" in result.stdout
    assert "negation (sheets)" in result.stdout


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
