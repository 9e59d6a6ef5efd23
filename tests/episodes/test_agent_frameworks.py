"""Agents of two frameworks, as their documentation writes them, call the policy (`make agents`)."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest
import torch
from chat_tokenizers import KEEPS, chat_tokenizer
from transformers import PreTrainedTokenizerFast
from verb import sleuth

from sleuth.answers.tables import EnvironmentReward
from sleuth.episodes.agent import agent_setting
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.episodes.tables import AgentEnvRecipe
from sleuth.learn.batch import collate, trajectory_row
from sleuth.learn.models import load_model
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy
from sleuth.render import Renderer, encode
from sleuth.rollout import Rollout
from sleuth.types import Piece, Sampling, Segment, Task, Trajectory

FOLDER = Path(__file__).parents[2] / "examples" / "own_code"
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6*7"}}\n</tool_call><|im_end|>'


@pytest.mark.parametrize(("module", "package"), [("agents_sdk", "agents"), ("langgraph_agent", "langgraph")])
def test_an_agent_of_a_framework_is_played_and_recorded(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    monkeypatch.chdir(FOLDER)
    env = AgentEnvRecipe.model_validate({"kind": "agent", "function": f"{module}.py:solve"})
    tokenizer = chat_tokenizer(KEEPS)
    setting = agent_setting(env, tokenizer)

    def answer(text: str, sampling: Sampling) -> str:
        return CALL if sampling.key[-1] == 0 else "42<|im_end|>"

    rollout = Rollout(
        engine=ScriptedEngine(tokenizer, answer),
        renderer=Renderer(tokenizer),
        context=1000,
        temperature=1.0,
        key=(0,),
    )
    task = Task(id="q", question="6*7?", golden_answers=("42",))
    [group] = asyncio.run(rollout.groups([task], setting.env, samples=4))
    for episode in group.episodes:
        [trajectory] = episode.trajectories
        call, last = trajectory.actions
        assert (json.loads(call.text)["arguments"], call.result) == ('{"expression": "6*7"}', "42")
        assert (last.text, EnvironmentReward().score(episode).value) == ("42", 1.0)


TEMPLATE = (
    "{%- if tools -%}{{- 'Tools:' -}}{%- for tool in tools -%}{{- ' ' + tool.function.name -}}{%- endfor -%}"
    "{{- '\n' -}}{%- endif -%}{%- for message in messages -%}"
    "{%- if message.role == 'tool' -%}{{- '<tool_response>' + message.content + '</tool_response>\n' -}}"
    "{%- elif message.role == 'assistant' -%}{{- message.content + '<|end|>\n' -}}"
    "{%- elif message.role == 'user' -%}{{- 'Question:\n' + message.content + '\n' -}}"
    "{%- else -%}{{- message.content + '\n' -}}{%- endif -%}{%- endfor -%}"
)
OPENING, CLOSING = '{"name": "calculator", "arguments": {"expression": "', '"}}'
TOKENS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "Question:", "Tools:", OPENING, CLOSING]
CALLED = 0.3
"""Of the answers that the model is shown, those that call the calculator; the others are a guess."""
RECIPE = """
name = "agent"
model = "{model}"
[[stage]]
kind = "grpo"
steps = 20
prompts_per_step = 8
samples_per_prompt = 8
learning_rate = 2e-4
context = 128
slots = 64
probe_prompts = 0
data = {{ questions = "sums.jsonl" }}
env = {{ kind = "agent", function = "{module}.py:solve", turn_tokens = 24 }}
reward = [{{ kind = "environment" }}]
"""


def shown(question: str, result: str, draw: random.Random, tokenizer: PreTrainedTokenizerFast) -> Trajectory:
    """An episode as the agents play it, in which the calculator is called, or a number guessed."""

    def policy(text: str) -> Segment:
        return Segment(author="policy", tokens=tuple(encode(tokenizer, f"{text}<|end|>")), text=text)

    def others(*pieces: str) -> list[Segment]:
        quoted = [
            Piece(text=text, author="env" if at % 2 else "template", quoted=bool(at % 2))
            for at, text in enumerate(pieces)
        ]
        return Renderer(tokenizer).render_all(quoted)

    asked = others("Tools: calculator\nQuestion:\n", f"{question}?", "\n")
    if draw.random() > CALLED:
        return Trajectory(segments=(*asked, policy(str(draw.randint(10, 99)))))
    call = policy(f"<tool_call>{OPENING}{question}{CLOSING}</tool_call>")
    read = others("\n<tool_response>", result, "</tool_response>\n")
    return Trajectory(segments=(*asked, call, *read, policy(result)))


@pytest.mark.slow
def test_agents_of_two_frameworks_learn_to_call_and_end_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("agents")
    pytest.importorskip("langgraph")
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    numbers = [number for number in range(10, 100) if number % 4 != 2]
    sums = [(f"{a}-{b}", str(a - b)) for a in numbers for b in numbers if a - b >= 10]
    rows = [
        {"id": str(at), "question": f"{question}?", "golden_answers": [result]}
        for at, (question, result) in enumerate(draw.sample(sums, 400))
    ]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model, tokenizer = load_model(str(FOLDER.parents[1] / "models" / "tiny-reader"), dtype="float32", device="cpu")
    tokenizer.add_tokens(TOKENS)
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    model.resize_token_embeddings(len(tokenizer))
    settings = {"learning_rate": 3e-3, "name": "muon", "schedule": "cosine", "warmup_steps": 20, "betas": (0.9, 0.98)}
    policy = Policy(model, Optimisation(steps=240, **settings))
    for _ in range(240):
        batch = [trajectory_row(shown(*draw.choice(sums), draw, tokenizer), 1.0) for _ in range(64)]
        policy.supervise(collate(batch), budget=4096)
    model.save_pretrained("warm")
    tokenizer.save_pretrained("warm")
    for module in ("agents_sdk", "langgraph_agent"):
        Path(f"{module}.toml").write_text(RECIPE.format(model=tmp_path / "warm", module=FOLDER / module))
        done = sleuth("train", f"{module}.toml", "--run", module, "--quiet")
        assert done.exit_code == 0, done.stderr
        steps = [json.loads(line) for line in Path(module, "metrics.jsonl").read_text().splitlines()]
        paid = [step["reward_mean"] for step in steps]
        assert paid[0] < 0.5 < 0.8 < sum(paid[-5:]) / 5
        assert max(step["sampler_learner_kl"] or 0.0 for step in steps) < 1e-6
    weights = [
        Path(module, "checkpoints/step-000020/model.safetensors") for module in ("agents_sdk", "langgraph_agent")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()
