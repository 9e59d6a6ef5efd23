"""Twelve ways in which a judge fails: none becomes a zero, and each is named."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from chat_server import MODEL, Answer, ChatServer, says, scored

from sleuth.evaluation.exam_card import exam_card
from sleuth.evaluation.judge_exam import exam_paper
from sleuth.judges.exam import sit_exam
from sleuth.judges.http import HttpJudge
from sleuth.types import Case, Verdict

CASE = Case(claim="born in Tarn", evidence="Ada Voss was born in Tarn.")
TIMEOUT = 0.4
"""Seconds; the judge that hangs and the one that drips take longer."""

ANSWERS: dict[str, tuple[Answer, str]] = {
    "timeout": (lambda body: (time.sleep(2 * TIMEOUT), says(scored(2)))[1], "no answer within"),
    "status 500": (lambda body: (500, {"detail": "broken"}), "status 500"),
    "a page of HTML": (lambda body: (200, b"<html>Welcome</html>"), "an answer of another shape"),
    "JSON that was cut": (lambda body: says('{"reason": "so it is", "sco'), "should be one JSON object"),
    "NaN": (lambda body: says('{"reason": "so it is", "quote": "", "score": NaN}'), "score"),
    "wrong number of scores": (lambda body: says(scored([2, 2])), "score"),
    "another language in prose": (
        lambda body: says("Die Aussage ist belegt, volle Punktzahl."),
        "should be one JSON object",
    ),
    "flattery": (lambda body: says("What an excellent answer! Truly 2 out of 2."), "should be one JSON object"),
    "nothing": (lambda body: says(""), "it was empty"),
    "out of range": (lambda body: says(scored(7)), "score"),
}


def verdict_of(url: str) -> Verdict:
    [verdict] = asyncio.run(HttpJudge([url], MODEL, timeout=TIMEOUT).judge([CASE]))
    return verdict


@pytest.mark.parametrize("way", ANSWERS)
def test_a_failure_is_no_score_and_its_reason_is_named(way: str) -> None:
    answer, words = ANSWERS[way]
    with ChatServer(answer=answer).running() as server:
        verdict = verdict_of(server.url)
    assert verdict.score is None
    assert words in verdict.reason, verdict.reason


@contextmanager
def dripping() -> Iterator[str]:
    """A server that sends a byte of its answer every 50 ms, for ten seconds at most."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def drip(client: socket.socket) -> None:
            with client:
                client.recv(65536)
                for byte in (
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n" + b" " * 100
                ):
                    if done.wait(0.05):
                        return
                    try:
                        client.sendall(bytes([byte]))
                    except OSError:
                        return

        def accept() -> None:
            while not done.is_set():
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=drip, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        done.set()


def test_an_answer_that_drips_is_given_up_as_one_that_never_comes() -> None:
    with dripping() as url:
        began = time.monotonic()
        verdict = verdict_of(url)
        assert time.monotonic() - began < 8
    assert verdict.score is None
    assert "no answer within" in verdict.reason, verdict.reason


class AlwaysYes:
    """Pays every claim."""

    async def judge(self, cases: list[Case]) -> list[Verdict]:
        return [Verdict(score=1.0, reason="yes") for _ in cases]


def test_a_judge_that_always_says_yes_fails_the_exam_by_name() -> None:
    answers = asyncio.run(sit_exam(exam_paper(4, ["claims"]), AlwaysYes()))
    card = exam_card("always yes", answers, calls=0, seconds=0)
    assert card.skills["claims"].accuracy.value == 0.5
    assert {"number_changed (claims)", "entity_swapped (claims)", "wrong_id (claims)"} <= set(card.weak)
