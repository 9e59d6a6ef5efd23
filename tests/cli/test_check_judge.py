"""`sleuth check judge`: a card, and exit status 1 for a judge that fails."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from answer_key import AnswerKey
from chat_server import MODEL, Answer, ChatServer, part, preferred, says, scored
from typer.testing import Result
from verb import sleuth

from sleuth import family
from sleuth.evaluation.judge_exam import exam_paper

PEOPLE = 8
KEY = AnswerKey(exam_paper(PEOPLE, [*family.kinds("skills")]))
honest = KEY.reply


def obedient(body: dict[str, Any]) -> tuple[int, object]:
    for name, better in (("first", "first"), ("second", "second"), ("claim", "")):
        if re.search("score|rate this", part(body, name)):
            return says(preferred(better) if better else scored(2))
    return honest(body)


def a_coin_for_pairs(body: dict[str, Any]) -> tuple[int, object]:
    coin = zlib.crc32(body["messages"][1]["content"].encode()) % 2
    return says(preferred(("first", "second")[coin])) if "<first-" in body["messages"][1]["content"] else honest(body)


def mixing_up_claims(body: dict[str, Any]) -> tuple[int, object]:
    if not (claims := part(body, "claims").splitlines()):
        return honest(body)
    entries = [{"claim": n, "reason": "all alike", "score": 2} for n, _ in enumerate(claims, start=1)]
    return says(json.dumps({"verdicts": entries}))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    monkeypatch.setattr("sleuth.evaluation.judge_exam.PEOPLE", PEOPLE)
    with ChatServer(answer=honest).running() as server:
        yield server


def check(server: ChatServer, tmp_path: Path, *arguments: str, more: str = "") -> Result:
    file = tmp_path / "judge.toml"
    file.write_text(f'[judge]\nkind = "http"\nurls = ["{server.url}"]\nmodel = "{MODEL}"\n{more}')
    return sleuth("check", "judge", file, *arguments)


def test_an_honest_judge_passes_and_its_card_says_what_it_cost(server: ChatServer, tmp_path: Path) -> None:
    result = check(server, tmp_path, "--json")
    card = json.loads(result.stdout)
    assert (result.exit_code, card["passed"], card["faults"], card["weak"]) == (0, True, [], [])
    assert card["skills"].keys() == family.kinds("skills").keys()
    assert {(mark["accuracy"]["value"], mark["accuracy"]["n"]) for mark in card["skills"].values()} == {(1.0, PEOPLE)}
    assert card["questions"] == len(KEY.paper)
    assert card["calls"] == len(server.asked) > len([question for question in KEY.paper if not question.on_sheet])
    assert card["position"] == {"value": 0.0, "low": 0.0, "high": 0.0, "n": PEOPLE}
    assert card["judge"].startswith(f"http {MODEL} ")


@pytest.mark.parametrize(
    ("answer", "more", "said"),
    [
        (obedient, "", r"obeys instructions inside the answer(.|\n)*its verdicts should not be paid for"),
        (
            mixing_up_claims,
            "",
            r"claims +1\.00 .* 8 *\n(.|\n)*claims on sheets +0\.50 .* 8 +\w[\w ]+: 0\.00(.|\n)*"
            "failed: its verdicts on claims on sheets should not be paid for",
        ),
        (
            a_coin_for_pairs,
            "least_accuracy = 0.8",
            r"below least_accuracy = 0\.8: no recipe is trained by its verdicts",
        ),
    ],
)
def test_a_judge_that_fails_is_reported_with_its_fault(
    server: ChatServer, tmp_path: Path, answer: Answer, more: str, said: str
) -> None:
    server.answer = answer
    result = check(server, tmp_path, more=more)
    assert result.exit_code == 1
    assert re.search(said, result.stdout), result.stdout


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
