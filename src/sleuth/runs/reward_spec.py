"""What was paid for, as an object with a hash: it travels with every checkpoint, and a run does not go on under
another."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from pydantic import BaseModel, ConfigDict


class RewardPart(BaseModel):
    """One reward of the sum: its kind and weight, and which version of which scorer read the episodes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    kind: str
    """As in `[[stage.reward]]`."""
    scorer: str
    """Who decides."""
    scorer_version: int
    """Raised whenever the same episode could score differently."""
    weight: float
    """What the score is multiplied by."""
    shuffle: bool = False
    """A control arm, where scores say nothing about their episodes."""


class RewardSpec(BaseModel):
    """All that decides what an episode is worth."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    aggregation: Literal["sum"] = "sum"
    """How the parts become one score."""
    parts: tuple[RewardPart, ...]
    """In the order of the recipe."""

    @property
    def hash(self) -> str:
        """The first 12 digits of a sha256: two rewards with the same one pay the same."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()[:12]
