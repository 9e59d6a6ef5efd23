"""Several updates on one batch are those of TRL's own trainer with `num_iterations`."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import write_model

from sleuth.learn.batch import Row, collate
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.models import load_model
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, TokenBudget
from sleuth.training.learning import update_on

pytest.importorskip("trl", reason="`make trainers` makes an environment with TRL")

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

PASSES, PROMPT, ANSWER, LETTERS = 3, 4, 6, 50
LOW, HIGH, RATE = 0.01, 0.02, 3e-3


class FrozenTrainer(GRPOTrainer):
    """TRL's trainer on one batch of completions that were written beforehand, with its own old log-probabilities."""

    frozen: dict[str, torch.Tensor]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch = self.frozen
        tokens = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        with torch.no_grad():
            old, _, _ = self._get_per_token_logps_and_entropies(self.model, tokens, mask, ANSWER)
        self.old = old
        return batch | {"old_per_token_logps": old, "num_items_in_batch": batch["completion_mask"].sum()}


def frozen_batch(draw: random.Random, rows: int) -> dict[str, torch.Tensor]:
    """Prompts of one length; completions padded on the right."""
    lengths = torch.tensor([draw.randint(2, ANSWER) for _ in range(rows)])
    tokens = torch.tensor([[draw.randrange(1, LETTERS) for _ in range(PROMPT + ANSWER)] for _ in range(rows)])
    mask = (torch.arange(ANSWER) < lengths[:, None]).long()
    return {
        "prompt_ids": tokens[:, :PROMPT],
        "prompt_mask": torch.ones_like(tokens[:, :PROMPT]),
        "completion_ids": tokens[:, PROMPT:] * mask,
        "completion_mask": mask,
        "advantages": torch.tensor([draw.uniform(-2, 2) for _ in range(rows)]),
    }


def rows_of(batch: dict[str, torch.Tensor], old: torch.Tensor) -> list[Row]:
    rows = []
    for at, length in enumerate(batch["completion_mask"].sum(dim=1).tolist()):
        written = batch["completion_ids"][at, :length].tolist()
        rows.append(
            Row(
                tokens=(*batch["prompt_ids"][at].tolist(), *written),
                trained=(False,) * PROMPT + (True,) * length,
                advantage=float(batch["advantages"][at]),
                sampler_logprobs=(0.0,) * PROMPT + tuple(old[at, :length].tolist()),
            )
        )
    return rows


def test_three_passes_over_a_frozen_batch_leave_the_weights_of_trl(once: Callable[..., Path], tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        folder.mkdir()
        write_model(folder / "model", qwen3_chat_template)

    model, tokenizer = load_model(str(once("trl-iterations", make) / "model"), dtype="float32", device="cpu")
    theirs = copy.deepcopy(model)
    trainer = FrozenTrainer(
        model=theirs,
        processing_class=tokenizer,
        reward_funcs=[lambda completions, **columns: [0.0] * len(completions)],
        train_dataset=Dataset.from_list([{"prompt": "?"}] * 8),
        args=GRPOConfig(
            output_dir=str(tmp_path), report_to="none", save_strategy="no", use_cpu=True, bf16=False,
            gradient_checkpointing=False, disable_dropout=True, per_device_train_batch_size=8, num_generations=4,
            gradient_accumulation_steps=1, steps_per_generation=1, num_iterations=PASSES, max_steps=PASSES,
            learning_rate=RATE, lr_scheduler_type="constant", adam_beta1=0.9, adam_beta2=0.95, weight_decay=0.0,
            max_grad_norm=1.0, loss_type="dapo", epsilon=LOW, epsilon_high=HIGH, beta=0.0, temperature=1.0,
            logging_steps=1,
        ),
    )  # fmt: skip
    trainer.frozen = frozen_batch(random.Random(0), rows=8)
    trainer.train()

    policy = Policy(model, Optimisation(steps=1, learning_rate=RATE, betas=(0.9, 0.95)))
    loss = PolicyLoss(old_logprobs="sampler", clip_low=LOW, clip_high=HIGH)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    batch = collate(rows_of(trainer.frozen, trainer.old))
    figures = update_on(policy, [batch], loss, TokenBudget(4096), passes=PASSES)
    assert figures.clip_fraction > 0.05
    trained = dict(theirs.named_parameters())
    moved = {name: (weight - before[name]).norm() for name, weight in trained.items()}
    for name, weight in model.named_parameters():
        assert (weight - trained[name]).norm() <= 1e-3 * moved[name] + 1e-6, name
    clipped = [row["clip_ratio/region_mean"] for row in trainer.state.log_history if "clip_ratio/region_mean" in row]
    assert len(clipped) == PASSES
    assert figures.clip_fraction == pytest.approx(sum(clipped) / PASSES, abs=1e-3)
