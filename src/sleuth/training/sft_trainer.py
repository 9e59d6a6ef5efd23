"""What is taught rows of text, whoever writes them."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.factories import holding_on, optimisation_of
from sleuth.learn.batch import Batch
from sleuth.learn.policy import NotFiniteError, Policy, no_update
from sleuth.recipe.training import TrainingRecipe
from sleuth.runs.protocol import ProtocolCard
from sleuth.stage_context import Saved, StageContext


class SFTTrainer:
    """A model with its policy and its budget of tokens, as `saved` left them or new. A stage that teaches rows is one
    and adds its `step`."""

    protocol: ProtocolCard | None = None
    """What goes with its checkpoints, where it plays episodes."""

    def __init__(
        self,
        stage: TrainingRecipe,
        run: StageContext,
        saved: Saved | None,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
    ) -> None:
        self.run = run
        self.model = model
        self.tokenizer = tokenizer
        self.policy = Policy(
            model,
            optimisation_of(stage),
            gradient_checkpointing=stage.gradient_checkpointing,
            holding=holding_on(run.ranks, offload=stage.cpu_offload),
        )
        self.budget = run.token_budget(saved)
        if saved:
            self.policy.load_state_dict(saved.state["policy"])

    def learn(self, batch: Batch, started: float) -> dict[str, Any]:
        """One optimiser step on a batch; its figures. Its time is counted from `started`, when the batch was begun."""
        try:
            update = asdict(self.budget.run(lambda budget: self.policy.supervise(batch, budget=budget)))
        except NotFiniteError as error:
            update = no_update() | {"not_finite": str(error)}
        return update | {"seconds_update": time.monotonic() - started}

    def opening(self) -> list[str]:
        """Nothing is probed: the rows are what they are."""
        return []

    def note(self, figures: dict[str, Any]) -> str:
        """The loss is what falls here."""
        return "no update" if figures["loss"] is None else f"loss {figures['loss']:.3f}"

    def remarks(self, step: int, figures: dict[str, Any]) -> list[str]:
        """None, unless the stage measures something beside the loss."""
        return []

    def evidence(self, alarm: str) -> str:
        """There are no rollouts."""
        return ""

    def save(self, step: int) -> Path:
        """A checkpoint after `step` steps."""
        state = {"policy": self.policy.state_dict(), "budget": self.budget.tokens}
        return self.run.save(step, self.model, self.tokenizer, state, protocol=self.protocol)
