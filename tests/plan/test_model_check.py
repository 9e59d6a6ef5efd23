"""What goes wrong with models: templates that fail or never end, stop tokens, tags, and recipes that do not fit."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from model_families import FAMILIES, QWEN2_5, QWEN3_5, Family
from tokenizers import Tokenizer, models
from transformers import CohereConfig, Gemma2Config, PreTrainedTokenizerFast
from verb import sleuth

from sleuth.learn.models import load_outline
from sleuth.plan import model_template
from sleuth.plan.model_check import examine, recipe_findings, tag_finding
from sleuth.plan.model_files import Finding, load_files
from sleuth.recipe import load_recipe
from sleuth.types import SleuthError

ROOT = Path(__file__).parents[2]
TINY, PAGE = ROOT / "models" / "tiny-base", ROOT / "docs" / "how-to" / "check_model.md"


def found_with(**changes: object) -> list[Finding]:
    """The findings on a model with Qwen2.5's habits, changed."""
    return examine(dataclasses.replace(FAMILIES["Qwen2.5"], **changes).files())


def lines(findings: list[Finding], check: str, level: str) -> str:
    return "\n".join(str(one) for one in findings if (one.check, one.level) == (check, level))


def test_a_template_without_end_is_stopped_and_the_rest_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_template, "RENDER_SECONDS", 1.0)
    endless = "{%- for a in range(99999) -%}{%- for b in range(99999) -%}{%- endfor -%}{%- endfor -%}"
    found = found_with(template=endless)
    assert "rendering was stopped: it does not end within 1 s" in lines(found, "template", "problem")
    assert lines(found, "tags", "ok")


RAISES = "{{%- if {} -%}}{{{{- raise_exception('{}') -}}}}{{%- endif -%}}"
THOUGHT = "{%- for m in messages -%}" + RAISES.format("'<think>' in m.content", "a thought") + "{%- endfor -%}"
SYSTEM = RAISES.format("messages[0].role == 'system'", "no system role")
SEVERAL = RAISES.format("messages | length > 1", "one message only") + "{{- messages -}}"
FORGETS = QWEN3_5.replace("if enable_thinking is defined and not enable_thinking", "if true")
NO_CALLS = QWEN2_5.replace("m.tool_calls or []", "[]")
TEXT = {"eos": "<|endoftext|>", "stops": ("<|endoftext|>",)}


@pytest.mark.parametrize(
    ("changes", "check", "level", "reason"),
    [
        (
            {"template": "{{- 'x' * 2000000 -}}"},
            "template",
            "problem",
            "it writes 2,000,000 characters for a few lines",
        ),
        ({"template": "{{- ('x' * 9000000000) | length -}}"}, "template", "problem", "needs more than 4 GB of memory"),
        ({"template": "{%- if -%}"}, "template", "problem", "it cannot render a user's question: "),
        ({"template": SEVERAL}, "template", "problem", "it cannot render a conversation of several turns: one"),
        ({"template": "{{- 1 / 0 -}}"}, "template", "problem", "cannot render a user's question: division by zero"),
        (
            {"template": "{{- messages | length -}}"},
            "template",
            "problem",
            "it drops the user's question, if that is no",
        ),
        ({"template": "{{- messages[0].content -}}"}, "template", "problem", "it drops what the assistant said"),
        ({"template": SYSTEM + QWEN2_5}, "template", "warning", "it refuses a system message: no system role"),
        ({"template": None}, "template", "warning", "there is no chat template: a base model"),
        ({"template": FORGETS}, "history", "warning", "at the second question the template changes earlier text: "),
        ({"template": THOUGHT + QWEN2_5}, "history", "warning", "refuses turns as the policy wrote them: a thought"),
        ({"template": NO_CALLS}, "tool calls", "ok", "the policy learns them from prompts"),
        (TEXT, "stop tokens", "problem", "ends a turn with <|im_end|>, and sampling stops at <|endoftext|>"),
        (
            TEXT | {"controls": ("<|im_start|>",)},
            "stop tokens",
            "problem",
            "<|im_end|>, which the tokenizer splits into",
        ),
    ],
)
def test_what_is_wrong_with_a_template_or_its_stop_tokens_is_named(changes, check, level, reason) -> None:
    found = found_with(**changes)
    assert reason in lines(found, check, level)
    if changes.get("template", "") is None:
        assert not [one for one in found if one.level == "problem"]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("generation_config.json", "[]", "problem: generation config: generation_config.json cannot be used: "),
        ("generation_config.json", '{"eos_token_id": "x"}', "problem: generation config: "),
        ("config.json", '{"model_type": "none"}', "warning: config: this transformers cannot read its config: "),
    ],
)
def test_a_damaged_config_is_a_finding(file: str, content: str, reason: str, tmp_path: Path) -> None:
    saved(FAMILIES["Granite 4"], tmp_path)
    (tmp_path / file).write_text(content)
    assert reason in "\n".join(map(str, examine(load_files(str(tmp_path)))))


def test_a_tag_that_a_tokenizer_cannot_write_is_a_problem() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"?": 0}, unk_token="?")))
    tokenizer.unk_token = "?"
    finding = tag_finding(tokenizer)
    assert (finding.level, "the tokenizer cannot write <think>, " in finding.line) == ("problem", True), finding.line


def saved(family: Family, folder: Path) -> Path:
    files = family.files()
    files.tokenizer.save_pretrained(folder)
    assert files.config is not None
    assert files.generation is not None
    files.config.save_pretrained(folder)
    files.generation.save_pretrained(folder)
    return folder


def recipe(folder: Path, env: str, context: int = 4096, scorer: str = "strict") -> Path:
    file = folder / "r.toml"
    file.write_text(f"""
name = "r"
model = "elsewhere"
[[stage]]
kind = "grpo"
steps = 2
prompts_per_step = 1
samples_per_prompt = 2
learning_rate = 1e-3
context = {context}
data = {{ questions = "q.jsonl" }}
env = {{ kind = "search", retriever = "empty", {env} }}
reward = [{{ kind = "answer", scorer = "{scorer}" }}]
""")
    return file


CHAT = 'dialect = "chat", prompt = "plain", prompt_role = "user"'
RAW = 'dialect = "sleuth", prompt = "plain"'


def test_a_folder_is_checked_with_a_recipe_and_printed_as_json(tmp_path: Path) -> None:
    model = saved(FAMILIES["Qwen3"], tmp_path / "model")
    result = sleuth("check", "model", model, "--recipe", recipe(tmp_path, CHAT), "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"]) == (0, True)
    assert found["seconds"] < 60
    stage = [one["line"] for one in found["findings"] if one["check"] == "stage.0 (grpo)"]
    assert stage[0] == "the scorer strict pays a right answer 1, through this template"
    assert "of context = 4,096 tokens and leaves" in stage[1]


@pytest.mark.parametrize(
    ("env", "context", "scorer", "reason"),
    [
        (CHAT, 4096, "search_r1", "the scorer search_r1 would pay"),
        (RAW, 70, "strict", "less than one turn of 64"),
        (RAW, 65536, "strict", "context = 65,536 is more than the 32,768"),
    ],
)
def test_a_recipe_that_does_not_fit_is_a_problem(
    env: str, context: int, scorer: str, reason: str, tmp_path: Path
) -> None:
    found = list(recipe_findings(FAMILIES["Qwen3"].files(), load_recipe(recipe(tmp_path, env, context, scorer))))
    assert reason in lines(found, "stage.0 (grpo)", "problem")


def test_a_dialect_that_the_template_cannot_speak_is_a_problem_of_the_recipe(tmp_path: Path) -> None:
    model = saved(FAMILIES["Gemma 3"], tmp_path / "model")
    result = sleuth("check", "model", model, "--recipe", recipe(tmp_path, CHAT))
    assert result.exit_code == 1
    assert "problem: stage.0 (grpo): the chat template does not render tools" in result.stdout


def test_the_tiny_model_has_no_problem_and_the_docs_show_its_lines() -> None:
    result = sleuth("check", "model", TINY)
    *findings, count = result.stdout.splitlines()
    assert (result.exit_code, count.partition(" (")[0]) == (0, "0 problems, 2 warnings")
    assert "\n".join(findings) in PAGE.read_text(), f"{PAGE.name} should show:\n{result.stdout}"


@pytest.mark.parametrize(
    ("file", "text", "more", "reason"),
    [
        ("tokenizer.json", None, (), "no tokenizer there"),
        ("tokenizer_config.json", "[]", (), "no tokenizer could be loaded"),
        ("tokenizer.json", '{"added_tokens": [], "model": {"type": "none"}}', (), "no tokenizer could be loaded"),
        ("other.txt", "", ("--recipe", "none.toml"), "no such recipe"),
    ],
)
def test_wrong_or_damaged_input_is_one_line(tmp_path: Path, file, text, more, reason) -> None:
    model = tmp_path / "model"
    if text is None:
        model.mkdir()
    else:
        shutil.copytree(TINY, model)
        (model / file).write_text(text)
    result = sleuth("check", "model", model, *more)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert reason in result.stderr


@pytest.mark.parametrize("text", ["[1]", '{"eos_token_id": "x"}'])
def test_a_generation_config_that_cannot_be_used_is_one_line_where_a_model_is_loaded(tmp_path: Path, text: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    (model / "generation_config.json").write_text(text)
    with pytest.raises(SleuthError, match=r"generation_config\.json"):
        load_outline(str(model))


def test_servers_are_advised_only_where_rollouts_are_slow() -> None:
    model = FAMILIES["Qwen2.5"].files()
    of_cohere = examine(dataclasses.replace(model, config=CohereConfig()))
    assert lines(of_cohere, "family", "warning").endswith("its logits have a factor, logit_scale")
    of_gemma = examine(dataclasses.replace(model, config=Gemma2Config()))
    assert lines(of_gemma, "family", "warning").endswith('let servers sample: [stage.engine] launch = "vllm"')
