"""`kind = "supervised"`: text that is imitated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from sleuth.recipe.data import AnsweredRowsRecipe, WorldTextRecipe
from sleuth.recipe.envs import RefineEnvRecipe, Role
from sleuth.recipe.strict import Name, Row, StrictModel, combination
from sleuth.recipe.text import HeldOutThoughtsRecipe, TextRecipe, ThoughtTextRecipe
from sleuth.recipe.training import InitRecipe, TrainingRecipe


class SupervisedRecipe(TrainingRecipe):
    """Next-token prediction on rows of text."""

    kind: Literal["supervised"]
    name: Name = "supervised"
    """What the stage is called in the run folder."""
    rows_per_step: PositiveInt
    """Rows of text in one optimiser step."""
    source_weight: NonNegativeFloat = 1.0
    """How much a token of source text (passages, documents) counts in the loss, where a token of a teacher (answers,
    thoughts) counts 1; 0 teaches the teacher's alone."""
    data: Annotated[WorldTextRecipe | AnsweredRowsRecipe | TextRecipe | ThoughtTextRecipe, Field(discriminator="kind")]
    """The rows of text to imitate."""
    held_out: HeldOutThoughtsRecipe | None = None
    """Thoughts on which the stage measures, before its first step and at each save, what it has learned of them and
    what they do for the text behind them; absent: nothing."""
    env: RefineEnvRecipe | None = None
    """What asks for the answers of kind = "rows"; absent: that of the nearest `grpo` stage."""
    tokens: Row[Annotated[str, Field(min_length=1)]] = ()
    """Texts that become one token each, such as tags, where the tokenizer writes them with several."""
    init: InitRecipe | None = None
    """Start from random weights of this shape instead of the recipe's model."""

    @combination
    def _text_fits(self) -> Iterator[str]:
        if self.env is not None and not isinstance(self.data, AnsweredRowsRecipe):
            yield f'env asks for the answers of data.kind = "rows"; "{self.data.kind}" is taught as it is'
        if self.lora is not None and (self.init is not None or self.tokens):
            yield (
                "lora trains beside frozen weights: those of init and the embeddings of tokens would stay random; "
                "leave lora out here, and set it in a later stage"
            )
        if self.init is not None and not isinstance(self.data, WorldTextRecipe):
            yield 'init has a tokenizer made for data.kind = "world_text" alone; name a model instead'
        if self.source_weight == 0 and isinstance(self.data, TextRecipe):
            yield 'source_weight = 0 leaves nothing to learn of data.kind = "text", which is all source'


class HintRecipe(StrictModel):
    """What makes a policy do what it never does by itself."""

    prompt: str | None = None
    """Another prompt than the one that is taught, such as "search_example"."""
    prompt_role: Role | None = None
    """Where that prompt stands, if elsewhere than the one that is taught."""
    dialect: str | None = None
    """A protocol that the policy knows already; what it does right there is taught in the words of the real one."""
    forced_search: bool = False
    """The first search is opened for the policy; it is taught to open it."""

    @combination
    def _hints(self) -> Iterator[str]:
        if self.prompt is None and self.dialect is None and not self.forced_search:
            yield (
                "prompt is missing: name one that hints, or a dialect that is known already, "
                "or set forced_search = true"
            )


class WarmStartRecipe(TrainingRecipe):
    """A beginning for a policy that never searches (rejection sampling: STaR, arXiv:2203.14465), or that does not know
    the protocol: it plays questions of the `grpo` stage that follows under a hint, and what was right is taught under
    the real prompt. Left out where the policy searches already."""

    kind: Literal["warm_start"]
    name: Name = "warm_start"
    """What the stage is called in the run folder."""
    hint: HintRecipe
    """What helps the policy while it plays; the rows that are taught leave it out."""
    below: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Only where a smaller share of the policy's own episodes searches."""
    taught: Literal["right", "answered"] = "right"
    """Which episodes: those that searched and were right, or all that ended with an answer, which is the protocol
    alone and no better habits."""
    prompts: PositiveInt = 128
    """Questions that are played, with and without the hint; all else is that of the `grpo` stage."""
    samples_per_prompt: PositiveInt | None = None
    """Episodes of each question under the hint; absent: as many as the `grpo` stage samples."""
    rows_per_step: PositiveInt = 16
    """Right episodes in one optimiser step."""
