"""`kind = "evaluate"`, `"probe"`, `"gate"` and `"reason"`: stages that measure the model and do not change it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from sleuth.recipe.data import EvalQuestionsRecipe
from sleuth.recipe.envs import QuestionEnvTable, ThoughtEnvRecipe
from sleuth.recipe.judges import ContinuationJudgeTable, Skill
from sleuth.recipe.rewards import RewardFields
from sleuth.recipe.stage import StageFields
from sleuth.recipe.strict import FilePath, Name, OneOf, Row, StrictModel, combination
from sleuth.recipe.text import ThoughtPlaces
from sleuth.recipe.training import SampledRecipe

ThoughtDataTable = Annotated[ThoughtPlaces, OneOf("data", lambda data: "thoughts" in data.feeds)]
"""`[stage.data]` of a stage that measures thoughts: texts, and where to think in them."""
ThoughtRewardTable = Annotated[RewardFields, OneOf("rewards", lambda reward: reward.scores == ("thought",))]
"""`[[stage.reward]]` of such a stage."""


class EvaluationFields(SampledRecipe, StageFields):
    """What differs between stages that measure; the defaults are those of one that samples once at `data.limit` places
    of texts."""

    measures: ClassVar[bool] = True
    plays_like: ClassVar[Literal["next", "nearest"] | None] = "nearest"

    kind: Any
    """Set by each kind of stage."""
    name: Name
    """Name of the evaluation file."""

    @combination
    def _budget_stays(self) -> Iterator[str]:
        if getattr(getattr(self, "env", None), "least_thought_tokens", None) is not None:
            yield "env.least_thought_tokens has no effect here: only a grpo stage has steps to shrink over; remove it"

    @property
    def arms(self) -> int:
        """How often each question is asked, under other conditions."""
        return 1

    @property
    def evaluations(self) -> tuple[str, ...]:
        """Names of the evaluation files that it writes, without those of single sets."""
        return (self.name,)

    @property
    def samples_of_each(self) -> int:
        """Answers to each question in each arm."""
        return getattr(self, "samples", 1)

    @property
    def asked(self) -> int | None:
        """The number of questions; None where only the file knows it."""
        data: Any = getattr(self, "data", None)
        return data.limit


class EvaluateRecipe(EvaluationFields):
    """Answers questions with the current model and writes `eval/NAME.json`; for a suite, `eval/NAME@SET.json` for each
    set, and their mean in `eval/NAME.json`."""

    kind: Literal["evaluate"]
    name: Name
    """Name of the evaluation file, such as "base" or "trained"."""
    temperature: NonNegativeFloat = 0.0
    """Sampling temperature; 0: greedy."""
    context: PositiveInt | None = None
    """Longest episode in tokens; absent: that of the nearest `grpo` stage."""
    data: EvalQuestionsRecipe
    """The questions to ask."""
    forced_search_arm: bool = False
    """Whether to ask again with the first action replaced by an opening search tag, in `eval/NAME_forced.json`. A
    trained model's gain over this arm is more than the habit of searching."""
    env: QuestionEnvTable | None = None
    """The environment; absent: that of the nearest `grpo` stage, so that evaluation matches training."""

    @property
    def arms(self) -> int:
        return len(self.evaluations)

    @property
    def evaluations(self) -> tuple[str, ...]:
        """That of the arm with a forced search last."""
        return (self.name, f"{self.name}_forced") if self.forced_search_arm else (self.name,)


class ProbeRecipe(EvaluationFields):
    """Compares the model's thoughts in held-out texts with empty ones, generic phrases, thoughts of other texts and a
    teacher's, by the log-probability of the true suffix. Writes `eval/NAME.json`, and a certificate into the model's
    folder."""

    kind: Literal["probe"]
    name: Name
    """Name of the evaluation file, such as "thoughts"."""
    data: ThoughtDataTable
    """The held-out texts, and where to think in them."""
    env: ThoughtEnvRecipe
    """The environment, with its budgets. With suffix_tokens, suffixes are generated in each arm too, for the judge."""
    samples: PositiveInt = 4
    """Thoughts at each place."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature of thoughts and suffixes."""
    judge: ContinuationJudgeTable | None = None
    """Decides whether a generated suffix is equivalent to the true one; absent: no suffix is generated."""

    @property
    def arms(self) -> int:
        """At the place, and at another one of its document."""
        return 2

    def skills(self, *, watching: bool = False) -> tuple[Skill, ...]:
        """What it asks of its judge."""
        return ("suffixes",)

    @combination
    def _judge_has_suffixes(self) -> Iterator[str]:
        if (self.judge is not None) != bool(self.env.suffix_tokens):
            yield "judge and env.suffix_tokens need each other: set both or neither"


class GateRecipe(EvaluationFields):
    """Plays the episodes of a rewarded stage on a fixed set of prefixes, without an update, and decides whether the
    stages after it train. Writes `eval/NAME.json`: mean reward, share of groups without signal, length of thoughts. A
    run that misses its gate ends there, unless no later stage trains."""

    kind: Literal["gate"]
    name: Name
    """Name of the evaluation file, such as "gate"."""
    data: ThoughtDataTable
    """The held-out texts, and where to think in them."""
    env: ThoughtEnvRecipe
    """The environment of the rewarded stage."""
    reward: Annotated[Row[ThoughtRewardTable], Field(min_length=1)]
    """The rewards of the rewarded stage. The weights of the model at the gate compute gains."""
    samples: Annotated[int, Field(ge=2)] = 16
    """Episodes for each prefix. Of fewer, more groups are without signal: use as many as the rewarded stage does."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature of thoughts and suffixes."""
    max_missing_fraction: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Largest share of missing scores with which the gate is passed."""
    max_no_signal_fraction: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Largest share of groups without signal, whose scores are all equal, with which the gate is passed."""

    @combination
    def _rewards_fit(self) -> Iterator[str]:
        kinds = [reward.kind for reward in self.reward]
        if len(set(kinds)) < len(kinds):
            yield f'reward has kind = "{kinds[0]}" twice; remove one of them'
        if "suffix" in kinds and not self.env.suffix_tokens:
            yield 'env.suffix_tokens is missing: reward.kind = "suffix" judges the suffix written after a thought'


class ProblemsRecipe(StrictModel):
    """One test set: `[[stage.sets]]`."""

    named: ClassVar[Mapping[str, str]] = {"problems": "file"}
    layout: Literal["gsm8k", "math_500", "gpqa_diamond", "olympiad_bench"]
    """The test set that the rows are from, which decides how they are read."""
    problems: FilePath
    """A .jsonl, .jsonl.gz or .parquet file (GPQA's a .csv too), here or on the hub: hf://OWNER/NAME/FILE."""
    limit: PositiveInt | None = None
    """Use only the first `limit` problems; absent: all."""


class ReasonRecipe(EvaluationFields):
    """Answers each problem several times with the current model: Mean@k and Pass@k in `eval/NAME.json`, and the records
    of each set in `eval/NAME@SET.json`."""

    kind: Literal["reason"]
    name: Name
    """Name of the evaluation file, such as "reasoning"."""
    sets: Annotated[Row[ProblemsRecipe], Field(min_length=1)]
    """The test sets, one file each."""
    samples: PositiveInt = 8
    """Answers to each problem: the k of Mean@k and Pass@k."""
    temperature: NonNegativeFloat = 0.6
    """Sampling temperature, from the whole vocabulary; 0: greedy."""
    max_tokens: PositiveInt = 4_096
    """Maximum number of tokens of an answer."""

    @property
    def asked(self) -> int | None:
        limits = [one.limit for one in self.sets]
        return None if None in limits else sum(filter(None, limits))

    @combination
    def _samples_differ(self) -> Iterator[str]:
        layouts = [one.layout for one in self.sets]
        twice = next((layout for layout in layouts if layouts.count(layout) > 1), None)
        if twice is not None:
            yield f'sets has layout = "{twice}" twice; each layout is allowed once'
        if self.temperature == 0 and self.samples > 1:
            yield f"samples = {self.samples} are all equal with temperature = 0; set samples = 1"
