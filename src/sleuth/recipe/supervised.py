"""`kind = "supervised"` and `kind = "warm_start"`: next-token prediction on text, or on the policy's own episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from sleuth.recipe.data import DataFields
from sleuth.recipe.envs import RefineEnvRecipe, Role
from sleuth.recipe.strict import Name, OneOf, Row, StrictModel, combination
from sleuth.recipe.text import HeldOutThoughtsRecipe
from sleuth.recipe.training import InitRecipe, TrainingRecipe


class SupervisedRecipe(TrainingRecipe):
    """Next-token prediction on rows of text."""

    kind: Literal["supervised"]
    name: Name = "supervised"
    """What the stage is called in the run folder."""
    rows_per_step: PositiveInt
    """Rows of text in one optimiser step."""
    source_weight: NonNegativeFloat = 1.0
    """Loss weight of source tokens (passages, documents); tokens of a teacher (answers, thoughts) have weight 1. 0
    trains on the teacher's tokens alone."""
    copying_weight: NonNegativeFloat = 0.0
    """With data.kind = "reading": weight of a second loss, on where the first head of the last layer attends while an
    answer is written: minus the log of its attention to the token of the passage that is copied."""
    data: Annotated[DataFields, OneOf("data", lambda data: "rows" in data.feeds)]
    """The rows of text to imitate."""
    held_out: HeldOutThoughtsRecipe | None = None
    """Held-out thoughts. Before the first step and at each save the stage measures their loss, and how much likelier
    they make the text after them; absent: no measurement."""
    env: RefineEnvRecipe | None = None
    """The environment that renders the prompts for data.kind = "rows"; absent: that of the nearest `grpo` stage."""
    tokens: Row[Annotated[str, Field(min_length=1)]] = ()
    """Texts, such as tags, that are added to the tokenizer as one token each, unless they are one token already."""
    init: InitRecipe | None = None
    """Start from random weights of this shape instead of the recipe's model."""

    @combination
    def _text_fits(self) -> Iterator[str]:
        if self.env is not None and self.data.kind != "rows":
            yield f'env has no effect with data.kind = "{self.data.kind}", which has no prompts; remove it'
        if self.lora is not None and (self.init is not None or self.tokens):
            yield (
                "lora freezes the weights of the model: those of init and the embeddings of tokens would stay random; "
                "remove lora here, and set it in a later stage"
            )
        if self.init is not None and self.data.kind not in ("world_text", "reading"):
            yield 'init can build a tokenizer only for data.kind = "world_text" and "reading"; name a model instead'
        if self.init is not None and self.data.kind == "reading" and self.init.vocabulary is None:
            yield 'init.vocabulary is missing: the tokenizer of data.kind = "reading" is made from its texts; set 6000'
        if self.init is not None and self.data.kind != "reading" and (self.init.reading or self.init.vocabulary):
            yield 'init.reading and init.vocabulary need the texts of data.kind = "reading"; remove them'
        if self.copying_weight and self.data.kind != "reading":
            yield f'copying_weight has no effect with data.kind = "{self.data.kind}", whose rows copy nothing'
        if self.copying_weight and self.gradient_checkpointing:
            yield "copying_weight reads the attention that gradient_checkpointing throws away; remove one of them"
        if self.source_weight != 1 and self.data.kind == "reading":
            yield 'source_weight has no effect with data.kind = "reading", which trains answers alone; remove it'
        if self.source_weight == 0 and self.data.kind == "text":
            yield 'source_weight = 0 leaves no loss: all tokens of data.kind = "text" are source tokens'


class HintRecipe(StrictModel):
    """Helps the policy to search or to follow the protocol while it plays. The hint is removed from the rows that are
    trained."""

    named: ClassVar[Mapping[str, str]] = {"dialect": "dialect", "prompt": "text"}
    prompt: str | None = None
    """Another prompt than the one that is trained, such as "search_example"."""
    prompt_role: Role | None = None
    """Role of that prompt; absent: the role of the prompt that is trained."""
    dialect: str | None = None
    """A protocol that the policy already follows; right episodes are translated into the stage's own for training."""
    forced_search: bool = False
    """The environment opens the first search; the policy is trained to open it itself."""

    @combination
    def _hints(self) -> Iterator[str]:
        if self.prompt is None and self.dialect is None and not self.forced_search:
            yield (
                "prompt is missing: name a prompt that hints, or a dialect that the policy already follows, "
                "or set forced_search = true"
            )


class WarmStartRecipe(TrainingRecipe):
    """Rejection sampling (STaR, arXiv:2203.14465) for a policy that never searches or does not follow the protocol. It
    plays questions of the next `grpo` stage with a hint, and trains on the right episodes under that stage's own
    prompt. Skipped if the policy already searches. Another model may play in its place: distillation by the teacher's
    own successes."""

    named: ClassVar[Mapping[str, str]] = {"teacher": "model"}
    plays_like: ClassVar[Literal["next", "nearest"] | None] = "next"
    plays_before_training: ClassVar[bool] = True
    kind: Literal["warm_start"]
    name: Name = "warm_start"
    """What the stage is called in the run folder."""
    hint: HintRecipe | None = None
    """Helps the model that plays; the trained rows do not contain it. Only a teacher can do without."""
    teacher: str | None = None
    """Folder or hub id of a model with the policy's vocabulary whose episodes are trained; absent: the policy's own."""
    below: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Run the stage only if less than this share of the policy's episodes without the hint searches."""
    taught: Literal["right", "answered"] = "right"
    """Episodes to train on: "right": those that searched and were right; "answered": all that ended with an answer,
    which teaches the protocol alone."""
    prompts: PositiveInt = 128
    """Questions to play, with and without the hint; all other settings are those of the `grpo` stage."""
    samples_per_prompt: PositiveInt | None = None
    """Episodes of each question with the hint; absent: as in the `grpo` stage."""
    rows_per_step: PositiveInt = 16
    """Episodes in one optimiser step."""

    @property
    def playing_model(self) -> str | None:
        return self.teacher

    @combination
    def _plays_otherwise(self) -> Iterator[str]:
        if self.hint is None and self.teacher is None:
            yield (
                "hint is missing: without one the policy would play as before; name a prompt that hints, or a teacher"
            )
