"""An agent that calls the policy by OpenAI's client is played and recorded token by token."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from chat_tokenizers import KEEPS, STRIPS, chat_tokenizer

from sleuth.answers.tables import EnvironmentReward
from sleuth.engines.local.engine import LocalEngine
from sleuth.episodes.agent import AgentSetting, agent_setting, endpoint_of_process
from sleuth.episodes.fitting import require_room
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.episodes.tables import AgentEnvRecipe
from sleuth.learn.batch import trajectory_row
from sleuth.learn.logprobs import row_logprobs
from sleuth.learn.models import load_model
from sleuth.own.calls import calls_returned
from sleuth.own.commands import load_command
from sleuth.own.functions import UserCodeError
from sleuth.own.permission import CODE, CodeRefusedError
from sleuth.recipe.data import QuestionsRecipe
from sleuth.render import Renderer, decode, encode
from sleuth.rollout import Rollout
from sleuth.types import Completion, Episode, Piece, Reply, Sampling, Score, StopReason, Task

ROOT = Path(__file__).parents[2]
AGENTS = '''
import json

import httpx
import openai

TOOLS = [
    {"type": "function", "function": {"name": "double", "description": "Doubles.", "parameters": {"type": "object"}}}
]
TALE = "a long tale of what came before"


def with_a_tool(task, base_url, api_key):
    """Makes the calls that the model writes, and returns its last message."""
    client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": task.question}]
    while True:
        said = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS).choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            return said.content
        for call in said.tool_calls:
            result = 2 * json.loads(call.function.arguments)["x"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})


async def by_responses(task, base_url, api_key):
    """The same by the API of responses, streamed."""
    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    items = [{"role": "user", "content": task.question}]
    while True:
        stream = await client.responses.create(
            model="policy", instructions="Be brief.", input=items, tools=tools, stream=True
        )
        async for event in stream:
            last = event
        calls = [item for item in last.response.output if item.type == "function_call"]
        if not calls:
            return last.response.output_text
        items += [item.model_dump() for item in last.response.output]
        for call in calls:
            result = 2 * json.loads(call.arguments)["x"]
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": str(result)})


def forgetful(task, base_url, api_key):
    """Begins anew after its first turn, with a summary of it, and returns a score."""
    client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0)

    def ask(text):
        messages = [{"role": "user", "content": text}]
        asked = client.chat.completions.create(model="policy", messages=messages, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in asked)

    summary = ask(task.question)
    return len(ask(f"You said {summary}. Go on.")) / 10


def endless(task, base_url, api_key):
    client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0)
    while True:
        client.chat.completions.create(model="policy", messages=[{"role": "user", "content": task.question}])


def talkative(task, base_url, api_key):
    """Fills the context."""
    client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0)
    messages = []
    while True:
        messages.append({"role": "user", "content": TALE * 5})
        said = client.chat.completions.create(model="policy", messages=messages).choices[0].message
        messages.append({"role": "assistant", "content": said.content})


def asleep(task, base_url, api_key):
    import time

    time.sleep(30)


def mistaken(task, base_url, api_key):
    client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0)
    client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": task.question}])


def silent(task, base_url, api_key):
    return "done"


def returns_nothing(task, base_url, api_key):
    with_a_tool(task, base_url, api_key)


def post(base_url, api_key, path="chat/completions", **body):
    body = {"model": "policy", "messages": [{"role": "user", "content": "?"}], "input": "?"} | body
    return httpx.post(f"{base_url}/{path}", json=body, headers={"Authorization": f"Bearer {api_key}"}, timeout=20)


def refused(task, base_url, api_key, *, path="chat/completions", body):
    """Sends a body that is refused, and returns why; then one that is answered."""
    answer = post(base_url, api_key, path, **body)
    post(base_url, api_key)
    return f"{answer.status_code} {answer.json()['error']['message']}"


def corrects(task, base_url, api_key):
    """Changes the call that the policy made."""
    messages = [{"role": "user", "content": "?"}]
    said = post(base_url, api_key, messages=messages, tools=TOOLS).json()["choices"][0]["message"]
    said["tool_calls"][0]["function"]["arguments"] = json.dumps({"x": 22})
    messages += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "44"}]
    return post(base_url, api_key, messages=messages, tools=TOOLS).json()["choices"][0]["message"]["content"]


def stops(task, base_url, api_key):
    return post(base_url, api_key, stop=["ll", "x"]).json()["choices"][0]["message"]["content"]


def returns(task, base_url, api_key, *, what):
    import numpy

    post(base_url, api_key)
    return {"number": numpy.float32(0.5), "odd text": "a\\ud800b", "huge": 10**400}[what]


async def at_once(task, base_url, api_key):
    """Asks three things at once."""
    import asyncio

    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)
    asked = [[{"role": "user", "content": f"Question {at}"}] for at in range(3)]
    made = [client.chat.completions.create(model="policy", messages=messages) for messages in asked]
    return "|".join(said.choices[0].message.content for said in await asyncio.gather(*made))


def counts(task, base_url, api_key):
    """The usage of four answers to the same question: of both APIs, whole and streamed."""

    def last(path):
        *_, line = (one for one in post(base_url, api_key, path, **streamed).text.splitlines() if "usage" in one)
        event = json.loads(line.removeprefix("data: "))
        return event.get("response", event)

    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    paths = ("chat/completions", "responses")
    usages = [post(base_url, api_key, path).json()["usage"] for path in paths] + [last(path)["usage"] for path in paths]
    names = (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"), ("total_tokens",))
    return json.dumps([[next(one[name] for name in kinds if name in one) for kinds in names] for one in usages])


LATE = []


async def leaves(task, base_url, api_key):
    """Returns while a request of its own is under way."""
    import asyncio

    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)

    async def ask():
        await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "?"}])

    await ask()
    LATE.append(asyncio.create_task(ask()))
    return "done"


async def blocks(task, base_url, api_key):
    import time

    time.sleep(30)


CLIENTS = []


async def of_the_first_key(task, base_url, api_key):
    """Asks with the client that the first agent made."""
    if not CLIENTS:  # making one takes long beside other work
        CLIENTS.append(openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0))
    messages = [{"role": "user", "content": task.question}]
    for _ in range(2):
        said = await CLIENTS[0].chat.completions.create(model="policy", messages=messages)
    return 0.5


def stranger(task, base_url, api_key):
    body = {"model": "policy", "messages": [{"role": "user", "content": "?"}]}
    return httpx.post(f"{base_url}/chat/completions", json=body, headers={"Authorization": "Bearer x"}).json()["error"]
'''

PROGRAM = """
import json
import os
import subprocess
import sys
import time
import urllib.request

how, task = sys.argv[1], json.load(sys.stdin)


def asked(text):
    body = {"model": "policy", "messages": [{"role": "user", "content": text}]}
    head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


said = asked(task["question"])
if how != "says nothing":
    print("noise")
if how == "stays":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(os.getpid(), child.pid, file=open("pids", "w"))
    time.sleep(60)
if how == "leaves a child":
    print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, file=open("pids", "w"))
if how == "raises":
    raise ValueError("no idea")
if how == "exits":
    sys.exit(3)
while how == "floods":
    print("noise" * 1_000)
results = {
    "answers": {"answer": said},
    "scores": {"score": task["info"]["worth"]},
    "leaves a child": {"score": 0.5},
    "both": {"score": 1, "answer": "42"},
    "scores text": {"score": "1"},
    "answers a number": {"answer": 42},
}
if how in results:
    print(json.dumps(results[how]))
print()
"""


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AgentSetting]:
    """The setting of one of the agents above."""
    (tmp_path / "agents_of_test.py").write_text(AGENTS)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)

    def setting(name: str, template: str = KEEPS, **keys: Any) -> AgentSetting:
        program = name.startswith("python ")
        named = {"command": name} if program else {"function": f"agents_of_test.py:{name}"}
        recipe = AgentEnvRecipe.model_validate({"kind": "agent", "seconds": 20.0 if program else 10.0, **named, **keys})
        return agent_setting(recipe, chat_tokenizer(template))

    return setting


class WaitingEngine(ScriptedEngine):
    """Writes when each agent has asked, as the engine in the process does: else the first might end before the last
    asks."""

    async def complete(self, tokens: Sequence[int], sampling: Sampling) -> Completion:
        await calls_returned()
        return await super().complete(tokens, sampling)


def played(setting: AgentSetting, *turns: str, episodes: int = 1, context: int = 1000) -> list[Episode]:
    """Episodes in which the policy writes these turns."""
    assert setting.tokenizer is not None

    def answer(text: str, sampling: Sampling) -> str:
        asked.append(text)
        return turns[min(sampling.key[-1], len(turns) - 1)]

    asked: list[str] = []
    rollout = Rollout(
        engine=WaitingEngine(setting.tokenizer, answer),
        renderer=Renderer(setting.tokenizer),
        context=context,
        temperature=1.0,
        key=(0,),
    )
    task = Task(id="q", question="Double 21, please.", golden_answers=("42",), info={"worth": 0.25})
    [group] = asyncio.run(rollout.groups([task], setting.env, samples=episodes))
    return list(group.episodes)


CALL = '<think>\nsmall\n</think>\n\n<tool_call>\n{"name": "double", "arguments": {"x": 21}}\n</tool_call><|im_end|>'


@pytest.mark.parametrize("name", ["with_a_tool", "by_responses"])
def test_an_agent_with_a_tool_is_recorded_as_the_policy_saw_it(name: str, agents: Callable[..., AgentSetting]) -> None:
    setting = agents(name)
    [episode] = played(setting, CALL, "It is 42.<|im_end|>")
    [trajectory] = episode.trajectories
    assert trajectory.stop == "answered"
    call, answer = trajectory.actions
    assert (call.kind, json.loads(call.text)["name"], call.result) == ("call", "double", "42")
    assert (answer.kind, answer.text) == ("answer", "It is 42.")
    turns = [segment.text for segment in trajectory.segments if segment.author == "policy"]
    assert turns == [CALL.removesuffix("<|im_end|>"), "It is 42."]
    assert setting.tokenizer is not None
    whole = decode(setting.tokenizer, trajectory.tokens)
    assert whole.endswith(
        f"<|im_start|>user\nDouble 21, please.<|im_end|>\n<|im_start|>assistant\n{CALL}\n"
        "<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nIt is 42.<|im_end|>"
    )
    assert '"description": "Doubles."' in whole
    assert EnvironmentReward().score(episode).value == 0.0


def test_a_template_that_drops_thoughts_makes_linked_trajectories(agents: Callable[..., AgentSetting]) -> None:
    [episode] = played(agents("with_a_tool", STRIPS), CALL, "42<|im_end|>")
    first, second = episode.trajectories
    assert first.stop == "rewritten"
    assert "small" in first.text
    assert "small" not in second.text
    assert [segment.text for segment in second.segments if segment.author == "policy"] == ["42"]
    assert EnvironmentReward().score(episode).value == 1.0


def test_a_history_that_an_agent_rewrites_starts_a_new_trajectory_under_one_score(
    agents: Callable[..., AgentSetting],
) -> None:
    setting = agents("forgetful")
    [episode] = played(setting, "1234<|im_end|>", "56789<|im_end|>")
    assert [one.stop for one in episode.trajectories] == ["rewritten", "answered"]
    assert "You said 1234. Go on." in episode.trajectory.text
    assert EnvironmentReward().score(episode).value == 0.5


@pytest.mark.parametrize(
    ("name", "keys", "reason"),
    [
        ("endless", {"calls": 3}, "endless: asked more than calls = 3 times"),
        ("asleep", {"seconds": 0.2}, "asleep: neither asked nor returned within 0.2 seconds"),
        ("mistaken", {}, "model = 'gpt-5': the model here is named 'policy'"),
        ("silent", {}, "silent: returned without asking the model"),
        ("returns_nothing", {}, "returns_nothing: returned None; expected an answer (text) or a score (a number)"),
        ("stranger", {}, "stranger: returned"),
    ],
)
def test_an_agent_that_goes_wrong_has_no_score_and_says_why(
    name: str, keys: dict[str, Any], reason: str, agents: Callable[..., AgentSetting]
) -> None:
    [episode] = played(agents(name, **keys), "42<|im_end|>")
    assert episode.trajectory.stop == "failed"
    assert reason in episode.trajectory.actions[-1].failure
    assert "agents_of_test.py:" in episode.trajectory.actions[-1].failure


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("chat/completions", {"tools": ["add"]}, "the body has not the form of OpenAI's API"),
        ("chat/completions", {"messages": [{"role": []}]}, "the body has not the form of OpenAI's API"),
        ("chat/completions", {"stop": 5}, "stop: should be a text, or a list of at most 16, none of them empty"),
        ("chat/completions", {"stop": [""]}, "stop: should be a text, or a list of at most 16, none of them empty"),
        ("chat/completions", {"response_format": {"type": "json_object"}}, "response_format = "),
        ("chat/completions", {"stream": True, "stream_options": 5}, "stream_options: should be an object such as"),
        ("chat/completions", {"tool_choice": "required"}, "tool_choice = 'required' is not supported here"),
        ("responses", {"text": {"format": {"type": "json_schema"}}}, "text.format: only text is supported here"),
        (
            "chat/completions",
            {"tools": [{"type": "function", "function": {"name": "a", "description": "\ue0005\ue001"}}]},
            "tools: the schemas have a character U+E000",
        ),
    ],
)
def test_a_request_that_cannot_be_read_is_refused_in_one_line_and_the_episode_goes_on(
    path: str, body: dict[str, Any], reason: str, agents: Callable[..., AgentSetting], capfd: pytest.CaptureFixture[str]
) -> None:
    [episode] = played(agents("refused", parameters={"path": path, "body": body}), "42<|im_end|>")
    assert episode.trajectory.actions[-1].text.startswith(f"400 {reason}")
    assert "Traceback" not in capfd.readouterr().err


def test_the_usage_is_what_the_policy_read_and_wrote(agents: Callable[..., AgentSetting]) -> None:
    setting = agents("counts")
    [episode] = played(setting, "forty-two<|im_end|>")
    counted = json.loads(episode.trajectory.actions[-1].text)
    assert len(counted) == len(episode.trajectories) == 4
    for (read, written, both), trajectory in zip(counted, episode.trajectories, strict=True):
        *prompt, turn = (len(segment.tokens) for segment in trajectory.segments)
        assert (read, written, both) == (sum(prompt), turn, sum(prompt) + turn)
    assert setting.tokenizer is not None
    assert len(encode(setting.tokenizer, "forty-two<|im_end|>")) == counted[0][1]


def test_an_agent_gets_a_turn_without_the_stop_text_that_it_named(agents: Callable[..., AgentSetting]) -> None:
    [episode] = played(agents("stops"), "hello<|im_end|>")
    assert episode.trajectory.actions[-1].text == "he"
    assert [one.text for one in episode.trajectory.segments if one.author == "policy"] == ["hell"]


def test_a_call_that_an_agent_changes_is_read_as_it_was_changed(agents: Callable[..., AgentSetting]) -> None:
    [episode] = played(agents("corrects"), CALL, "44<|im_end|>")
    first, second = episode.trajectories
    assert (first.stop, '"x": 21' in first.text, '"x": 21' in second.text) == ("rewritten", True, False)
    assert '"x": 22' in second.text


@pytest.mark.parametrize(
    ("what", "text", "score", "failure"),
    [
        ("number", "hm", Score(value=0.5), ""),
        ("odd text", "a?b", None, ""),
        ("huge", "", None, "returns: returned 1000"),
    ],
)
def test_an_agent_returns_numbers_of_any_kind_and_text_that_files_can_hold(
    what: str, text: str, score: Score | None, failure: str, agents: Callable[..., AgentSetting]
) -> None:
    [episode] = played(agents("returns", parameters={"what": what}), "hm<|im_end|>")
    last = episode.trajectory.actions[-1]
    assert (last.text, episode.trajectory.score) == (text, score)
    assert failure in (last.failure or "")


def test_requests_at_once_of_one_agent_are_answered_each_in_a_trajectory_of_its_own(
    agents: Callable[..., AgentSetting],
) -> None:
    [episode] = played(agents("at_once"), *(f"turn {at}<|im_end|>" for at in "abc"))
    assert [one.stop for one in episode.trajectories] == ["rewritten", "rewritten", "answered"]
    seen = {one.text.partition("Question ")[2][0]: one.segments[-1].text for one in episode.trajectories}
    assert seen == dict(zip("012", episode.trajectory.actions[-1].text.split("|"), strict=True))
    assert sorted(seen.values()) == ["turn a", "turn b", "turn c"]


def test_an_environment_is_closed_by_a_method_that_is_asynchronous_or_not() -> None:
    for kind in (Closing, ClosingLater):
        env = kind()
        engine = ScriptedEngine(chat_tokenizer(KEEPS), lambda text, sampling: "42")
        limits = {"context": 100, "temperature": 1.0, "key": (0,)}
        rollout = Rollout(engine=engine, renderer=Renderer(chat_tokenizer(KEEPS)), **limits)
        asyncio.run(rollout.episode(env, Task(id="q", question="?"), 0, 0))
        assert env.closed


class Closing:
    """An environment of one turn, made without Sleuth's classes."""

    closed = False

    async def open(self) -> Reply:
        return Reply(pieces=(Piece(text="?"),), max_tokens=4)

    async def reply(self, text: str, stop: StopReason) -> Reply:
        return Reply(done="answered")

    def close(self) -> Any:
        self.closed = True


class ClosingLater(Closing):
    async def close(self) -> None:
        self.closed = True


def test_a_request_that_an_agent_leaves_behind_is_refused(agents: Callable[..., AgentSetting]) -> None:
    setting = agents("leaves")
    for _ in range(4):  # the request comes before, with or after the end
        [episode] = played(setting, "42<|im_end|>")
        assert episode.trajectory.stop == "answered"
    late = cast("Any", setting.make.function).module.LATE
    until = time.monotonic() + 10
    while not all(task.done() for task in late) and time.monotonic() < until:
        time.sleep(0.01)
    assert all(task.done() and task.exception() is not None for task in late)


def test_an_agent_that_blocks_the_event_loop_does_not_hold_up_those_after_it(
    agents: Callable[..., AgentSetting],
) -> None:
    [episode] = played(agents("blocks", seconds=0.2), "42<|im_end|>")
    assert "none may wait for another or block its event loop" in episode.trajectory.actions[-1].failure
    [episode] = played(agents("by_responses", seconds=5.0), "42<|im_end|>")
    assert episode.trajectory.stop == "answered"


def test_an_agent_that_is_asked_for_its_prompt_alone_is_let_go(agents: Callable[..., AgentSetting]) -> None:
    setting = agents("with_a_tool")
    assert setting.tokenizer is not None
    tasks = [Task(id=str(at), question="?" * (at + 1)) for at in range(3)]
    data = QuestionsRecipe.model_validate({"questions": "unused.jsonl"})
    require_room(data, setting, setting.tokenizer, tasks, context=1000)
    assert not endpoint_of_process()._episodes
    limit = time.monotonic() + 10
    while any("with_a_tool" in one.name for one in threading.enumerate()) and time.monotonic() < limit:
        time.sleep(0.01)
    assert not any("with_a_tool" in one.name for one in threading.enumerate())


def test_an_agent_whose_context_is_full_ends_there_and_is_let_go(agents: Callable[..., AgentSetting]) -> None:
    [episode] = played(agents("talkative"), "yes<|im_end|>", context=200)
    assert episode.trajectory.stop == "length"
    assert EnvironmentReward().score(episode).value == 0.0
    assert not endpoint_of_process()._episodes


def test_agents_that_ask_with_one_key_have_no_score(agents: Callable[..., AgentSetting]) -> None:
    episodes = played(agents("of_the_first_key", seconds=4.0), "42<|im_end|>", episodes=4)
    failures = [episode.trajectory.actions[-1].failure or "" for episode in episodes]
    assert "of_the_first_key: had several requests at once while another agent had none" in failures[0]
    assert [episode.trajectory.stop for episode in episodes] == ["failed"] * 4  # unasked, or asked too late
    assert all("agents_of_test.py:" in failure for failure in failures)


def test_agents_at_once_have_their_own_turns(agents: Callable[..., AgentSetting]) -> None:
    episodes = played(agents("with_a_tool", seconds=60.0), CALL, "42<|im_end|>", episodes=16)
    assert len({episode.trajectory.tokens for episode in episodes}) == 1
    assert all(episode.trajectory.stop == "answered" for episode in episodes)


def test_what_an_agent_sampled_has_the_probabilities_that_the_learner_gives_it(
    agents: Callable[..., AgentSetting],
) -> None:
    model, tokenizer = load_model(str(ROOT / "models" / "tiny-base"), dtype="float32", device="cpu")
    setting = replace(agents("forgetful", turn_tokens=12), tokenizer=tokenizer)
    rollout = Rollout(
        engine=LocalEngine(model, tokenizer, slots=8, context=256),
        renderer=Renderer(tokenizer),
        context=256,
        temperature=1.0,
        key=(0,),
    )
    task = Task(id="q", question="Question: where is Tarn?", golden_answers=())
    [group] = asyncio.run(rollout.groups([task], setting.env, samples=8))
    rows = [trajectory_row(one, 1.0) for episode in group.episodes for one in episode.trajectories]
    assert len(rows) == 16
    for row, logprobs in zip(rows, row_logprobs(model, rows, budget=4096), strict=True):
        assert row.sampler_logprobs is not None
        assert sum(row.trained) >= 1
        assert logprobs == pytest.approx(row.sampler_logprobs, abs=1e-4)


# -- programs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "score"), [("answers", 1.0), ("scores", 0.25)])
def test_a_command_plays_and_its_last_line_is_its_result(
    how: str, score: float, agents: Callable[..., AgentSetting]
) -> None:
    setting = agents(f"python program.py {how}")
    assert setting.own_code is not None
    assert [*setting.own_code.sources] == ["program.py"]
    episodes = played(setting, "42<|im_end|>", episodes=2)
    assert [EnvironmentReward().score(episode).value for episode in episodes] == [score, score]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raises", "ended with status 1: program.py:30: ValueError: no idea"),
        ("exits", "ended with status 3"),
        ("forgets", "printed 'noise' as its last line; expected {"),
        ("both", 'printed \'{"score": 1, "answer": "42"}\' as its last line; expected {'),
        ("'says nothing'", "printed nothing; expected {"),
        ("'scores text'", 'printed \'{"score": "1"}\' as its last line; expected {'),
        ("'answers a number'", "printed '{\"answer\": 42}' as its last line; expected {"),
    ],
)
def test_a_command_that_goes_wrong_has_no_score_and_says_why(
    how: str, reason: str, agents: Callable[..., AgentSetting]
) -> None:
    [episode] = played(agents(f"python program.py {how}"), "42<|im_end|>")
    assert episode.trajectory.stop == "failed"
    assert f"python program.py {how}: {reason}" in episode.trajectory.actions[-1].failure


@pytest.mark.parametrize(
    ("how", "keys", "stop"), [("stays", {"seconds": 3.0}, "failed"), ("'leaves a child'", {}, "answered")]
)
def test_no_process_of_a_command_outlives_its_episode(
    how: str, keys: dict[str, Any], stop: str, agents: Callable[..., AgentSetting]
) -> None:
    [episode] = played(agents(f"python program.py {how}", **keys), "42<|im_end|>")
    assert episode.trajectory.stop == stop
    until = time.monotonic() + 10
    pids = Path("pids").read_text().split()
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    assert [pid for pid in pids if is_running(pid)] == []


def test_a_command_that_prints_without_end_is_ended(
    agents: Callable[..., AgentSetting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sleuth.own.commands.LARGEST_OUTPUT", 1 << 20)
    [episode] = played(agents("python program.py floods", seconds=60.0), "42<|im_end|>")
    assert episode.trajectory.stop == "failed"
    assert "python program.py floods: printed more than 1 MB" in (episode.trajectory.actions[-1].failure or "")


def is_running(pid: str) -> bool:
    """Whether a process runs; one that waits to be read by its parent does not."""
    status = Path("/proc", pid, "stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({}, "function or command: name one of them"),
        ({"function": "a:b", "command": "python a.py"}, "function or command: name one of them"),
        ({"command": "python a.py", "parameters": {"a": 1}}, "parameters are for a function"),
    ],
)
def test_an_agent_is_a_function_or_a_command(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        AgentEnvRecipe.model_validate({"kind": "agent", **keys})


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("", "there is no program ''"),
        ("pyton agent.py", "there is no program 'pyton'"),
        ("python absent.py", "absent.py: no such file"),
        ("python 'absent.py", "No closing quotation"),
    ],
)
def test_a_command_that_cannot_be_started_is_refused_before_the_run(command: str, reason: str) -> None:
    with pytest.raises(UserCodeError, match=re.escape(reason)):
        load_command(command)
    with CODE.refusing(", which --no-code refuses"), pytest.raises(CodeRefusedError, match="starts python"):
        load_command("python -V")
