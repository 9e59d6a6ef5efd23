"""What parts of a recipe add to the steps of a GRPO stage: scores that are computed late, and figures of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from sleuth.learn.token_budget import TokenBudget
from sleuth.training.loop import Figures
from sleuth.training.rollout_worker import RolloutWorker
from sleuth.training.stage_context import Saved
from sleuth.types import Group


class Hook:
    """Acts beside the loop of a GRPO stage; each method does nothing until a hook overrides it."""

    def opening(self) -> list[str]:
        """Lines to print before the first step."""
        return []

    def score(self, step: int, groups: list[Group]) -> tuple[list[Group], Figures]:
        """The groups with what can be scored only after all episodes have ended, and figures of it."""
        return groups, {}

    def after_update(self) -> None:
        """Called when an optimiser step has changed the weights."""

    def measure(self, step: int, groups: Sequence[Group]) -> Figures:
        """More figures of a step, once its weights are published."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The hook's part of a checkpoint's state."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookInputs:
    """What hooks are made with. `frozen` has the weights that the stage started from, if they are kept."""

    worker: RolloutWorker
    model: PreTrainedModel
    budget: TokenBudget
    frozen: PreTrainedModel | None
    saved: Saved | None


def hooks_of(inputs: HookInputs) -> list[Hook]:
    """The hooks that a recipe asks for, by its table of credit and its environment."""
    credit = inputs.worker.stage.credit
    return [*(credit.hooks(inputs) if credit is not None else ()), *inputs.worker.setting.hooks(inputs)]
