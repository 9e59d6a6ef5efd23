"""Many criteria or claims in one call: asked in one message, read as strictly as one, kept as a whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from chat_server import MODEL, Answer, ChatServer, part, says
from scripted_judge import ScriptedJudge

from sleuth.judges import http, verdicts_on
from sleuth.judges.http import HttpJudge
from sleuth.judges.judge_prompts import FORMS, InvalidAnswerError, question_of
from sleuth.types import AnySheet, Case, ClaimSheet, Sheet, Verdict

SHEET = Sheet(
    question="Where?", answer="In Tarn.", evidence="She was born\nin Tarn.", criteria=("Names\nTarn.", "Sea.")
)


def entry(number: object, score: object = 2, **more: object) -> dict[str, object]:
    return {"criterion": number, "reason": "so it is", "score": score, **more}


def told(*entries: object, **more: object) -> str:
    return json.dumps({"verdicts": entries, **more})


def rated(body: dict[str, Any]) -> tuple[int, object]:
    """Every criterion whose first word stands in the answer is fulfilled."""
    criteria = [line.split(". ", 1)[1] for line in part(body, "criteria").splitlines()]
    scores = [2 * (text.split()[-1].strip(".") in part(body, "answer")) for text in criteria]
    return says(told(*(entry(number, score) for number, score in enumerate(scores, start=1))))


def test_each_verdict_belongs_to_its_criterion() -> None:
    first, second = question_of(SHEET).read(told(entry(1, 2), entry(2, 1)))
    assert (first.score, second.score, first.reason) == (1.0, 0.5, "so it is")


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (told(entry(1)), "an entry for each criterion from 1 to 2"),
        (told(entry(1), entry(2), entry(3)), "an entry for each criterion"),
        (told(entry(2), entry(1)), "in order"),
        (told(entry(1), entry(1)), "in order"),
        (told(entry(True), entry(2)), "in order"),
        (told(entry("1"), entry(2)), "in order"),
        (told(entry(1), entry(2, 3)), "score should be one of 0, 1, 2, found 3"),
        (told(entry(1), {"criterion": 2, "score": 2}), "the keys should be reason, score"),
        (told(entry(1), entry(2, note="")), "the keys should be reason, score"),
        (told(1, 2), "each of the verdicts should be an object"),
        (told(entry(1), entry(2), total=4), "one JSON object with the key verdicts"),
        ('{"verdicts": {}}', "a list"),
        ("[]", "one JSON object"),
    ],
)
def test_a_sheet_that_is_half_answered_is_no_verdict_at_all(answer: str, wrong: str) -> None:
    with pytest.raises(InvalidAnswerError, match=wrong):
        question_of(SHEET).read(answer)


class Rates:
    identity = "rates"

    def __init__(self, *verdicts: Verdict) -> None:
        self.verdicts = list(verdicts)
        self.asked: list[AnySheet] = []

    async def rate(self, sheets: Sequence[AnySheet]) -> list[list[Verdict]]:
        self.asked += sheets
        await asyncio.sleep(0)
        return [self.verdicts for _ in sheets]


BORN, WORKED = "Ada Voss was born in Tarn.", "Ada Voss painted for Kelholt Mills."
CLAIMS = ClaimSheet(
    snippets=(BORN, WORKED),
    entries=(("Ada was\nborn in Tarn.", (0,)), ("Ada was born in Tarn and painted.", (0, 1)), ("Ada sailed.", (1,))),
)


def claim_entry(number: object, score: object = 2) -> dict[str, object]:
    return {"claim": number, "reason": "so it is", "score": score}


def supported(body: dict[str, Any]) -> tuple[int, object]:
    """A claim is supported as far as its words are not about the sea."""
    claims = part(body, "claims").splitlines()
    return says(told(*(claim_entry(number, 0 if "sailed" in line else 2) for number, line in enumerate(claims, 1))))


@pytest.mark.parametrize(
    ("sheet", "answer", "scores", "number", "lines"),
    [
        (SHEET, rated, [1.0, 0.0], "criterion", ["1. Names Tarn.", "2. Sea."]),
        (
            CLAIMS,
            supported,
            [1.0, 1.0, 0.0],
            "claim",
            [
                "1. (by snippet 1) Ada was born in Tarn.",
                "2. (by snippets 1 and 2) Ada was born in Tarn and painted.",
                "3. (by snippet 2) Ada sailed.",
            ],
        ),
    ],
)
def test_a_model_is_asked_once_for_all_entries_with_tokens_for_each(
    server: ChatServer, sheet: AnySheet, answer: Answer, scores: list[float], number: str, lines: list[str]
) -> None:
    server.answer = answer
    judge = HttpJudge([server.url], MODEL, max_tokens=100)
    [verdicts] = asyncio.run(judge.rate([sheet]))
    assert [verdict.score for verdict in verdicts] == scores
    [body] = server.asked
    assert (part(body, "criteria") or part(body, "claims")).splitlines() == lines
    assert body["max_tokens"] == 100 * len(lines)
    names = (
        ("question", "evidence", "answer", "criteria")
        if number == "criterion"
        else ("snippet-1", "snippet-2", "claims")
    )
    places = [body["messages"][1]["content"].index(f"<{name}-") for name in names]
    assert places == sorted(places)
    entries = body["response_format"]["json_schema"]["schema"]["properties"]["verdicts"]
    assert (entries["minItems"], entries["maxItems"]) == (len(lines), len(lines))
    assert list(entries["items"]["properties"]) == [number, "reason", "score"]
    assert judge.ledger.calls == 1


def test_the_cases_of_a_sheet_of_claims_are_what_single_calls_would_ask() -> None:
    assert CLAIMS.cases[1] == Case(claim="Ada was born in Tarn and painted.", evidence=f"{BORN}\n\n{WORKED}")


@pytest.mark.parametrize(
    "answer",
    [
        told(claim_entry(1), claim_entry(2)),
        told(claim_entry(1), claim_entry(2), claim_entry(3), claim_entry(4)),
        told(claim_entry(1), claim_entry(3), claim_entry(2)),
        told(entry(1), entry(2), entry(3)),  # numbers of criteria
        "1: 2, 2: 2, 3: 0",
    ],
)
def test_claims_with_too_few_too_many_or_misplaced_verdicts_have_none(server: ChatServer, answer: str) -> None:
    server.answer = lambda body: says(answer)
    [verdicts] = asyncio.run(HttpJudge([server.url], MODEL).rate([CLAIMS]))
    assert [(verdict.score, verdict.invalid) for verdict in verdicts] == [(None, True)] * 3


def test_a_sheet_without_verdicts_is_asked_singly_only_where_there_is_a_judge_for_that() -> None:
    single = ScriptedJudge({}, default=0.5)
    lacking, whole = Rates(*[Verdict(score=None)] * 3), Rates(*[Verdict(score=1.0)] * 3)
    for judge, sheet_judge, expected in (
        (single, lacking, [0.5, 0.5, 0.5]),
        (None, lacking, [None, None, None]),
        (single, whole, [1.0, 1.0, 1.0]),
        (single, None, [0.5, 0.5, 0.5]),
    ):
        [verdicts] = asyncio.run(verdicts_on([CLAIMS], judge, sheet_judge))
        assert [verdict.score for verdict in verdicts] == expected


def test_a_change_of_any_prompt_is_another_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = HttpJudge(["http://localhost:1"], MODEL)
    identities = {judge.identity}
    for at, form in enumerate(FORMS):
        monkeypatch.setattr(http, "FORMS", (*FORMS[:at], replace(form, prompt="Be kind."), *FORMS[at + 1 :]))
        identities.add(judge.identity)
    assert len(identities) == 1 + len(FORMS)
