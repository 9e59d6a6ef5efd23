"""`protocol.json`: the protocol that a checkpoint was trained under travels with it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sleuth.dialects import Dialect
from sleuth.recipe.data import AskWith
from sleuth.runs.atomic import write_text
from sleuth.types import SleuthError


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


FILE = "protocol.json"
HISTORY = {"sleuth_version", "reward", "questions_sha256"}
"""The fields that tell where a checkpoint comes from, not how it is to be asked."""


def text_sha256(text: str) -> str:
    """sha256 of a text's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


class ProtocolCard(BaseModel):
    """All that must be the same for a checkpoint to be asked as it was trained: evaluation and serving read it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    dialect: Dialect
    """The search dialect, whole: tags, wrappers, passage format, action rule, stops, hint and budgets."""
    prompt: str
    """Name of the prompt."""
    prompt_text: str
    """The prompt itself, byte for byte."""
    prompt_sha256: str
    """`text_sha256(prompt_text)`; a card whose prompt was edited by hand is refused."""
    ask_with: AskWith = "question"
    """What stood in its place of the question."""
    prompt_role: Literal["raw", "user", "system"] = "raw"
    """Where the prompt stands: as it is, or in a message of the chat template."""
    template_flags: dict[str, bool | int | float | str] = {}
    """What the chat template was told besides."""
    template_sha256: str | None = None
    """The chat template; None where none was used."""
    context: Annotated[int, Field(gt=0)]
    """Longest episode in tokens, prompt included."""
    forced_search: bool = False
    """The environment opens the first search."""
    scorer: str
    """Who decided what a right answer is."""
    corpus_sha256: str | None = None
    """The corpus that was searched; None where nothing was."""
    reward: RewardSpec | None = None
    """What was paid for; None where nothing was trained."""
    questions_sha256: str | None = None
    """The questions it was trained on."""
    sleuth_version: str
    """The version that trained it."""

    @model_validator(mode="after")
    def _prompt_is_whole(self) -> Self:
        if self.prompt_sha256 != text_sha256(self.prompt_text):
            raise ValueError("prompt_text is not the text that prompt_sha256 was taken of")
        return self

    @property
    def hash(self) -> str:
        """sha256 of how questions are asked and answers are judged, whatever was trained on what: two evaluations with
        the same one can be compared."""
        return text_sha256(json.dumps(self.model_dump(exclude=HISTORY), sort_keys=True))

    def write(self, checkpoint: Path) -> None:
        """Put the card into a checkpoint's folder."""
        write_text(checkpoint / FILE, self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, checkpoint: Path) -> Self | None:
        """The card of a checkpoint; None for a model that carries none. A card that is not whole is a `SleuthError`."""
        path = checkpoint / FILE
        if not path.exists():
            return None
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"]))
            reason = str(problem.get("ctx", {}).get("error", problem["msg"]))
            raise SleuthError(f"{path}: {where + ': ' if where else ''}{reason}") from None
