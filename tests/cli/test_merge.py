from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
from typer.testing import CliRunner, Result

from sleuth.cli.app import Verbs
from sleuth.cli.merge import merge

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


def sleuth(*arguments: object) -> Result:
    app = typer.Typer(cls=Verbs)
    app.command("merge")(merge)
    app.command("other")(lambda: None)
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="sleuth")


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


def test_json_is_one_object_and_nothing_else(actor: Path, tmp_path: Path) -> None:
    result = sleuth("merge", actor, tmp_path / "out", "--dtype", "bfloat16", "--max-shard-size", "8KB", "--json")
    assert json.loads(result.stdout) == {
        "folder": str(tmp_path / "out"),
        "ranks": 1,
        "tensors": 13,
        "parameters": 9120,
        "dtype": "bfloat16",
        "bytes": 18240,
        "files": 3,
    }
    assert result.stdout.count("\n") == 1


def test_an_untied_copy_has_one_tensor_more(actor: Path, tmp_path: Path) -> None:
    result = sleuth("merge", actor, tmp_path / "out", "--untie")
    assert result.stdout.startswith(f"{tmp_path / 'out'}: 14 tensors, 10,432 parameters, float32")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    again = sleuth("merge", tmp_path / "out", tmp_path / "again", "--untie")
    assert (again.exit_code, again.stdout, again.stderr.count("\n")) == (2, "", 1)


def test_a_config_in_another_folder_can_be_named(actor: Path, tmp_path: Path) -> None:
    (actor / "huggingface").rename(tmp_path / "base")
    refused = sleuth("merge", actor, tmp_path / "out")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--config DIR" in refused.stderr
    assert sleuth("merge", actor, tmp_path / "out", "--config", tmp_path / "base").exit_code == 0


@pytest.mark.parametrize("arguments", [("gone", "out"), ("actor", "actor"), ("actor", "out", "--max-shard-size", "x")])
def test_a_mistake_is_one_line_and_status_2(
    actor: Path, tmp_path: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = sleuth("merge", *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("error: ")
    assert not (tmp_path / "out").exists()
