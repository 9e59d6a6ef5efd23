"""A reward, a tool, an environment and a loss as one writes them for TRL, which the docs count: they run."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from recorded import END, write_model

pytest.importorskip("trl", reason="`make trainers` makes an environment with TRL")

from datasets import Dataset
from recorded_trainer import RecordedTrainer
from trl import GRPOConfig
from trl.chat_template_utils import qwen3_chat_template

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = [{"prompt": [{"role": "user", "content": "I think of a number."}], "golden_answers": ["3"]}]


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("own_code", "other_trainers"):
        monkeypatch.syspath_prepend(str(EXAMPLES / folder))


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>{END}'


def longer(completion_ids: list[list[int]], **columns: object) -> list[float]:
    return [float(len(tokens)) for tokens in completion_ids]


def scripted(
    folder: Path, *turns: str, kind: type[RecordedTrainer] = RecordedTrainer, rows: Any = None, **options: Any
) -> Any:
    """A trainer whose two siblings write these turns, the first ones first."""
    write_model(folder / "model", qwen3_chat_template)
    config = {"per_device_train_batch_size": 2, "num_generations": 2, "max_steps": 1, "learning_rate": 1e-2}
    config |= {name: options.pop(name) for name in ("max_steps", "shuffle_dataset", *config) if name in options}
    trainer = kind(
        model=str(folder / "model"),
        train_dataset=Dataset.from_list(ROWS) if rows is None else rows,
        args=GRPOConfig(output_dir=str(folder), report_to="none", save_strategy="no", use_cpu=True, **config),
        **options,
    )
    trainer.script.extend(turns)
    return trainer


def test_a_reward_and_a_tool(tmp_path: Path) -> None:
    from my_tools import calculator
    from trl_reward import brevity

    turns = call("calculator", '{"expression": "6 * 7"}'), END, f"42{END}"
    trainer = scripted(tmp_path, *turns, reward_funcs=[brevity], tools=[calculator])
    trainer.train()
    assert "\n42\n</tool_response>" in trainer.processing_class.decode(trainer.last_ids[0])
    assert trainer.rewards[1, 0] == pytest.approx(1 - 1 / 60)
    assert trainer.rewards[0, 0] < trainer.rewards[1, 0]


def test_an_environment(tmp_path: Path) -> None:
    from trl_env import Guessing

    turns = call("guess", '{"number": 1}'), call("guess", '{"number": 3}'), call("guess", '{"number": 3}'), END, END
    trainer = scripted(tmp_path, *turns, environment_factory=Guessing, reward_funcs=[])
    trainer.train()
    assert trainer.rewards[:, 0].tolist() == [0.5, 1.0]


def test_a_stateful_environment(tmp_path: Path) -> None:
    from trl_bank import Bank

    transfer = call("transfer", '{"payer": "Ada", "payee": "Bo", "amount": 10}')
    row = {**ROWS[0], "accounts": {"Ada": 100, "Bo": 20}, "wanted": {"Ada": 90, "Bo": 30}}
    turns = transfer, call("balance", '{"owner": "Bo"}'), END, END
    rows = Dataset.from_list([row])
    trainer = scripted(tmp_path, *turns, rows=rows, environment_factory=Bank, reward_funcs=[])
    trainer.train()
    assert trainer.rewards[:, 0].tolist() == [1.0, 0.0]


def test_a_loss(tmp_path: Path) -> None:
    from trl_loss import FadedTrainer

    class Recorded(FadedTrainer, RecordedTrainer):
        """The example's trainer, with a policy that is told what to write."""

    trainer = scripted(tmp_path, f"one two three{END}", END, kind=Recorded, reward_funcs=[longer])
    before = trainer.model.get_input_embeddings().weight.clone()
    trainer.train()
    [row, *_] = trainer.state.log_history
    tokens = len(trainer.last_ids[0]) + 1
    advantage = 0.5**0.5
    assert row["train_loss"] == pytest.approx(-advantage * (tokens - 2) / tokens, rel=1e-3)
    assert (trainer.model.get_input_embeddings().weight != before).any()


def test_a_metric() -> None:
    from trl_metric import turns

    said = {"role": "assistant", "content": "5"}
    assert turns(completions=[[said], [said, {"role": "tool", "content": "3"}, said]], questions=["?", "?"]) == [
        1.0,
        2.0,
    ]


def test_a_schedule_by_the_figures_of_the_run(tmp_path: Path) -> None:
    from trl_schedule import Gentle

    trainer = scripted(tmp_path, reward_funcs=[longer])
    gentle, seen = Gentle(trainer), []
    for kl in (None, 0.2, 0.05):
        trainer.state.log_history += [{"kl": kl}, {"train_loss": 1.0}] if kl is not None else []
        gentle.on_step_begin(trainer.args, trainer.state, trainer.control)
        seen.append(trainer.beta)
    assert seen == [0.001, 0.01, 0.001]


def test_a_batch_wide_advantage(tmp_path: Path) -> None:
    from trl_advantage import BatchTrainer

    class Recorded(BatchTrainer, RecordedTrainer):
        """The example's trainer, with a policy that is told what to write."""

    turns = [f"{'a ' * times}{END}" for times in (1, 2, 3, 6)]
    options = {"per_device_train_batch_size": 4, "reward_funcs": [longer]}
    trainer = scripted(tmp_path, *turns, kind=Recorded, rows=Dataset.from_list(ROWS * 2), **options)
    trainer.train()
    lengths = trainer.rewards[:, 0]
    assert trainer.outputs["advantages"].tolist() == pytest.approx((lengths - lengths.mean()).tolist())


@pytest.mark.parametrize("source", ["a curriculum", "a stream of rows"])
def test_rows_of_ones_own(tmp_path: Path, source: str) -> None:
    if source == "a curriculum":
        from trl_curriculum import rows
    else:
        from trl_stream import lines

        (tmp_path / "rows.jsonl").write_text("".join(f'{{"question": "Question {at}?"}}\n' for at in range(8)))
        rows = lines(str(tmp_path / "rows.jsonl"))
    trainer = scripted(tmp_path, rows=rows, max_steps=2, shuffle_dataset=False, reward_funcs=[longer])
    trainer.train()
    asked = [row["prompt"][0]["content"] for row in trainer.asked]
    assert asked == [question for row in rows.take(2) for question in [row["prompt"][0]["content"]] * 2]


def test_the_example_trains_the_example_recipe(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "world").symlink_to(world)
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model", qwen3_chat_template)
    overrides = ["model=model", "grpo.context=1000", "grpo.env.turn_tokens=8", "grpo.data.limit=3"]
    monkeypatch.setattr(sys, "argv", ["search_in_trl.py", str(EXAMPLES / "other_trainers" / "chat.toml"), *overrides])
    runpy.run_path(str(EXAMPLES / "other_trainers" / "search_in_trl.py"))
    logged = [line for line in capsys.readouterr().out.splitlines() if "rewards/recipe_reward/mean" in line]
    assert len(logged) == 3
