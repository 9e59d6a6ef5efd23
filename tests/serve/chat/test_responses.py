"""OpenAI's Responses API over HTTP: items, annotations, events, refusals; and the `openai` client itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from listening import listening
from small_agents import ADA, TARN, Shelf, agent, app_of, client_of, diligent, quotes, refiner, refused
from starlette.testclient import TestClient

from sleuth.serve.agent import Agent
from sleuth.types import Passage, Sampling

PATH = "/v1/responses"
QUESTION = "Where was Ada Voss born?"
REFINED = "<snippet id=a1,b2>Ada Voss was born in Tarn.</snippet> It lies by <snippet id=b2,zz>a lake.</snippet>"
TO_REFINE = (
    f"{QUESTION} <tool_output><snippet id=a1>Ada Voss was born in Tarn.</snippet>"
    "<snippet id=b2>Tarn, born of a lake.</snippet></tool_output>"
)
RESPONSE = {
    "id", "object", "created_at", "completed_at", "status", "background", "error", "incomplete_details", "instructions",
    "max_output_tokens", "metadata", "model", "output", "parallel_tool_calls", "previous_response_id", "store",
    "temperature", "text", "tool_choice", "tools", "top_p", "truncation", "usage", "sleuth",
}  # fmt: skip


def served(agent: Agent) -> TestClient:
    return client_of(app_of(agent))


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served(agent()) as client:
        yield client


def asked(client: TestClient, **options: Any) -> dict[str, Any]:
    answer = client.post(PATH, json={"input": QUESTION} | options)
    assert answer.status_code == 200, answer.text
    assert answer.json().keys() == RESPONSE
    return answer.json()


def streamed(client: TestClient, **options: Any) -> list[dict[str, Any]]:
    """The events of a stream, whose names and numbers are right."""
    answer = client.post(PATH, json={"input": QUESTION, "stream": True} | options)
    assert answer.status_code == 200, answer.text
    *blocks, nothing = answer.text.split("\n\n")
    assert nothing == ""
    events: list[dict[str, Any]] = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def timeless(body: dict[str, Any]) -> dict[str, Any]:
    """A body without what differs from one answer to the next."""
    items = [item | {"id": ""} for item in body["output"]]
    return body | {"id": "", "created_at": 0, "completed_at": 0, "output": items}


# -- answers -----------------------------------------------------------------------------------------------------------


def test_thoughts_searches_and_the_answer_are_items_and_citations_annotate_the_text(client: TestClient) -> None:
    body = asked(client, model="tiny", metadata={"run": "7"})
    first, search, second, message = body["output"]
    assert [item["content"][0]["text"] for item in (first, second)] == ["I look for Ada.", "It says Tarn."]
    assert (search["type"], search["status"]) == ("web_search_call", "completed")
    assert search["action"] == {"type": "search", "query": "Ada Voss", "queries": ["Ada Voss"], "sources": None}
    [part] = message["content"]
    assert part["text"] == "Tarn"
    assert [note | {"type": "url_citation"} for note in part["annotations"]] == part["annotations"]
    assert [(note["url"], note["title"]) for note in part["annotations"]] == [
        ("passage:17", "Ada Voss"),
        ("passage:4", "Tarn"),
    ]
    assert {part["text"][note["start_index"] : note["end_index"]] for note in part["annotations"]} == {"Tarn"}
    assert (body["status"], body["error"], body["incomplete_details"]) == ("completed", None, None)
    assert (body["model"], body["metadata"], body["store"]) == ("tiny", {"run": "7"}, False)
    assert [citation["id"] for citation in body["sleuth"]["citations"]] == ["17", "4"]


def test_tokens_of_thoughts_are_counted_among_those_of_the_output(client: TestClient) -> None:
    chat = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": QUESTION}]}).json()
    used = asked(client)["usage"]
    assert used["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert used["output_tokens"] == chat["usage"]["completion_tokens"]
    assert used["total_tokens"] == chat["usage"]["total_tokens"]
    assert 0 < used["output_tokens_details"]["reasoning_tokens"] < used["output_tokens"]
    with served(agent(lambda text, sampling: "<answer>Tarn</answer>")) as terse:
        short = asked(terse)["usage"]
    assert short["output_tokens_details"]["reasoning_tokens"] < used["output_tokens_details"]["reasoning_tokens"]


def test_a_refiners_claims_are_annotated_one_by_one_with_the_snippets_that_they_name() -> None:
    with served(refiner(lambda text, sampling: f"<answer>{REFINED}</answer>")) as client:
        message = asked(client, input=TO_REFINE)["output"][-1]
    text, notes = message["content"][0]["text"], message["content"][0]["annotations"]
    assert text == REFINED
    assert [(text[note["start_index"] : note["end_index"]], note["url"], note["title"]) for note in notes] == [
        ("Ada Voss was born in Tarn.", "passage:a1", "a1"),
        ("Ada Voss was born in Tarn.", "passage:b2", "b2"),
        ("a lake.", "passage:b2", "b2"),
    ]


def test_sources_of_searches_come_when_asked_for_and_a_web_address_stays_one() -> None:
    page = Passage(id="https://example.org/tarn", title="Tarn", text="Ada was born in Tarn.")
    odd = Passage(id="a b/7", title="Lake", text="A lake.")
    with served(agent(shelf=Shelf(page, odd))) as client:
        body = asked(client, include=["web_search_call.action.sources", "reasoning.encrypted_content"])
    [search] = [item for item in body["output"] if item["type"] == "web_search_call"]
    assert [source["url"] for source in search["action"]["sources"]] == [page.id, "passage:a%20b%2F7"]
    assert [note["url"] for note in body["output"][-1]["content"][0]["annotations"]] == [page.id]


def test_a_response_without_an_answer_says_why() -> None:
    def endless(text: str, sampling: Sampling) -> str:
        return "<think>Hm.</think><answer>no closing tag"

    with served(agent(endless)) as client:
        body = asked(client)
        assert (body["status"], body["sleuth"]["stop"]) == ("completed", "turns")
        assert {item["type"] for item in body["output"]} == {"reasoning"}
        body = asked(client, max_output_tokens=3)
        assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert (body["usage"]["output_tokens"], body["max_output_tokens"]) == (3, 3)
        assert [item["status"] for item in body["output"]] == ["incomplete"]


def test_a_search_that_the_environment_cannot_parse_is_failed() -> None:
    def unclosed(text: str, sampling: Sampling) -> str:
        return "<search> Ada Voss" if text.count("<search>") < 1 else diligent(text, sampling)

    with served(agent(unclosed)) as client:
        body = asked(client)
        searches = [item for item in body["output"] if item["type"] == "web_search_call"]
        assert [item["status"] for item in searches] == ["failed", "completed"]
        assert timeless(streamed(client)[-1]["response"]) == timeless(body)


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_has_the_documented_events_and_ends_with_the_whole_response(client: TestClient) -> None:
    events = streamed(client)
    kinds = [event["type"].removeprefix("response.") for event in events]
    once = [kind for at, kind in enumerate(kinds) if at == 0 or kind != kinds[at - 1]]
    thought = [
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
    ]  # fmt: skip
    assert once == [
        "created", "in_progress", *thought,
        "output_item.added", "web_search_call.in_progress", "web_search_call.searching", "web_search_call.completed",
        "output_item.done", *thought,
        "output_item.added", "content_part.added", "output_text.delta", "output_text.annotation.added",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert timeless(events[-1]["response"]) == timeless(asked(client))
    assert events[0]["response"]["output"] == []
    for done in (event for event in events if event["type"] == "response.output_item.done"):
        at = done["output_index"]
        assert done["item"] == events[-1]["response"]["output"][at]
        of_item = [event for event in events if event.get("output_index") == at]
        assert {event["item_id"] for event in of_item if "item_id" in event} == {done["item"]["id"]}
        deltas = "".join(event["delta"] for event in of_item if event["type"].endswith("_text.delta"))
        assert deltas == "".join(part["text"] for part in done["item"].get("content", []))


def test_a_failure_in_mid_stream_is_a_failed_response_and_otherwise_503() -> None:
    with served(agent(shelf=Shelf(fails=True))) as client:
        answer = client.post(PATH, json={"input": QUESTION})
        assert (answer.status_code, refused(answer)) == (503, "the retriever did not answer; ask again later")
        last = streamed(client)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    line = "the retriever did not answer; ask again later"
    assert last["response"]["error"] == {"code": "server_error", "message": line}
    assert all(item["status"] != "in_progress" for item in last["response"]["output"])


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"input": 3}, "input: Input should be a valid list"),
        ({"input": [{"role": "system"}]}, "input: expected a message of the role user, with the question"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input.0.content: Input should be text, or a list of parts of the type "
            "input_text or output_text or reasoning_text",
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id: not supported here; leave it out"),
        ({"max_output_tokens": 0}, "max_output_tokens: Input should be greater than or equal to 1"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools: not supported here; leave it out"),
        ({"text": {"format": {"type": "json_object"}}}, "text: not supported here; leave it out"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort: not supported here; leave it out"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata: Dictionary should have at most 16 items"),
    ],
)  # fmt: skip
def test_what_is_wrong_or_not_supported_is_400_and_named(client: TestClient, change: dict[str, Any], line: str) -> None:
    answer = client.post(PATH, json={"input": QUESTION} | change)
    assert answer.status_code == 400
    assert refused(answer).startswith(line)
    assert answer.json()["error"]["param"] == next(iter(change))


def test_a_quotation_is_in_no_event_and_the_passage_that_it_is_from_annotates_the_text() -> None:
    with served(agent(quotes(" <b>is</b>"), dialect="reading")) as client:
        body = asked(client)
        events = streamed(client)
    [content] = body["output"][-1]["content"]
    assert content["text"] == "Tarn"
    assert [(note["url"], note["title"]) for note in content["annotations"]] == [(f"passage:{TARN.id}", TARN.title)]
    written = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(written) == "Tarn"
    told = json.dumps([event for event in events if event["type"].startswith("response.output_text")])
    assert "<b>" not in told


# -- the client that people use ----------------------------------------------------------------------------------------


def cited(response: Any) -> list[tuple[str, str]]:
    """(cited words, address) of the annotations, read as the client's types have them."""
    [content] = response.output[-1].content
    notes = [note for note in content.annotations if note.type == "url_citation"]
    return [(content.text[note.start_index : note.end_index], note.url) for note in notes]


CITED = [("Tarn", f"passage:{ADA.id}"), ("Tarn", f"passage:{TARN.id}")]


def test_the_openai_client_reads_answers_citations_streams_and_errors_of_both_apis() -> None:
    openai = pytest.importorskip("openai", reason="`make test` installs the client")
    with (
        listening(app_of(agent())) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, _strict_response_validation=True) as client,
    ):
        response = client.responses.create(model="tiny", input=QUESTION, max_output_tokens=300)
        assert (response.output_text, response.status) == ("Tarn", "completed")
        assert cited(response) == CITED
        assert response.model_extra["sleuth"]["searches"][0]["query"] == "Ada Voss"
        follow_up = [*response.output, {"role": "user", "content": "And Tarn?"}]
        assert client.responses.create(model="tiny", input=follow_up).output_text == "Tarn"
        with client.responses.stream(model="tiny", input=QUESTION) as stream:
            assert "response.web_search_call.completed" in [event.type for event in stream]
            assert cited(stream.get_final_response()) == CITED
        with pytest.raises(openai.BadRequestError, match="previous_response_id: not supported here") as caught:
            client.responses.create(model="tiny", input=QUESTION, previous_response_id="resp_1")
        assert caught.value.param == "previous_response_id"
        with pytest.raises(openai.NotFoundError, match="there is no 'gpt' here"):
            client.responses.create(model="gpt", input=QUESTION)
        asked = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}]}
        assert client.chat.completions.create(**asked).choices[0].message.content == "Tarn"
        chunks = list(client.chat.completions.create(**asked, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Tarn"
        with pytest.raises(openai.BadRequestError, match="stop: not supported here"):
            client.chat.completions.create(**asked, stop=["x"])
        assert [model.id for model in client.models.list()] == ["tiny"]
