"""`sleuth check recipe` and `sleuth check protocols`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from verb import printed_json, refusal, sleuth

from sleuth.dialect import DIALECTS
from sleuth.episodes.protocol import ProtocolCard, text_sha256

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
PROMPT = "Asked: {question}\n"
CARD = ProtocolCard(
    dialect=DIALECTS["sleuth"],
    prompt="mine",
    prompt_text=PROMPT,
    prompt_sha256=text_sha256(PROMPT),
    context=200,
    scorer="strict",
    sleuth_version="0",
)
RECIPE = """
name = "r"
model = "{folder}/model"
[[stage]]
kind = "evaluate"
name = "base"
data = {{ questions = "{folder}/q.jsonl" }}
[[stage]]
kind = "grpo"
steps = 1200
stop_after = 1100
prompts_per_step = 1
samples_per_prompt = 2
learning_rate = 1e-3
context = 128
data = {{ questions = "{folder}/q.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "{folder}/prompt.txt", retriever = "empty" }}
reward = [{{ kind = "answer" }}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints `a`, `same` and `b`, a recipe, and a file that is neither."""
    others = {"a": CARD, "same": CARD, "b": CARD.model_copy(update={"context": 512, "scorer": "loose"})}
    for name, card in others.items():
        (tmp_path / name).mkdir()
        card.write(tmp_path / name)
    (tmp_path / "q.jsonl").write_text('{"id": "1", "question": "Where?", "golden_answers": ["here"]}\n')
    (tmp_path / "prompt.txt").write_text("Question: {question}\n")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(folder=tmp_path))
    shutil.copytree(BASE, tmp_path / "model")
    return tmp_path


def test_the_differences_of_two_protocols_are_printed_one_per_line(folder: Path) -> None:
    a, same, b = (folder / name for name in ("a", "same", "b"))
    result = sleuth("check", "protocols", a, b)
    differences = ["context: A 200, B 512", "scorer: A `strict`, B `loose`"]
    assert result.stdout.splitlines() == [f"A is {a}", f"B is {b}", *differences]
    assert len(printed_json("check", "protocols", a, b)["differences"]) == 2
    assert sleuth("check", "protocols", a, same).stdout == "the protocols are the same\n"
    assert printed_json("check", "protocols", a, same) == {"same": True, "differences": []}


def test_what_is_no_checkpoint_with_a_protocol_is_refused_with_one_that_is(folder: Path) -> None:
    for wrong in ("model", "q.jsonl", "nowhere"):
        for pair in ((folder / "a", folder / wrong), (folder / wrong, folder / "a")):
            said = refusal("check", "protocols", *pair)
            assert f"{folder / wrong}: not a checkpoint with a protocol: it has no protocol.json" in said
            assert "RUN/checkpoints/step-000100" in said
    last = folder / "run" / "checkpoints" / "step-000020"
    last.mkdir(parents=True)
    last.with_name("step-000010").mkdir()
    assert refusal("check", "protocols", folder / "run", folder / "a").endswith(f"this run's last one is {last}")
    (folder / "a" / "protocol.json").write_text("{")
    assert "protocol.json: " in refusal("check", "protocols", folder / "a", folder / "b")
