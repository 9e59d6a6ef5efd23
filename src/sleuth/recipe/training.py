"""The keys of every stage that trains: optimiser, schedule, memory, checkpoints, alarms; and `kind = "supervised"`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from pydantic_core import PydanticCustomError

from sleuth.recipe.data import DataFields, Lengths
from sleuth.recipe.envs import RefinerEnvTable
from sleuth.recipe.stage import EvaluateRecipe, StageFields
from sleuth.recipe.strict import KindTable, Name, OneOf, Row, StrictModel, combination

if TYPE_CHECKING:
    from sleuth.recipe.recipe import Recipe


Alarm = Literal[
    "reward_collapse", "entropy_collapse", "length_runaway", "tool_abandonment", "no_signal",
    "gamed_reward", "hollow_thoughts", "mismatch", "tiny_updates", "not_finite",
]  # fmt: skip
AlarmAction = Literal["off", "warn", "pause", "stop"]


def usual_action(alarm: str) -> AlarmAction:
    """What an alarm does unless a recipe says otherwise."""
    return "stop" if alarm == "not_finite" else "warn"


def _unusual(alarms: dict[Alarm, AlarmAction]) -> dict[Alarm, AlarmAction]:
    """Without the actions that would be taken anyway, which resolved recipes of former versions name."""
    return {alarm: action for alarm, action in alarms.items() if action != usual_action(alarm)}


EVAL_PREFIX = "eval_"
"""Before the name of an evaluation, and a slash before its figures, in rows of `metrics.jsonl`: `eval_trained/em`."""
OPTIMISATION = (
    *("steps", "learning_rate", "embedding_learning_rate", "schedule", "warmup_steps"),
    *("betas", "weight_decay", "max_grad_norm"),
)
"""The keys of the optimiser."""
Beta = Annotated[float, Field(ge=0, lt=1)]

LEAST_VOCABULARY = 300
"""Tokens for the 256 bytes and the tags."""


class InitRecipe(StrictModel):
    """A Qwen3 model with random weights, and one tensor for input and output embeddings. The size of the vocabulary is
    its tokenizer's."""

    layers: PositiveInt
    """Number of layers (attention and MLP)."""
    width: PositiveInt
    """Hidden size of the residual stream."""
    heads: PositiveInt
    """Query heads of a layer."""
    kv_heads: PositiveInt
    """Key and value heads of a layer; divides `heads`."""
    head_dim: PositiveInt
    """Size of a head; even, for rotary positions."""
    mlp: PositiveInt
    """Intermediate size of the MLP."""
    context: PositiveInt
    """Longest sequence in tokens."""
    std: PositiveFloat = 0.02
    """Standard deviation of the initial weights."""
    rope_theta: PositiveFloat = 10_000.0
    """Base of the rotary frequencies (arXiv:2104.09864)."""
    induction: bool = False
    """Whether to start with induction heads, which find what followed a word before (arXiv:2209.11895) and after which
    tag, so that the model learns to read by name in hundreds of steps instead of many thousands."""
    reading: bool = False
    """Whether to start with heads that compare the words of a question with those of a passage and copy from it, and
    with embeddings made from the spelling and the company of the words in the texts of data.kind = "reading"."""
    vocabulary: PositiveInt | None = None
    """Number of tokens of the tokenizer that is made from the texts of data.kind = "reading"; it has fewer if the texts
    are short."""

    @property
    def layer_weights(self) -> int:
        """Number of weights of all layers, without norms."""
        attention = 2 * self.width * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.width * self.mlp)

    @combination
    def _heads_fit(self) -> Iterator[str]:
        if self.heads % self.kv_heads:
            yield f"heads = {self.heads} is not a multiple of kv_heads = {self.kv_heads}"
        if self.head_dim % 2:
            yield f"head_dim = {self.head_dim} must be even, for rotary positions"
        if self.reading and self.induction:
            yield "reading = true and induction = true draw the same heads; remove one of them"
        for key, least in (("induction", 3), ("reading", 4)):
            if not getattr(self, key):
                continue
            if min(self.layers, self.heads) < least or self.heads != self.kv_heads:
                yield f"{key} = true needs layers >= {least}, heads >= {least} and kv_heads = heads"
            if not 40 <= self.head_dim <= self.width:  # else a head cannot distinguish the latest tag or word
                yield f"{key} = true needs a head_dim of 40 up to width = {self.width}, found {self.head_dim}"
        if self.reading and self.rope_theta < 1e6:
            yield f"reading = true needs rope_theta >= 1e6, found {self.rope_theta:g}: then more pairs hardly turn"
        if self.vocabulary is not None and self.vocabulary < LEAST_VOCABULARY:
            yield f"vocabulary = {self.vocabulary} has no room for the single bytes; set {LEAST_VOCABULARY} or more"


ALL_LINEAR = "all-linear"


def _one_target(targets: Any) -> Any:
    if isinstance(targets, str) and targets != ALL_LINEAR:
        raise PydanticCustomError("targets", f'should be a list of layers, or "{ALL_LINEAR}"')
    return [targets] if isinstance(targets, str) else targets


class LoraRecipe(StrictModel):
    """Low-rank adapters (arXiv:2106.09685) on frozen weights; needs `pip install "sleuth[lora]"`. Checkpoints hold the
    merged model, and the adapters in peft's format."""

    rank: PositiveInt = 16
    """Rank of the adapters."""
    alpha: PositiveFloat = 32.0
    """Adapters are scaled by alpha / rank."""
    targets: Annotated[Row[str], Field(min_length=1), BeforeValidator(_one_target)] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Names of the linear layers that get adapters; or "all-linear": all but the output head."""

    def layers(self, linear: Sequence[str]) -> Sequence[str]:
        """The targets in a model with these `linear` layers, some of which it may lack."""
        return linear if self.targets == (ALL_LINEAR,) else self.targets


class TrainingRecipe(StageFields):
    """Optimiser, schedule, memory, checkpoints and alarms."""

    trains: ClassVar[bool] = True
    plays_before_training: ClassVar[bool] = False
    """Whether it plays all of its episodes before the first step, and before it has a learner."""

    kind: Any
    """Set by each kind of stage."""
    name: Name
    """What the stage is called in the run folder."""
    steps: PositiveInt
    """Number of optimiser steps, which is also the horizon of the schedule."""
    stop_after: PositiveInt | None = None
    """Ends the stage after this number of steps, without changing the schedule."""
    optimiser: Literal["adamw", "muon"] = "adamw"
    """AdamW for all weights, or Muon (arXiv:2502.16982) for the hidden matrices and AdamW for the rest."""
    learning_rate: PositiveFloat
    """Peak learning rate."""
    embedding_learning_rate: PositiveFloat | None = None
    """Peak learning rate of the input embeddings, and of the output embeddings where they are tied; absent:
    `learning_rate`."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or a half cosine down to zero at `steps`."""
    betas: Annotated[tuple[Beta, Beta], Field(strict=False)] = (0.9, 0.95)
    """AdamW's two decay rates."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    max_grad_norm: PositiveFloat = 1.0
    """Maximum global norm of the gradient; larger ones are scaled down."""
    lora: LoraRecipe | None = None
    """Train low-rank adapters instead of the weights; their learning rate is about ten times that of full training."""
    tokens_per_micro_batch: PositiveInt = 4_096
    """Maximum number of distinct tokens in one forward and backward pass, prefixes included; changes memory and speed,
    never the result."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of storing them, and return freed memory to the system: less
    memory, a third more computation, and on a CPU about twice the time with a model of a few million weights. On one
    GPU only the layers whose activations do not fit are recomputed, so that it costs nothing where all fit."""
    cpu_offload: bool = False
    """On a GPU: optimiser state, master weights and gradients stay in host memory, and the CPU updates the weights. The
    GPU holds only the model, and each pass waits for the copies."""
    ranks_per_replica: PositiveInt | None = None
    """On several ranks: how many consecutive ones hold the model's shards together, such as the GPUs of a machine; each
    such group has a replica, so that only gradients travel between machines (hybrid sharding). It divides the number of
    ranks. Absent: all ranks share one."""
    save_every: PositiveInt = 100
    """Steps between checkpoints; the last step is always saved."""
    keep: PositiveInt = 2
    """Number of resumable checkpoints to keep, newest first, in addition to the best one."""
    milestone_every: PositiveInt | None = None
    """Steps between checkpoints whose weights are never deleted; absent: none."""
    alarms: Annotated[dict[Alarm, AlarmAction], AfterValidator(_unusual)] = Field(default_factory=dict)
    """What an alarm does, by its name (docs/how-to/runs.md): "off"; "warn" prints it; "pause" saves and ends the run,
    and the same command continues it; "stop" ends the run at its last save, and `sleuth train --roll-back` returns to
    the best checkpoint. Absent: "warn", and "stop" of `not_finite`, of which "warn" skips the update."""
    evaluate_every: dict[Name, PositiveInt] = Field(default_factory=dict)
    """Evaluations while the stage trains: by the name of an `evaluate` stage of the recipe, after every so many steps
    and after the last one, `{ trained = 50 }`. A checkpoint is saved at these steps."""
    best: str | None = None
    """The figure of an evaluation in `evaluate_every`, such as "em", or "trained/em" if there are several, by whose
    highest value the best checkpoint is kept, and handed to the stages behind. Absent: the best one by the reward is
    kept, and the last one is handed on."""
    stop_after_worse: PositiveInt | None = None
    """Ends the stage after so many evaluations in a row that were not better in `best`."""

    @property
    def last_step(self) -> int:
        """The last step that runs: `steps`, or `stop_after` if given."""
        return min(self.steps, self.stop_after or self.steps)

    @property
    def sequences_per_step(self) -> int:
        """The most sequences that one step trains."""
        return getattr(self, "rows_per_step", 0)

    @property
    def rows_at_once(self) -> int:
        """Sequences that one pass has to hold together."""
        return 1

    @property
    def played_per_step(self) -> tuple[int, int]:
        """(prompts, samples of each) that one step generates."""
        return 0, 0

    def player(self, recipe: Any, index: int) -> tuple[Any, int, int]:
        """(stage whose slots and cache it has, prompts, samples of each) of what it generates in one step."""
        return (self, *self.played_per_step)

    @property
    def passes_and_updates(self) -> tuple[int, int]:
        """How often the learner computes the tokens of a step, and how often it steps the weights."""
        return 1, 1

    @property
    def keeps_first_weights(self) -> bool:
        """Whether its first weights stay on the device, as the reference or to measure gains with."""
        return False

    @property
    def frozen_model(self) -> str | None:
        """A model that is loaded beside the one that is trained, and computes on its tokens."""
        return None

    def trained_tokens(self, prompt: int, response: int, prompts: int) -> int:
        """Tokens that the learner computes in a step of sequences of these lengths, prompts of siblings once. `prompts`
        are those that the ranks together play, 0 without a file of known length."""
        return self.sequences_per_step * (prompt + response)

    def optimisation(self) -> dict[str, Any]:
        """The optimiser's settings, as `sleuth.learn.optim.Optimisation` takes them."""
        return {"name": self.optimiser, **{key: getattr(self, key) for key in OPTIMISATION}}

    def alarm_action(self, alarm: str) -> AlarmAction:
        """What an alarm of this name does."""
        return self.alarms.get(cast(Alarm, alarm), usual_action(alarm))

    def saves_at(self, step: int) -> bool:
        """Whether a checkpoint is saved after `step` steps."""
        intervals = [self.save_every] + ([self.milestone_every] if self.milestone_every else [])
        due = step == self.last_step or any(step % interval == 0 for interval in intervals)
        return due or bool(self.evaluates_at(step))

    def evaluates_at(self, step: int) -> list[str]:
        """The evaluations that are due after `step` steps."""
        return [name for name, every in self.evaluate_every.items() if step % every == 0 or step == self.last_step]

    @property
    def best_key(self) -> str | None:
        """The figure `best` as rows of `metrics.jsonl` name it."""
        if self.best is None:
            return None
        name, _, figure = self.best.partition("/")
        named = name in self.evaluate_every and figure
        return EVAL_PREFIX + (self.best if named else f"{next(iter(self.evaluate_every))}/{self.best}")

    def evaluation_problems(self, recipe: Recipe) -> Iterator[str]:
        stages = {stage.name: stage for stage in recipe.stages_of(EvaluateRecipe).values()}
        for name in self.evaluate_every:
            if name not in stages:
                names = ", ".join(stages) or "none"
                yield f"evaluate_every.{name}: there is no evaluate stage of this name; there are {names}"
            elif {one.server for one in stages[name].launched()} - {one.server for one in self.launched()}:
                yield f"evaluate_every.{name}: its judge is started for that stage alone; name one that runs"

    @combination
    def _best_is_measured(self) -> Iterator[str]:
        names = [*self.evaluate_every]
        if self.best is not None and not names:
            yield f'best = "{self.best}" is a figure of evaluations: set evaluate_every = {{ NAME = 50 }}'
        elif self.best is not None and len(names) > 1 and self.best.partition("/")[0] not in names:
            yield f'best = "{self.best}": of which evaluation? write "{names[0]}/{self.best}"'
        if self.stop_after_worse is not None and self.best is None:
            yield f'stop_after_worse = {self.stop_after_worse} needs the figure that is compared: set best = "em"'

    @combination
    def _steps_fit(self) -> Iterator[str]:
        for key in ("stop_after", "warmup_steps"):
            value = getattr(self, key)
            if value is not None and value > self.steps:
                yield f"{key} = {value} is beyond steps = {self.steps}"
        if self.lora is not None and self.embedding_learning_rate is not None:
            yield "embedding_learning_rate has no effect with lora, which freezes the embeddings; remove one of them"


class HeldOutFields(KindTable):
    """What a supervised stage measures and never trains."""

    measured: ClassVar[str]
    """`module:name` of its class, `sleuth.training.sft.HeldOut`."""


class SupervisedRecipe(TrainingRecipe):
    """Next-token prediction on rows of text."""

    runner: ClassVar[str] = "sleuth.training.sft"
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
