"""The API over HTTP: its shapes, its limits and its refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hostile import ANY_JSON
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from listening import listening
from small_agents import PacedEngine, Shelf, agent, app_of, client_of, diligent, refused
from starlette.testclient import TestClient

from sleuth.types import Sampling

QUESTION = {"messages": [{"role": "user", "content": "Where was Ada Voss born?"}]}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of(app_of(agent())) as client:
        yield client


def asked(client: TestClient, **options: Any) -> dict[str, Any]:
    answer = client.post("/v1/chat/completions", json=QUESTION | options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(client: TestClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream, which ends as it should."""
    answer = client.post(path, json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done, nothing = answer.text.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


# -- chat --------------------------------------------------------------------------------------------------------------


def test_the_content_is_the_answer_alone_with_searches_and_citations_beside_it(client: TestClient) -> None:
    body = asked(client)
    assert body.keys() == {"id", "object", "created", "model", "choices", "usage", "sleuth"}
    choice = body["choices"][0]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Tarn",
        "reasoning_content": "I look for Ada.\nIt says Tarn.",
    }
    assert (choice["finish_reason"], body["model"]) == ("stop", "tiny")
    [search] = body["sleuth"]["searches"]
    assert search["query"] == "Ada Voss"
    assert search["passages"][0] == {
        "id": "17",
        "title": "Ada Voss",
        "text": "Ada Voss was born in Tarn.",
        "score": 2.5,
    }
    assert body["sleuth"]["citations"] == [
        {"id": "17", "title": "Ada Voss", "sentence": {"begin": 0, "stop": 26}, "text": "Ada Voss was born in Tarn."},
        {"id": "4", "title": "Tarn", "sentence": {"begin": 0, "stop": 32}, "text": "Tarn <b>is</b> a town by a lake."},
    ]
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]


def test_a_stream_adds_up_to_the_answer_that_is_not_streamed(client: TestClient) -> None:
    whole = asked(client)
    chunks = streamed(client, "/v1/chat/completions", QUESTION | {"stream_options": {"include_usage": True}})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    added = {key: "".join(delta.get(key) or "" for delta in deltas) for key in ("role", "content", "reasoning_content")}
    assert added == whole["choices"][0]["message"]
    told = [chunk["sleuth"] for chunk in chunks if "sleuth" in chunk]
    searches = [{key: of[key] for key in ("query", "passages")} for of in told if of["kind"] == "search"]
    assert searches == whole["sleuth"]["searches"]
    assert told[-1] == {"kind": "end", "stop": "answered", "citations": whole["sleuth"]["citations"]}
    assert "".join(of["text"] for of in told if of["kind"] == "draft").strip() == "Tarn"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]][-1] == "stop"
    assert chunks[-1]["usage"] == whole["usage"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert not any("usage" in chunk for chunk in streamed(client, "/v1/chat/completions", QUESTION))


def test_the_last_message_of_the_user_is_the_question_also_in_parts() -> None:
    seen: list[str] = []

    def watch(text: str, sampling: Sampling) -> str:
        seen.append(text)
        return diligent(text, sampling)

    parts = [{"type": "text", "text": "Where"}, {"type": "text", "text": "was Ada?"}]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who is Ada?"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": parts},
    ]
    with client_of(app_of(agent(watch))) as client:
        asked(client, messages=messages)
    assert seen[0] == "Question: Where\nwas Ada?\n"


def test_a_retriever_that_failed_is_503_or_the_last_event_never_an_empty_answer() -> None:
    with client_of(app_of(agent(shelf=Shelf(fails=True)))) as client:
        answer = client.post("/v1/chat/completions", json=QUESTION)
        assert (answer.status_code, refused(answer)) == (503, "the retriever did not answer; ask again later")
        *_, last = streamed(client, "/v1/chat/completions", QUESTION)
        assert last["error"]["message"] == "the retriever did not answer; ask again later"


def test_sampling_at_a_temperature_is_repeatable_by_seed() -> None:
    keys: list[tuple[int, ...]] = []

    def watch(text: str, sampling: Sampling) -> str:
        keys.append((*sampling.key, int(10 * sampling.temperature)))
        return "<answer>Tarn</answer>"

    with client_of(app_of(agent(watch))) as client:
        for options in ({"seed": 7, "temperature": 0.5}, {"seed": 7, "temperature": 0.5}, {}, {}):
            asked(client, **options)
        asked(client, seed=-(10**30))  # of any size
    assert keys[0] == keys[1] == (1, 7, 0, 5)
    assert keys[2] != keys[3]
    assert keys[2][-1] == 0  # greedy unless it is said
    assert keys[4][:2] == (1, -(10**30))


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"messages": []}, "messages: List should have at least 1 item after validation, not 0"),
        (
            {"messages": [{"role": "system", "content": "x"}]},
            "messages: expected a message of the role user, with the question",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content: Input should be text, or a list of parts of the type text",
        ),
        ({"temperature": 3}, "temperature: Input should be less than or equal to 2"),
        ({"n": 2}, "n: not supported here; leave it out"),
        ({"tools": [{"type": "function"}]}, "tools: not supported here; leave it out"),
        ({"logprobs": True}, "logprobs: not supported here; leave it out"),
    ],
)
def test_what_is_wrong_or_not_supported_is_400_and_named(client: TestClient, change: dict[str, Any], line: str) -> None:
    answer = client.post("/v1/chat/completions", json=QUESTION | change)
    assert (answer.status_code, refused(answer)) == (400, line)
    assert answer.json()["error"]["param"] == next(iter(change))
    neutral = {"n": 1, "top_p": 1.0, "tools": [], "logprobs": False, "response_format": {"type": "text"}, "stop": None}
    assert asked(client, **neutral)["choices"][0]["message"]["content"] == "Tarn"


def test_another_model_is_not_found(client: TestClient) -> None:
    answer = client.post("/v1/chat/completions", json=QUESTION | {"model": "gpt"})
    assert (answer.status_code, refused(answer)) == (404, "model: there is no 'gpt' here; there is 'tiny'")
    assert asked(client, model="tiny")
    assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"


def test_no_other_page_may_read_or_frame_anything(client: TestClient) -> None:
    for path in ("/", "/v1/models", "/health"):
        answer = client.get(path, headers={"origin": "http://evil.example"})
        assert "access-control-allow-origin" not in answer.headers
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert client.options("/v1/chat/completions", headers={"origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_of_another_content_type_is_refused(client: TestClient, kind: str) -> None:
    body = json.dumps(QUESTION).encode()
    answer = client.post("/v1/chat/completions", content=body, headers={"content-type": kind})
    assert (answer.status_code, refused(answer)) == (415, "content-type: expected application/json")


def test_errors_of_other_paths_methods_and_bodies_have_the_same_format(client: TestClient) -> None:
    assert refused(client.get("/v1/nowhere")) == "Not Found"
    answer = client.get("/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"], refused(answer)) == (405, "POST", "Method Not Allowed")
    for body in (b"{", b"[]", b"\xff", b"[" * 100_000):
        answer = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, bool(refused(answer))) == (400, True), body[:9]


# -- who is let in -----------------------------------------------------------------------------------------------------


def together(client: TestClient, count: int) -> list[Any]:
    """The answers to so many questions at once."""
    answers: list[Any] = [None] * count

    def ask(at: int) -> None:
        answers[at] = client.post("/v1/chat/completions", json=QUESTION)

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return answers


def test_a_request_over_the_limit_is_refused_until_another_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sleuth.serve.chat_app.OTHER_REQUESTS", 0)
    with client_of(app_of(agent(seconds=0.02), conversations=1, waiting=2)) as client:
        answers = together(client, 9)
        away = [answer for answer in answers if answer.status_code != 200]
        assert 1 <= len(away) <= 6
        for answer in away:
            assert (answer.status_code, refused(answer)) == (503, "3 requests are running; retry later")
            assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
        assert asked(client)


def test_waiting_and_running_have_timeouts_with_one_line_errors() -> None:
    served = agent(seconds=0.05)
    with client_of(app_of(served, conversations=1, waiting=8, seconds=0.3)) as client:
        answers = together(client, 3)
        lines = sorted((answer.status_code, refused(answer)) for answer in answers)
        assert (504, "no end within 0.3 seconds; ask for less") in lines
        assert (503, "no slot was free within 0.3 seconds; retry later") in lines
        *_, last = streamed(client, "/v1/chat/completions", QUESTION)
        assert last["error"]["message"] == "no end within 0.3 seconds; ask for less"
    assert isinstance(served.engine, PacedEngine)
    assert served.engine.running == 0


def test_an_engine_that_failed_is_one_line_and_the_next_is_answered() -> None:
    def moody(text: str, sampling: Sampling) -> str:
        if "fail" in text:
            raise RuntimeError("the weights\nhave diverged")
        return "<answer>Tarn</answer>"

    with client_of(app_of(agent(moody))) as client:
        answer = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "fail"}]})
        assert (answer.status_code, refused(answer)) == (503, "the engine failed: the weights have diverged")
        assert asked(client)
        assert client.get("/health").json() == {"status": "ready", "model": "tiny", "conversations": 0, "waiting": 0}


def test_health_is_answered_however_many_requests_run_unless_it_has_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sleuth.serve.chat_app.OTHER_REQUESTS", 0)
    with client_of(app_of(agent(), conversations=0, waiting=0)) as client:
        assert client.get("/v1/models").status_code == 503
        assert client.get("/health").status_code == 200


# -- the client that people use ----------------------------------------------------------------------------------------


def test_the_openai_client_reads_answers_streams_and_errors() -> None:
    openai = pytest.importorskip("openai", reason="`make test` installs the client")
    with (
        listening(app_of(agent())) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, _strict_response_validation=True) as client,
    ):
        asked = {"model": "tiny", **QUESTION}
        answer = client.chat.completions.create(**asked)
        assert answer.choices[0].message.content == "Tarn"
        assert answer.model_extra["sleuth"]["searches"][0]["query"] == "Ada Voss"
        chunks = list(client.chat.completions.create(**asked, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Tarn"
        with pytest.raises(openai.BadRequestError, match="stop: not supported here") as caught:
            client.chat.completions.create(**asked, stop=["x"])
        assert caught.value.param == "stop"
        with pytest.raises(openai.NotFoundError, match="there is no 'gpt' here"):
            client.chat.completions.create(**asked | {"model": "gpt"})
        with pytest.raises(openai.NotFoundError, match="asked by POST /v1/chat/completions"):
            client.responses.create(model="tiny", input="Where was Ada Voss born?")
        assert [model.id for model in client.models.list()] == ["tiny"]


# -- whatever is sent --------------------------------------------------------------------------------------------------

FIELDS = (
    "messages", "model", "stream", "temperature", "seed", "max_tokens", "stop", "n", "logprobs", "tools",
    "stream_options", "top_p", "response_format",
)  # fmt: skip
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": st.text(max_size=30) | ANY_JSON}),
    max_size=3,
)
NEAR = st.dictionaries(st.sampled_from(FIELDS), ANY_JSON | st.integers(-2, 40) | st.text(max_size=9), max_size=4)
BODIES = st.builds(lambda more, messages: {"messages": messages} | more, NEAR, MESSAGES)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODIES | ANY_JSON)
def test_no_json_breaks_the_server_and_every_answer_has_its_fields(client: TestClient, body: Any) -> None:
    answer = client.post(
        "/v1/chat/completions", content=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    assert answer.status_code in (200, 400, 404)
    if answer.status_code != 200:
        refused(answer)
    elif answer.headers["content-type"] == "application/json":
        assert answer.json().keys() >= {"id", "object", "model", "usage", "sleuth"}
    else:
        assert answer.text.endswith("data: [DONE]\n\n")
