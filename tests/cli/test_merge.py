from __future__ import annotations

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from verb import printed_json, refusal, sleuth

from sleuth.episodes.protocol import ProtocolCard
from sleuth.evaluation.eval_session import EvalOverrides
from sleuth.host import cards
from sleuth.host.checksums import of_model, require_intact
from sleuth.recipe.envs import environment_of
from sleuth.types import RetrieverIdentity, Task

ROOT = Path(__file__).parents[2]
CONFIG = Qwen3Config(
    vocab_size=41,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    intermediate_size=48,
    tie_word_embeddings=True,
)


@pytest.fixture
def actor(tmp_path: Path) -> Path:
    folder = tmp_path / "actor"
    model = Qwen3ForCausalLM(CONFIG)
    model.config.save_pretrained(folder / "huggingface")
    torch.save(model.state_dict(), folder / "model_world_size_1_rank_0.pt")
    return folder


def test_merge_prints_what_it_wrote_and_the_next_command(actor: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert sleuth("merge", actor, out).stdout == (
        f"{out}: 13 tensors, 9,120 parameters, float32, 36.5 kB in 1 file\nNext: sleuth eval {out} --questions FILE\n"
    )
    assert AutoModelForCausalLM.from_pretrained(out).dtype == torch.float32
    small = printed_json("merge", actor, tmp_path / "small", "--dtype", "bfloat16")
    counts = {"ranks": 1, "tensors": 13, "parameters": 9120, "bytes": 18240, "files": 1}
    assert small == counts | {"folder": str(tmp_path / "small"), "dtype": "bfloat16"}


def test_an_untied_copy_has_one_tensor_more(actor: Path, tmp_path: Path) -> None:
    result = sleuth("merge", actor, tmp_path / "out", "--untie")
    assert result.stdout.startswith(f"{tmp_path / 'out'}: 14 tensors, 10,432 parameters, float32")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    assert refusal("merge", tmp_path / "out", tmp_path / "again", "--untie")


RECIPE = """
name = "theirs"
model = "OWNER/BASE"

[[stage]]
kind = "grpo"
steps = 10
prompts_per_step = 4
samples_per_prompt = 2
learning_rate = 1e-6
context = 48
data = { questions = "elsewhere/train.jsonl", ask_with = "prompt" }
env = { kind = "search", dialect = "research", prompt = "mine.txt", prompt_role = "user", index = "elsewhere/index" }
reward = [{ kind = "answer", scorer = "verl" }]
"""


@pytest.fixture
def actor_with_tokenizer(actor: Path) -> Path:
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(ROOT / "models" / "tiny-base" / file, actor / "huggingface")
    return actor


def test_a_merge_like_a_recipe_leaves_its_protocol_and_a_card(
    actor_with_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: dict[str, str] = {}

    def download(repository: str, file: str, *, repo_type: str) -> str:
        (tmp_path / "base.md").write_text("---\nlicense: apache-2.0\n---\n")
        return fetched.setdefault(repository, str(tmp_path / "base.md"))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(cards, "_in_cache", lambda name, kind: fetched.get(name))
    (tmp_path / "theirs.toml").write_text(RECIPE)
    (tmp_path / "mine.txt").write_text("Look it up: {question}")
    out = tmp_path / "out"
    like = ("--like", tmp_path / "theirs.toml", "--set", f"stage.0.env.prompt={tmp_path / 'mine.txt'}")
    like += ("--set", 'stage.0.env.required_retriever={kind="dense", encoder="intfloat/e5-base-v2"}')
    result = sleuth("merge", actor_with_tokenizer, out, *like, "--set", "stage.0.env.top_k=2")
    assert result.exit_code == 0, result.stderr
    protocol = ProtocolCard.read(out)
    assert protocol is not None
    assert f"protocol {protocol.hash[:12]}: dialect research, prompt mine\n" in result.stdout
    assert result.stdout.endswith(f"Next: sleuth eval {out} --questions FILE --index DIR\n")
    assert (protocol.prompt_text, protocol.prompt_role, protocol.ask_with) == (
        "Look it up: {question}",
        "user",
        "prompt",
    )
    assert (protocol.dialect.top_k, protocol.context, protocol.scorer) == (2, 48, "verl")
    assert protocol.retriever == RetrieverIdentity(kind="dense", encoder="e5-base-v2")
    assert protocol.reward is not None
    card = (out / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert (front["base_model"], front["license"]) == ("OWNER/BASE", "apache-2.0")
    assert "as in the recipe `theirs`. Its training was not observed, and nothing has been measured." in card
    assert protocol.hash in card
    require_intact(out, of_model)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out)
    tasks = [Task(id="1", question="Who?", golden_answers=("Ada",), prompt="Who was it?")]
    setting, differences = environment_of(protocol.dialect, tasks).setting_to_evaluate(
        protocol, EvalOverrides(), tokenizer, tasks
    )
    assert (setting.dialect, setting.prompt, differences) == (protocol.dialect, protocol.prompt_text, [])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--like", "gone.toml"), "gone.toml"),
        (("--like", ROOT / "recipes" / "thinking_0.6b.toml"), "has no stage of kind grpo that searches or refines"),
        (("--set", "seed=1"), "--set seed=1: changes the recipe of --like RECIPE; name that too"),
    ],
)
def test_a_protocol_that_cannot_be_written_is_one_line_before_any_work(
    actor_with_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[object, ...],
    complaint: str,
) -> None:
    (tmp_path / "theirs.toml").write_text(RECIPE.replace("mine.txt", "plain"))
    monkeypatch.chdir(tmp_path)
    assert complaint in refusal("merge", actor_with_tokenizer, "out", *arguments)
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_merged_keeps_its_protocol_and_card(tmp_path: Path) -> None:
    ours, out = ROOT / "models" / "tiny-real", tmp_path / "out"
    result = sleuth("merge", ours, out, "--dtype", "float32")
    assert "protocol " in result.stdout
    for name in ("protocol.json", "README.md"):
        assert (out / name).read_bytes() == (ours / name).read_bytes()
    weights = tmp_path / "weights"  # of a model that has only the config of ours
    weights.mkdir()
    shutil.copy(ours / "model.safetensors", weights)
    assert sleuth("merge", weights, tmp_path / "named", "--config", ours).exit_code == 0
    assert not (tmp_path / "named" / "protocol.json").exists()
    other = ("--like", ROOT / "recipes" / "tiny" / "real.toml")
    assert sleuth("merge", ours, tmp_path / "other", *other, "--set", "grpo.context=64").exit_code == 0
    assert (tmp_path / "other" / "protocol.json").read_bytes() != (ours / "protocol.json").read_bytes()


@pytest.mark.parametrize("arguments", [("gone", "out"), ("actor", "actor")])
def test_a_mistake_is_one_line_and_status_2(
    actor: Path, tmp_path: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal("merge", *arguments)
    assert not (tmp_path / "out").exists()
