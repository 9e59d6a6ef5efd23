"""A model that an agent of the user's trained: the agent is evaluated and served, and so is the model without it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from listening import listening
from run_files import evaluation
from small_agents import app_of, client_of, refused
from verb import printed_json, refusal, sleuth

from sleuth.episodes.protocol import ProtocolCard
from sleuth.evaluation.eval_session import open_eval_session
from sleuth.learn.models import load_model
from sleuth.own.functions import load_function
from sleuth.serve.agent import agent_of
from sleuth.types import Task

MODELS = Path(__file__).parents[3] / "models"
TEMPLATE = (
    "{%- for message in messages -%}{{- message.role + ': ' + message.content -}}"
    "{{- '<|end|>\n' if message.role == 'assistant' else '\n' -}}{%- endfor -%}"
    "{%- if spoken is defined -%}{{- 'Speak.\n' -}}{%- endif -%}"
)
AGENT = """
import openai


async def solve(task, base_url, api_key, *, model="policy", tokens=6):
    \"\"\"A score: the length of what the model says to the question and to its own answer.\"\"\"
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        messages = [{"role": "user", "content": task.question}]
        for _ in range(2):
            asked = {"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0}
            said = (await client.chat.completions.create(**asked)).choices[0].message
            messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": "And?"}]
        return len("".join(message["content"] for message in messages)) / 1000
"""
RECIPE = """
name = "agent"
model = "{model}"
[[stage]]
kind = "grpo"
steps = 1
prompts_per_step = 2
samples_per_prompt = 2
learning_rate = 1e-4
context = 128
probe_prompts = 0
data = {{ questions = "{questions}" }}
env = {{ kind = "agent", {agent}, turn_tokens = 16, template_flags = {{ spoken = true }} }}
reward = [{{ kind = "environment" }}]
[[stage]]
kind = "evaluate"
name = "trained"
data = {{ questions = "{questions}" }}
"""
QUESTIONS = ["where is Tarn?", "who is Ada Voss?"]


@pytest.fixture
def made(once, monkeypatch) -> Path:
    """The folder with the agent, the recipe and the run."""

    def make(folder: Path) -> None:
        folder.mkdir()
        model, tokenizer = load_model(str(MODELS / "tiny-base"), dtype="float32", device="cpu")
        tokenizer.chat_template = TEMPLATE
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        (folder / "solver.py").write_text(AGENT)
        rows = [{"id": question, "question": question, "golden_answers": ["x"]} for question in QUESTIONS]
        (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        named = "function = 'solver:solve', parameters = { tokens = 5 }"
        recipe = RECIPE.format(model=folder / "model", questions=folder / "asked.jsonl", agent=named)
        (folder / "agent.toml").write_text(recipe)
        done = sleuth("train", folder / "agent.toml", "--run", folder / "run", "--quiet")
        assert done.exit_code == 0, done.stderr

    return once("agent", make)


@pytest.fixture
def checkpoint(made) -> Path:
    return made / "run/checkpoints/step-000001"


def test_the_agent_is_evaluated_as_by_the_stage_of_its_run(made, checkpoint, tmp_path):
    questions = made / "asked.jsonl"
    printed = printed_json("eval", checkpoint, "--questions", questions, "--allow-code")
    stage = evaluation(made / "run", "trained")
    assert printed["outcomes"] == stage["outcomes"]
    assert printed["headline"] == ["score"]
    assert printed["score"] == stage["score"]
    assert "add --allow-code" in refusal("eval", checkpoint, "--questions", questions)
    bare = tmp_path / "bare.jsonl"
    bare.write_text("".join(json.dumps({"question": question}) + "\n" for question in QUESTIONS))
    assert printed_json("eval", checkpoint, "--questions", bare, "--allow-code")["score"] == stage["score"]
    assert "add --allow-code" in refusal("eval", checkpoint, "--questions", bare)


def test_a_model_is_served_without_its_agent_and_the_agent_gets_the_same_answers_there(made, checkpoint):
    session, _ = open_eval_session(str(checkpoint), [], index=None, without_agent=True)
    scores = [record["score"] for record in evaluation(made / "run", "trained")["records"]]
    solve = load_function(f"{made}/solver.py:solve").call
    app = app_of(agent_of(session, "tiny", None))
    with listening(app) as url:
        tasks = [Task(id=question, question=question) for question in QUESTIONS]
        found = [asyncio.run(solve(task, f"{url}/v1", "none", model="tiny", tokens=5)) for task in tasks]
    assert found == scores


def test_the_api_of_a_model_without_its_agent(checkpoint):
    session, _ = open_eval_session(str(checkpoint), [], index=None, without_agent=True)
    asked = {"messages": [{"role": "user", "content": QUESTIONS[0]}], "max_tokens": 5}
    with client_of(app_of(agent_of(session, "tiny", None))) as client:

        def post(path="chat/completions", **body):
            return client.post(f"/v1/{path}", json=asked | body)

        whole = post().json()
        said = whole["choices"][0]["message"]["content"]
        prompt = f"user: {QUESTIONS[0]}\nSpeak.\n"
        read = len(session.tokenizer.encode(prompt, add_special_tokens=False))
        assert whole["usage"] == {"prompt_tokens": read, "completion_tokens": 5, "total_tokens": read + 5}
        response = post("responses", input=QUESTIONS[0], max_output_tokens=5).json()
        assert response["output"][0]["content"][0]["text"] == said
        assert (response["model"], response["usage"]["input_tokens"]) == ("tiny", read)
        lines = post(stream=True, stream_options={"include_usage": True}).text.split("\n\n")
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert "".join(one["choices"][0]["delta"].get("content", "") for one in chunks[:-1]) == said
        assert [chunk["usage"] for chunk in chunks] == [None, None, whole["usage"]]
        assert post(model="gpt-5").status_code == 404
        tools = [{"type": "function", "function": {"name": "a"}}]
        assert "does not render tools" in refused(post(tools=tools))
        assert "messages: should be a list" in refused(post(messages=[]))
        assert "no room for an answer" in refused(post(messages=[{"role": "user", "content": "long " * 500}]))


def test_a_served_agent_answers_the_question_itself(made, checkpoint):
    session, _ = open_eval_session(str(checkpoint), [], index=None, allow_code=True, without_agent=True)
    with client_of(app_of(agent_of(session, "tiny", None))) as client:
        answer = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": QUESTIONS[0]}]})
    assert answer.json()["choices"][0]["finish_reason"] == "stop"


def test_a_card_starts_no_command(checkpoint, tmp_path):
    card = ProtocolCard.read(checkpoint)
    assert card is not None
    assert card.env is not None
    assert card.template_flags == {"spoken": True}
    assert card.own_environment == ("solver:solve",)
    command = card.env.model_copy(update={"functions": ("python solver.py",)})
    assert card.model_copy(update={"env": command}).own_environment == ()
    assert "sleuth serve" in (checkpoint / "README.md").read_text()
