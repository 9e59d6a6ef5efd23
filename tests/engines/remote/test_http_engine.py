"""The engine behind HTTP writes what the engine in this process writes, whatever the server speaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from emulator.model_server import ModelServer
from pools import CONTEXT, Requests, require_same_turns
from pools import asked as ask_all
from starlette.responses import JSONResponse, Response
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.remote import http_engine
from sleuth.engines.remote.http_engine import HttpEngine
from sleuth.engines.remote.server import Server, find_server
from sleuth.types import Completion, Sampling, SleuthError

KINDS = ("SGLang", "vLLM")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch) -> None:
    monkeypatch.setattr(http_engine, "PAUSES", (0.01, 0.02, 0.04, 0.05))


@contextmanager
def serving(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, kind: str, **how: object
) -> Iterator[ModelServer]:
    server = ModelServer(model=model, tokenizer=tokenizer, name="tiny", context=CONTEXT, **how)
    with server.listening(kind):
        yield server


def found(server: ModelServer) -> Server:
    return find_server(server.url, "tiny", served_as=None, tokenizer=server.tokenizer, eos_ids=server.eos_ids)[0]


def asked(server: ModelServer, requests: Requests, at_once: int = 8, place: Server | None = None) -> list[Completion]:
    """All requests side by side, through HTTP."""
    limits = {"requests_at_once": at_once, "context": CONTEXT}
    return ask_all(HttpEngine(place or found(server), server.tokenizer, eos_ids=server.eos_ids, **limits), requests)


def written_here(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, requests: Requests) -> list[Completion]:
    """The same by the engine of this process."""
    return ask_all(LocalEngine(model, tokenizer, slots=8, context=CONTEXT), requests)


def greedy(words: Callable[..., list[int]], *stops: str, tokens: int = 40) -> Requests:
    return [
        (words(9, seed), Sampling(max_tokens=tokens, temperature=0.0, stops=stops, key=(seed,))) for seed in range(6)
    ]


each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@pytest.mark.parametrize("overshoots", [(), (17, 0, 23)])
def test_greedy_turns_are_those_of_the_engine_in_this_process(model, tokenizer, words, kind, overshoots):
    """Also where the server leaves tokens behind a stop, which are dropped."""
    whole = written_here(model, tokenizer, greedy(words))
    requests = greedy(words, *{turn.text[5:8] for turn in whole} - {""})  # what it is bound to write
    with serving(model, tokenizer, kind, overshoots=overshoots) as server:
        through_http = asked(server, requests)
    expected = written_here(model, tokenizer, requests)
    assert {turn.stop for turn in expected} == {"stop"}
    require_same_turns(through_http, expected)


@each_kind
def test_a_turn_may_end_with_an_end_token_or_its_budget(make_model, tokenizer, words, kind):
    model = make_model()
    budget = written_here(model, tokenizer, greedy(words, tokens=12))
    assert {turn.stop for turn in budget} == {"length"}
    model.generation_config.eos_token_id = budget[0].tokens[4]
    requests = greedy(words, tokens=12)
    expected = written_here(model, tokenizer, requests)
    assert expected[0].stop == "eos"
    with serving(model, tokenizer, kind) as server:
        require_same_turns(asked(server, requests), expected)


def test_log_probabilities_of_another_temperature_are_dropped(model, tokenizer, words):
    requests = [(words(9), Sampling(max_tokens=6, temperature=temperature)) for temperature in (0.5, 1.0)]
    with serving(model, tokenizer, "vLLM") as server:
        cool, warm = asked(server, requests)
    assert cool.logprobs is None
    assert warm.logprobs is not None


def refused(number: int) -> Response | None:
    return JSONResponse({"error": {"message": "queue is full"}}, 503) if 1 < number < 9 else None


@each_kind
def test_a_refused_request_is_retried(model, tokenizer, words, kind):
    with serving(model, tokenizer, kind, disturbs=refused) as server:
        through_http = asked(server, greedy(words))
    require_same_turns(through_http, written_here(model, tokenizer, greedy(words)))


def test_a_turn_that_may_have_started_is_not_retried(model, tokenizer, words, monkeypatch):
    """It may have been given up because it was long: asked again, long turns would be rarer than they are."""
    monkeypatch.setattr(http_engine, "ANSWER_SECONDS", 0.2)

    def slow(number: int) -> Response | None:
        if number > 1:
            time.sleep(0.6)
        return None

    with (
        serving(model, tokenizer, "vLLM", disturbs=slow) as server,
        pytest.raises(SleuthError, match=r"gave no answer within 0.2 seconds; ask with fewer --slots"),
    ):
        asked(server, greedy(words)[:1])
    assert len(server.bodies) == 2


GIVEN_UP = {"type": "abort", "message": "input is longer than the context"}
SHORT = {"token_ids": [5, 6], "logprobs": {"token_logprobs": [0, 0]}, "finish_reason": "length"}
WORDS = {"choices": [{"token_ids": ["a"], "finish_reason": "stop"}], "text": "", "meta_info": None}
UNUSABLE = "an answer that cannot be used"


@pytest.mark.parametrize(
    ("kinds", "answer", "problem"),
    [
        (KINDS, JSONResponse({"error": {"message": "queue is full"}}, 503), "refused with 503: queue is full, 5 times"),
        (("vLLM",), JSONResponse({"choices": [SHORT]}), r"ended a turn \(length\) after 2 of 40 tokens"),
        (
            ("SGLang",),
            JSONResponse({"text": "", "meta_info": {"finish_reason": GIVEN_UP, "output_token_logprobs": []}}),
            "it gave up: input is longer than the context",
        ),
        (KINDS, Response("<html>", 200), UNUSABLE),
        (KINDS, JSONResponse({"text": "hello"}), UNUSABLE),
        (KINDS, JSONResponse([1, 2]), UNUSABLE),
        (KINDS, JSONResponse(WORDS), UNUSABLE),
    ],
)
def test_an_answer_that_is_no_turn_is_one_line(model, tokenizer, words, kinds, answer, problem):
    for kind in kinds:
        with (
            serving(model, tokenizer, kind, disturbs=lambda number: answer if number > 1 else None) as server,
            pytest.raises(SleuthError, match=problem),
        ):
            asked(server, greedy(words)[:1])


def test_weights_that_change_meanwhile_are_an_error(model, tokenizer, words):
    with (
        serving(model, tokenizer, "SGLang", weights=lambda number: "a" if number < 4 else "b") as server,
        pytest.raises(SleuthError, match="its weights changed from 'a' to 'b' meanwhile"),
    ):
        asked(server, greedy(words), at_once=1)
