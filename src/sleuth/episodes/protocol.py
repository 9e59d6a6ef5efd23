"""`protocol.json`: the protocol and reward that a checkpoint was trained under."""

from __future__ import annotations

import hashlib
import json
import operator
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer, model_validator

from sleuth.dialect import LARGEST_LIMIT, Dialect
from sleuth.host.atomic import write_text
from sleuth.host.model_path import require_file
from sleuth.own.functions import merged_sources
from sleuth.recipe.data import AskWith
from sleuth.types import UNKNOWN_RETRIEVER, RetrieverIdentity, SleuthError


class _Record(BaseModel):
    """A part of `protocol.json`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class OwnCode(_Record):
    """Code of the user that a run called."""

    functions: tuple[str, ...]
    """`MODULE:NAME` of each function or class."""
    parameters: dict[str, Any] = {}
    """Their further arguments."""
    sources: dict[str, str]
    """sha256 of each of their files, by its path."""


class RewardPart(_Record):
    """One reward of the sum: its kind and weight, and which version of which scorer read the episodes."""

    kind: str
    """As in `[[stage.reward]]`."""
    scorer: str
    """Name of the scorer."""
    scorer_version: int
    """Raised whenever the same episode could score differently."""
    weight: float
    """Factor of the score."""
    shuffle: bool = False
    """Scores are shuffled among episodes: a control arm."""
    sources: dict[str, str] = Field(default_factory=dict, exclude_if=operator.not_)
    """sha256 of each file of a reward of the user, by its path; absent for ours."""


class RewardSpec(_Record):
    """All that decides the score of an episode."""

    aggregation: Literal["sum"] = "sum"
    """How the parts become one score."""
    parts: tuple[RewardPart, ...]
    """In the order of the recipe."""

    @property
    def sources(self) -> dict[str, str]:
        """The sha256 of each file of the user's rewards, by its path."""
        return merged_sources(*(part.sources for part in self.parts))

    @property
    def hash(self) -> str:
        """The first 12 digits of a sha256: rewards with equal hashes give equal scores."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()[:12]


FILE = "protocol.json"
LARGEST = 4 << 20
"""Bytes of the largest card that is read; its prompt is most of it."""
HISTORY = {"sleuth_version", "reward", "loss", "questions_sha256"}
"""Fields about the origin of a checkpoint, which do not affect evaluation."""


AGENT = "agent"
"""Name of the prompt where an agent of the user writes all prompts."""
FUNCTION = re.compile(r"[\w.]+:[\w.]+")
"""`MODULE:NAME`; other code of the user is a command."""


def text_sha256(text: str) -> str:
    """sha256 of a text's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


class ProtocolCard(_Record):
    """All that evaluation and serving need to prompt a checkpoint as in training."""

    dialect: Dialect
    """The whole search dialect: tags, wrappers, passage format, action rule, stops, hint and budgets."""
    prompt: str
    """Name of the prompt."""
    prompt_text: str
    """The prompt itself, byte for byte."""
    prompt_sha256: str
    """`text_sha256(prompt_text)`; a card whose prompt was edited by hand is refused."""
    ask_with: AskWith = "question"
    """The field of a row that replaces the placeholder of the prompt."""
    prompt_role: Literal["raw", "user", "system"] = "raw"
    """Raw text, or the role of the message in the chat template."""
    template_flags: dict[str, bool | int | float | str] = {}
    """Extra arguments of the chat template."""
    template_sha256: str | None = None
    """sha256 of the chat template; None if none was used."""
    context: Annotated[int, Field(gt=0, le=LARGEST_LIMIT)]
    """Longest episode in tokens, prompt included."""
    forced_search: bool = False
    """The environment opens the first search."""
    closed_book: bool = Field(default=False, exclude_if=operator.not_)
    """The environment opens the answer, and there is no search; absent otherwise."""
    scorer: str
    """Name of the scorer of answers."""
    corpus_sha256: str | None = None
    """sha256 of the corpus; None without searches."""
    retriever: RetrieverIdentity | None = Field(default=None, exclude_if=operator.not_)
    """What decides which of its passages are found, as far as it is known; absent without searches, and in cards of
    earlier versions."""
    reward: RewardSpec | None = None
    """The reward of training; None if nothing was trained."""
    env: OwnCode | None = Field(default=None, exclude_if=operator.not_)
    """The environment or the tools of the user; absent for ours."""
    loss: OwnCode | None = Field(default=None, exclude_if=operator.not_)
    """The loss function of the user; absent for ours."""
    questions_sha256: str | None = None
    """sha256 of the training questions."""
    sleuth_version: str
    """The version that trained it."""

    @model_validator(mode="after")
    def _prompt_is_whole(self) -> Self:
        if self.prompt_sha256 != text_sha256(self.prompt_text):
            raise ValueError("prompt_text is not the text that prompt_sha256 was taken of")
        return self

    @field_serializer("retriever")
    def _known(self, retriever: RetrieverIdentity | None) -> dict[str, Any] | None:
        return retriever and retriever.as_json()

    @property
    def own_environment(self) -> tuple[str, ...]:
        """The class, the agent or the tools of the user that played, `MODULE:NAME` each; empty for ours, and where a
        command or a server is among them, since a card must not start one."""
        functions = () if self.env is None else self.env.functions
        return functions if all(map(FUNCTION.fullmatch, functions)) else ()

    @property
    def has_own_score(self) -> bool:
        """Whether the user's environment, or agent, gave the scores: questions then need no golden answers."""
        return self.reward is not None and any(part.kind == "environment" for part in self.reward.parts)

    @property
    def retriever_is_unknown(self) -> bool:
        """Whether there were searches, and nothing is recorded of what found the passages."""
        return self.retriever == UNKNOWN_RETRIEVER or (self.retriever is None and self.corpus_sha256 is not None)

    @property
    def hash(self) -> str:
        """sha256 of how questions are asked and answers scored: evaluations with equal hashes can be compared."""
        return text_sha256(json.dumps(self.model_dump(exclude=HISTORY), sort_keys=True))

    def write(self, checkpoint: Path) -> None:
        """Writes the card into a checkpoint's folder."""
        write_text(checkpoint / FILE, self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, checkpoint: Path) -> Self | None:
        """The card of a checkpoint, or None if it has none. Raises SleuthError if the card is invalid."""
        path = checkpoint / FILE
        require_file(path)
        if not path.exists():
            return None
        if (size := path.stat().st_size) > LARGEST:
            raise SleuthError(f"{path}: {size:,} bytes: a protocol has at most {LARGEST:,}")
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"]))
            reason = str(problem.get("ctx", {}).get("error", problem["msg"]))
            raise SleuthError(f"{path}: {where + ': ' if where else ''}{reason[:300]}") from None
