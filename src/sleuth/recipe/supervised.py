"""`kind = "supervised"`: next-token prediction on text."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from sleuth.recipe.data import DataFields, Lengths
from sleuth.recipe.envs import RefinerEnvTable
from sleuth.recipe.strict import KindTable, Name, OneOf, Row, combination
from sleuth.recipe.training import InitRecipe, TrainingRecipe

if TYPE_CHECKING:
    from sleuth.recipe.recipe import Recipe


class HeldOutFields(KindTable):
    """What a supervised stage measures and never trains."""

    measured: ClassVar[str]
    """`module:name` of its class, `sleuth.training.sft.HeldOut`."""


class SupervisedRecipe(TrainingRecipe):
    """Next-token prediction on rows of text."""

    runner: ClassVar[str] = "sleuth.training.sft_rows"
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
    held_out: Annotated[HeldOutFields, OneOf("held_out")] | None = None
    """Held-out thoughts. Before the first step and at each save the stage measures their loss, and how much likelier
    they make the text after them; absent: no measurement."""
    env: RefinerEnvTable | None = None
    """The environment that renders the prompts for data.kind = "rows"; absent: that of the nearest `grpo` stage."""
    tokens: Row[Annotated[str, Field(min_length=1)]] = ()
    """Texts, such as tags, that are added to the tokenizer as one token each, unless they are one token already."""
    init: InitRecipe | None = None
    """Start from random weights of this shape instead of the recipe's model."""

    def run(self, context: Any) -> Path:
        """Trains as the data asks for."""
        return import_module(self.data.trainer).run(self, context)

    def lengths(self, recipe: Recipe, index: int) -> Lengths:
        return self.data.row_lengths(recipe, index)

    def problems(self, recipe: Recipe, index: int) -> Iterator[str]:
        """Answered rows need an environment."""
        if self.data.kind == "rows":
            try:
                recipe.refine_env_and_context(index)
            except ValueError as error:
                yield str(error)

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
