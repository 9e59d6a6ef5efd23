"""A stage in a chat dialect, from the recipe to the card that its checkpoint carries, and back to an evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from refusals import refused
from run_files import evaluation, groups
from verb import sleuth

from sleuth.episodes.protocol import ProtocolCard
from sleuth.learn.models import random_model
from sleuth.recipe import InitRecipe
from sleuth.world.tokens import make_tokenizer

SHAPE = InitRecipe(layers=1, width=16, heads=1, kv_heads=1, head_dim=16, mlp=16, context=2048)
TEMPLATE = (
    "{%- if tools -%}{{- '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' + message.content -}}"
    "{{- '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}"
    "{%- endif -%}"
)
RECIPE = """
name = "chat"
model = "{model}"

[[stage]]
kind = "grpo"
steps = 1
prompts_per_step = 2
samples_per_prompt = 2
learning_rate = 1e-3
context = 2000
probe_prompts = 0
data = {{ questions = "{world}/qa_train.jsonl" }}
reward = [{{ kind = "answer" }}]

[stage.env]
kind = "search"
dialect = "chat"
prompt = "tool_rules"
prompt_role = "user"
template_flags = {{ enable_thinking = false }}
index = "{world}/index"
turn_tokens = 8

[[stage]]
kind = "evaluate"
name = "trained"
data = {{ questions = "{world}/qa_test.jsonl", limit = 2 }}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("chat") / "model"
    tokenizer = make_tokenizer(200)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template = TEMPLATE
    random_model(SHAPE, tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def recipe(model, world, tmp_path) -> Path:
    file = tmp_path / "chat.toml"
    file.write_text(RECIPE.format(model=model, world=world))
    return file


def test_a_chat_is_trained_carried_on_the_card_and_asked_again_the_same_way(run, recipe, world, tmp_path):
    checkpoint = run(recipe, tmp_path / "run")
    card = ProtocolCard.read(checkpoint)
    assert card is not None
    assert (card.dialect.name, card.prompt_role, card.template_flags) == ("chat", "user", {"enable_thinking": False})
    assert card.template_sha256 is not None
    [group, _] = groups(tmp_path / "run")
    asked = group.episodes[0].trajectory.text
    assert asked.startswith('<|im_start|>system\n[{"type": "function"')
    assert f"Question: {group.task.question}\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n" in asked
    out = tmp_path / "again.json"
    arguments = ["eval", checkpoint, "--questions", world / "qa_test.jsonl", "--limit", 2, "--index", world / "index"]
    result = sleuth(*arguments, "--out", out)
    assert (result.exit_code, "note:" in result.stderr) == (0, False)
    again, before = json.loads(out.read_text()), evaluation(tmp_path / "run", "trained")
    assert again["protocol"] == before["protocol"]
    assert again["records"] == before["records"]
    assert "A server of chat completions with tools comes near" in (checkpoint / "README.md").read_text()
    result = sleuth(*arguments, "--prompt-role", "raw", "--dialect", "sleuth")
    assert "was trained in the dialect 'chat': asked in the dialect 'sleuth'" in result.stderr


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        (
            "prompt_role=system",
            "tool_rules: the prompt has a {question}, but after a system message the question is a user message",
        ),
        ("prompt=research_rules", "research_rules: the prompt has no {question}"),
        ("prompt=p3_decide_no_ex", "sleuth prompts import p3_decide_no_ex FILE"),
        ("template_flags={ thinking = true }", "template_flags.thinking: the chat template has no such flag"),
        ("forced_search=true", "the dialect 'chat' has no opening search tag"),
        ("hint=nothing.txt", "'nothing.txt': no such file, and no prompt of that name"),
    ],
)
def test_a_chat_that_cannot_be_is_one_line_before_the_first_step(recipe, tmp_path, monkeypatch, override, complaint):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    said = refused(recipe, f"stage.0.env.{override}")
    assert said.startswith("stage.0 (grpo): ")
    assert complaint in said


def test_a_dialect_of_messages_needs_a_role_for_its_prompt(recipe):
    recipe.write_text(recipe.read_text().replace("template_flags", "# template_flags"))
    said = refused(recipe, "stage.0.env.prompt_role=raw")
    assert "needs messages of the model's chat template; set prompt_role" in said


def test_another_sentence_after_a_bad_action_travels_on_the_card(run, recipe, tmp_path):
    """And so does a named limit of results, in the place of the dialect's."""
    (tmp_path / "hint.txt").write_text("Not like that.")
    more = (f"stage.0.env.hint={tmp_path / 'hint.txt'}", "stage.0.env.results_tokens=40", "stage.0.env.turns=3")
    card = ProtocolCard.read(run(recipe, tmp_path / "run", *more))
    assert card is not None
    assert card.dialect.hint == "Not like that."
    assert (card.dialect.results_tokens, card.dialect.passage_tokens, card.dialect.turns) == (40, None, 3)
