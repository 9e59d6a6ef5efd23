"""TRL's update: `GRPOTrainer.train` on given completions.

The trainer's loop, loss, micro-batches, clipping and optimiser are unchanged. Only the method that generates and scores
is replaced by one that returns the rows, in the layout and with the keys of the original; with a KL term it computes
the reference's log-probabilities with the trainer's own method, as the original does.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

from benchmarks.sides import LEARNING_RATE, MAX_GRAD_NORM, Terms, open_policy
from sleuth.learn.batch import Row

STEPS = 8
"""More steps than any measurement needs."""


class Trl:
    """TRL's trainer with micro-batches of `setting` rows."""

    def __init__(self, terms: Terms, model: PreTrainedModel | None = None, tokenizer: Any = None, **more: Any) -> None:
        self.terms = terms
        self.clock = Clock()
        self.trainer = GRPOTrainer(
            model=open_policy(terms) if model is None else model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=grpo_config(terms, **more),
            train_dataset=Dataset.from_dict({"prompt": ["-"] * terms.rows * STEPS}),
            processing_class=AutoTokenizer.from_pretrained(terms.model) if tokenizer is None else tokenizer,
            callbacks=[self.clock],
        )

    def play(self, batches: Sequence[Sequence[Row]]) -> list[float]:
        """The seconds of one step of the trainer for each batch."""
        given = self._given(batches)
        self.trainer._generate_and_score_completions = lambda prompts: next(given)
        self.trainer.args.max_steps = len(batches)
        self.trainer.train()
        return self.clock.seconds

    def gradients(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """The gradient just before the optimiser's step; clipping is off."""
        self.trainer.args.max_grad_norm = 0.0
        self.play([rows])
        return self.clock.gradients

    def _given(self, batches: Sequence[Sequence[Row]]) -> Iterator[dict[str, Any]]:
        for rows in batches:
            given = completions_of(rows)
            inputs = {name: tensor.to(self.trainer.model.device) for name, tensor in given.items()}
            if self.terms.beta:
                ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
                mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
                with torch.no_grad():
                    inputs["ref_per_token_logps"], *_ = self.trainer._get_per_token_logps_and_entropies(
                        self.trainer.ref_model,
                        ids,
                        mask,
                        inputs["completion_ids"].shape[1],
                        batch_size=self.terms.setting,
                    )
            yield inputs


class Clock(TrainerCallback):
    """Seconds of every step, from before its first micro-batch to after the optimiser; the gradients of the last."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.gradients: dict[str, Tensor] = {}
        self._started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _synchronise(kwargs["model"].device)
        self._started = time.perf_counter()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.max_grad_norm == 0:
            self.gradients = {name: weight.grad.clone() for name, weight in kwargs["model"].named_parameters()}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _synchronise(kwargs["model"].device)
        self.seconds.append(time.perf_counter() - self._started)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def grpo_config(terms: Terms, **more: Any) -> GRPOConfig:
    """TRL's settings for the loss that all sides share. Its correction of the KL's gradient is off: ours has none."""
    settings = {
        "output_dir": tempfile.mkdtemp(prefix="trl-"),
        "per_device_train_batch_size": terms.setting,
        "gradient_accumulation_steps": terms.rows // terms.setting,
        "num_generations": terms.siblings,
        "max_steps": STEPS,
        "loss_type": "dapo",
        "beta": terms.beta,
        "use_bias_correction_kl": False,
        "epsilon": 0.2,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": MAX_GRAD_NORM,
        "gradient_checkpointing": terms.recompute,
        "bf16": False,
        "use_cpu": True,
        "shuffle_dataset": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
    }
    return GRPOConfig(**settings | more)


def completions_of(rows: Sequence[Row]) -> dict[str, Any]:
    """What `_generate_and_score_completions` returns: prompts, completions, masks, advantages, the denominator."""
    prompt = rows[0].trained.index(True)
    tokens = torch.tensor([row.tokens for row in rows])  # (B, T): all rows are equally long
    written = torch.tensor([row.trained for row in rows])[:, prompt:].long()
    return {
        "prompt_ids": tokens[:, :prompt],
        "prompt_mask": torch.ones_like(tokens[:, :prompt]),
        "completion_ids": tokens[:, prompt:],
        "completion_mask": torch.ones_like(tokens[:, prompt:]),
        "tool_mask": written,
        "advantages": torch.tensor([row.advantage for row in rows]),
        "num_items_in_batch": written.sum(),
    }
