"""A judge that fails in every way: each question ends as a score, missing or invalid, and none as a guess."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any

import pytest
from chat_server import MODEL, Answer, ChatServer, closed_url, part, right, says, scored

from sleuth.judges.factory import wait_until_served
from sleuth.judges.http import HttpJudge
from sleuth.judges.pool import same_model
from sleuth.types import Case, Pair, SleuthError, Verdict

SUPPORTED = Case(claim="born in Tarn", evidence="Ada Voss was born in Tarn.")
UNSUPPORTED = Case(claim="born in Ulm", evidence="Ada Voss was born in Tarn.")


def judged(judge: HttpJudge, *cases: Case) -> list[Verdict]:
    return asyncio.run(judge.judge(cases or (SUPPORTED,)))


def test_a_verdict_comes_with_its_reason_and_the_words_it_rests_on(server: ChatServer) -> None:
    server.answer = lambda body: says(scored(1, reason="half of it", quote="born in Tarn"))
    assert judged(HttpJudge([server.url], MODEL)) == [
        Verdict(score=0.5, reason="half of it", evidence="born in Tarn"),
    ]


def test_a_request_asks_for_a_schema_at_temperature_0_with_what_a_recipe_adds(server: ChatServer) -> None:
    judge = HttpJudge([f"{server.url}/v1/"], MODEL, extra={"top_k": 1}, key="secret")
    judged(judge)
    [body], [key] = server.asked, server.keys
    assert (body["model"], body["temperature"], body["top_k"], key) == (MODEL, 0.0, 1, "Bearer secret")
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["reason", "quote", "score"]
    assert "secret" not in judge.identity


def test_pairs_are_compared_as_given(server: ChatServer) -> None:
    pair = Pair(question="Where?", first="In Tarn it was.", second="In Ulm.")
    judge = HttpJudge([server.url], MODEL)
    assert [verdict.score for verdict in asyncio.run(judge.compare([pair, pair.swapped]))] == [1.0, 0.0]


# -- what is no verdict ----------------------------------------------------------------------------------------------


def test_what_is_no_verdict_is_asked_again_once_with_what_was_wrong(server: ChatServer) -> None:
    server.answer = lambda body: says(scored(7)) if len(body["messages"]) == 2 else right(body)
    judge = HttpJudge([server.url], MODEL)
    assert judged(judge)[0].score == 1.0
    _, again = server.asked
    assert [message["role"] for message in again["messages"]] == ["system", "user", "assistant", "user"]
    assert again["messages"][2]["content"] == scored(7)
    assert "score should be one of 0, 1, 2, found 7" in again["messages"][3]["content"]
    assert judge.ledger.calls == 2


@pytest.mark.parametrize("content", ["Full marks!", scored(5), None])
def test_two_answers_that_are_none_make_it_invalid_and_never_a_score(server: ChatServer, content: object) -> None:
    server.answer = lambda body: says(content)
    judge = HttpJudge([server.url], MODEL)
    [verdict] = judged(judge)
    assert (verdict.score, verdict.invalid) == (None, True)
    assert verdict.reason.startswith("twice no verdict: ")


def test_a_verdict_is_found_where_a_parser_of_thoughts_has_put_it(server: ChatServer) -> None:
    for answer in (
        says(None, reasoning_content=scored(2)),
        says("", reasoning=scored(2)),
        says(f"<think>hm, {scored(0)}</think>\n{scored(2)}"),
        says(scored(2), reasoning_content=scored(0)),
    ):
        server.answer = lambda body, answer=answer: answer
        assert judged(HttpJudge([server.url], MODEL))[0].score == 1.0


def test_an_answer_that_was_cut_is_called_so(server: ChatServer) -> None:
    server.answer = lambda body: (
        200,
        {"choices": [{"message": {"content": '{"reason": "as'}, "finish_reason": "length"}]},
    )
    assert "the tokens were spent before its end" in judged(HttpJudge([server.url], MODEL))[0].reason


# -- what was not answered -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda body: (500, {"detail": "broken"}), 'status 500: {"detail": "broken"}'),
        (lambda body: (200, b"<html>"), "an answer of another shape"),
        (lambda body: (200, b"[" * 100_000), "an answer of another shape"),
        (lambda body: (200, {"choices": []}), "an answer of another shape"),
        (lambda body: (200, []), "an answer of another shape"),
        (lambda body: (200, {"choices": [{"message": None}]}), "an answer of another shape"),
        (lambda body: (200, says(scored(2))[1] | {"model": "gpt-mini"}), f"answered by gpt-mini, not by {MODEL}"),
    ],
)
def test_a_failure_is_missing_after_four_attempts_and_says_why(server: ChatServer, answer: Answer, words: str) -> None:
    server.answer = answer
    judge = HttpJudge([server.url], MODEL, timeout=5)
    [verdict] = judged(judge)
    assert (verdict.score, verdict.invalid) == (None, False)
    assert words in verdict.reason
    assert (len(server.asked), judge.ledger.calls) == (4, 4)


def test_a_request_that_is_refused_is_not_repeated(server: ChatServer) -> None:
    server.answer = lambda body: (400, {"message": "too long"}) if part(body, "claim") == "long" else right(body)
    judge = HttpJudge([server.url], MODEL)
    assert judged(judge)[0].score == 1.0
    [verdict] = judged(judge, Case(claim="long", evidence=""))
    assert verdict.score is None
    assert "refused with 400" in verdict.reason
    assert len(server.asked) == 2


def test_a_server_that_takes_no_schema_is_asked_without(server: ChatServer) -> None:
    server.answer = lambda body: (400, {"message": "response_format"}) if "response_format" in body else right(body)
    judge = HttpJudge([server.url], MODEL)
    assert judged(judge)[0].score == 1.0
    assert judged(judge, UNSUPPORTED)[0].score == 0.0
    assert ["response_format" in body for body in server.asked] == [True, False, False]


def test_a_server_that_hangs_is_left_for_another(server: ChatServer) -> None:
    release = threading.Event()
    with ChatServer(answer=lambda body: (release.wait(20), right(body))[1]).running() as hanging:
        assert judged(HttpJudge([hanging.url, server.url], MODEL, timeout=0.3))[0].score == 1.0
        [verdict] = judged(HttpJudge([hanging.url], MODEL, timeout=0.1))
        assert verdict.score is None
        assert "no answer within" in verdict.reason
        release.set()


def test_a_server_that_asks_to_wait_is_waited_for(server: ChatServer) -> None:
    server.headers = {"retry-after": "1"}
    server.answer = lambda body: (429, {}) if len(server.asked) == 1 else right(body)
    started = time.monotonic()
    assert judged(HttpJudge([server.url], MODEL, timeout=5))[0].score == 1.0
    assert time.monotonic() - started >= 1.0


def test_a_judge_that_is_down_stays_unasked_and_holds_nobody_up_for_long() -> None:
    judge = HttpJudge([closed_url()], MODEL, timeout=0.1)
    started = time.monotonic()
    verdicts = judged(judge, *[SUPPORTED] * 500)
    assert all(verdict.score is None and not verdict.invalid for verdict in verdicts)
    assert judge.ledger.calls < 200
    assert time.monotonic() - started < 5


def test_a_judge_that_is_started_again_is_waited_for_longer_than_its_attempts_take(server: ChatServer) -> None:
    url = closed_url()
    again = ChatServer(port=int(url.rpartition(":")[2]))
    started, over = threading.Event(), threading.Event()

    def start_later() -> None:
        time.sleep(1.2)
        with again.running():
            started.set()
            over.wait(60)

    starting = threading.Thread(target=start_later)
    starting.start()
    try:
        judge = HttpJudge([url], MODEL, timeout=0.2, restart=30)  # four attempts take 0.8 seconds at most
        assert [verdict.score for verdict in judged(judge, SUPPORTED, *[UNSUPPORTED] * 20)] == [1, *[0] * 20]
    finally:
        over.set()
        starting.join()
    assert started.is_set()
    verdict, *_ = judged(HttpJudge([url], MODEL, timeout=0.2, restart=0.3))  # it does not come back
    assert verdict.score is None


def test_no_more_is_asked_than_the_budget(server: ChatServer) -> None:
    judge = HttpJudge([server.url], MODEL, budget=3)
    verdicts = judged(judge, *[SUPPORTED] * 5)
    assert [verdict.score for verdict in verdicts].count(1.0) == len(server.asked) == 3
    assert {verdict.reason for verdict in verdicts if verdict.score is None} == {
        "the budget of 3 calls is spent; raise `budget` for more"
    }


def test_of_many_questions_that_fail_in_every_way_none_is_lost_and_none_is_guessed(server: ChatServer) -> None:
    dice, lock = random.Random(7), threading.Lock()
    release = threading.Event()

    def unreliable(body: dict[str, Any]) -> tuple[int, object]:
        with lock:
            fate = dice.random()
        if fate < 0.05:
            return 503, {}
        if fate < 0.07:
            release.wait(20)
            return 500, {}
        if fate < 0.10:
            return says("Certainly! The claim is well supported: 2/2.")
        return says(scored(5)) if fate < 0.11 else right(body)

    server.answer = unreliable
    judge = HttpJudge([server.url], MODEL, timeout=2.0, at_once=32)
    cases = [Case(claim=f"<{number}>", evidence=f"<{number - number % 2}>") for number in range(300)]
    verdicts = judged(judge, *cases)
    release.set()
    wrong = [
        number
        for number, verdict in enumerate(verdicts)
        if verdict.score is not None and verdict.score != float(number % 2 == 0)
    ]
    assert not wrong
    assert len(verdicts) == 300
    assert sum(verdict.score is not None for verdict in verdicts) > 150
    assert judge.ledger.calls > 300


def test_what_a_verdict_depends_on_is_in_the_identity() -> None:
    plain = HttpJudge(["http://a"], MODEL)
    assert plain.identity == HttpJudge(["http://b"], MODEL, timeout=1, at_once=1, key="k").identity
    others = [HttpJudge(["http://a"], "other"), HttpJudge(["http://a"], MODEL, max_tokens=9)]
    others.append(HttpJudge(["http://a"], MODEL, extra={"seed": 1}))
    assert len({plain.identity, *(other.identity for other in others)}) == 4


# -- addresses and models --------------------------------------------------------------------------------------------


def test_a_dated_name_is_the_model_and_a_longer_name_is_another() -> None:
    assert all(
        same_model("gpt-5", told) for told in ("gpt-5", "gpt-5-2026-01-30", "gpt-5-20260130", "gpt-5-0130", None)
    )
    assert not any(same_model("gpt-5", told) for told in ("gpt-5-mini", "gpt-5.1", "gpt", "", 5))


def test_before_a_run_a_server_is_waited_for_and_its_models_are_read(server: ChatServer) -> None:
    said: list[str] = []
    server.models = (503, {})

    def say(line: str) -> None:
        said.append(line)
        server.models = (200, {"data": [{"id": MODEL}]})

    wait_until_served([server.url], MODEL, log=say, pause=0)
    assert said == [f"{server.url}/v1: loading its model"]
    with pytest.raises(SleuthError, match=r"model = 'judge-7b': .* does not serve it; it serves judge-8b"):
        wait_until_served([server.url], "judge-7b")
    server.models = (404, {"detail": "Not Found"})
    wait_until_served([server.url], "anything")
    server.models = (401, {})
    with pytest.raises(SleuthError, match="rejects the API key"):
        wait_until_served([server.url], MODEL)
    with pytest.raises(SleuthError, match="does not answer"):
        wait_until_served([closed_url()], MODEL)
