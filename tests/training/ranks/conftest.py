"""A recipe for each stage that trains, in a small world."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import finish, torchrun_forking

from sleuth.think.world_texts import CarelessTexts

MODEL = Path(__file__).parents[3] / "models" / "tiny-base"

SEARCHES = """
kind = "grpo"
steps = 4
prompts_per_step = 4
samples_per_prompt = 8
slots = 32
context = 400
tokens_per_micro_batch = 512
save_every = 2
keep = 4
probe_prompts = 0
data = {{ questions = "{world}/qa_train.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", index = "{world}/index", turn_tokens = 20 }}
reward = [{{ kind = "answer" }}, {{ kind = "format", weight = 0.2 }}]
loss = {{ beta = 0.05 }}
"""
STAGES = {
    "supervised": """
kind = "supervised"
steps = 4
rows_per_step = 6
learning_rate = 1e-4
source_weight = 0.2
tokens_per_micro_batch = 256
save_every = 2
keep = 4
data = {{ kind = "world_text", people = 50, mix = {{ reading = 0.5, episode = 0.5 }} }}
""",
    "grpo": SEARCHES
    + """
learning_rate = 1e-4
credit = {{ kind = "search_gain", margin = 1.0, penalty = 0.2 }}
""",
    "lora": SEARCHES
    + """
learning_rate = 1e-3
lora = {{ rank = 4, alpha = 8.0 }}
""",
    "minibatches": SEARCHES
    + """
learning_rate = 1e-4
updates_per_batch = 2
prompts_per_update = 2
""",
    "thoughts": """
kind = "grpo"
steps = 4
prompts_per_step = 4
samples_per_prompt = 3
learning_rate = 1e-4
context = 400
save_every = 2
keep = 4
probe_prompts = 0
data = {{ kind = "text", texts = "{texts}", suffix_tokens = 6, limit = 12 }}
env = {{ kind = "thought", thought_tokens = 8, close = "inserted" }}
reward = [{{ kind = "gain" }}]
""",
    "online_dpo": """
kind = "online_dpo"
steps = 4
prompts_per_step = 4
samples_per_prompt = 3
learning_rate = 1e-4
save_every = 2
keep = 4
stops = ["."]
data = {{ kind = "text", texts = "{texts}", suffix_tokens = 6, limit = 12 }}
reward = [{{ kind = "pairwise", judge = "ending" }}]
""",
}


@pytest.fixture(scope="session")
def recipes(world, once) -> dict[str, Path]:
    """Recipe files by the kind of their stage."""

    def make(folder: Path) -> None:
        folder.mkdir()
        texts = CarelessTexts(200, "train", (0,))
        with open(folder / "texts.jsonl", "w") as file:
            for number in range(12):
                text = texts.text(number)
                row = {"id": f"text-{number}", "text": text.text, "cut": len(text.beginning)}
                row |= {"golden_answers": [text.answer]}
                file.write(json.dumps(row) + "\n")
        for kind, stage in STAGES.items():
            head = f'name = "{kind}"\nmodel = "{MODEL}"\nseed = 4\n\n[[stage]]'
            (folder / f"{kind}.toml").write_text(head + stage.format(world=world, texts=folder / "texts.jsonl"))

    folder = once("ranks", make)
    return {kind: folder / f"{kind}.toml" for kind in STAGES}


@pytest.fixture(scope="session")
def under_torchrun(recipes, once) -> Path:
    """The folder of the GRPO recipe's run that torchrun started on two ranks, and that nobody disturbed."""

    def make(folder: Path) -> None:
        said = finish(torchrun_forking("train", str(recipes["grpo"]), "--run", str(folder)))
        assert "the last checkpoint" in said, said

    return once("torchrun", make)
