"""The tables of thinking: its environment, texts with thoughts, rewards of thoughts, and the stages that make and
measure thoughts. Preferences between continuations have their own (`sleuth.think.preference_tables`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from sleuth.dialect import DIALECTS, Dialect
from sleuth.recipe.data import DataFields, DocumentsRecipe, Fed, Lengths, ThoughtPlaces
from sleuth.recipe.envs import EnvFields, EpisodeKind
from sleuth.recipe.judges import ContinuationJudgeTable, JudgeFields, Skill, TeacherRecipe
from sleuth.recipe.rewards import AnswerSize, Identify, ModelCalls, RewardFields, RewardInputs
from sleuth.recipe.stage import EvaluationFields, StageFields
from sleuth.recipe.strict import FilePath, Name, OneOf, Row, StrictModel, combination
from sleuth.recipe.training import HeldOutFields
from sleuth.types import Reward, StepFigure, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sleuth.judges.factory import OpenJudge
    from sleuth.recipe.recipe import Recipe
    from sleuth.think.thoughts import ThoughtSetting


TAGS = 8
"""Tokens of tags around a thought."""
PROBED = 5
"""Arms of a probe whose suffixes are judged, the teacher's thoughts included."""
PROBLEM, FULL = 512, 0.5
"""Tokens of a problem of a reasoning benchmark, its examples included, and the share of the limit that a typical
solution fills."""


class ThoughtEnvRecipe(EnvFields):
    """A text up to some point and an opening tag. The policy writes a thought there and, for rewards that judge it, the
    suffix after the thought."""

    plays: ClassVar[EpisodeKind] = "thought"
    turn_key: ClassVar[str] = "thought_tokens"
    kind: Literal["thought"]
    thought_tokens: PositiveInt = 48
    """Maximum number of tokens of a thought."""
    close: Literal["inserted", "earned"] = "inserted"
    """What happens to a thought that fills its budget. "inserted": the environment closes it; "earned": it stays open
    and scores 0, or the lowest gain of its group if that is below 0."""
    suffix_tokens: NonNegativeInt = 0
    """Tokens of the suffix that the policy writes after the thought; 0: none, as for kind = "gain", which scores the
    true suffix."""
    stops: Row[str] = ()
    """Texts that end the written suffix early, such as "."; empty: only its length does."""

    def setting(self, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]) -> ThoughtSetting:
        from sleuth.think.thoughts import thought_setting

        return thought_setting(self, tokenizer)

    def plain_dialect(self) -> Dialect:
        return DIALECTS["sleuth"]

    def lengths(self, context: int, data: DataFields | None) -> Lengths:
        assert isinstance(data, ThoughtPlaces)  # the recipe's checks allow no other
        sampled = self.thought_tokens + self.suffix_tokens
        true_suffix = 0 if self.suffix_tokens else data.suffix_tokens  # which is scored, not written
        read = sampled + TAGS + true_suffix
        return Lengths(limit=data.prefix_tokens + read, prompt=data.prefix_tokens, response=read, sampled=sampled)

    @combination
    def _stops_have_effect(self) -> Iterator[str]:
        if self.stops and not self.suffix_tokens:
            yield "stops have no effect with suffix_tokens = 0, where no suffix is written; set suffix_tokens"


class ThoughtTextRecipe(DocumentsRecipe, DataFields):
    """Documents with a teacher's thoughts between thought tags (arXiv:2601.21343)."""

    methods: ClassVar[tuple[str, ...]] = ("self_improving",)
    rows: ClassVar[str] = "sleuth.think.thought_rows"
    kind: Literal["thoughts"]
    row_tokens: PositiveInt = 768
    """Maximum number of tokens of a row. Longer rows are truncated, if need be before a thought that does not fit."""
    empty: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of rows whose thoughts are empty. Their tags are not trained, the text after them is: gains are measured
    against an empty thought, so the model must have seen some."""

    def row_lengths(self, recipe: Any, index: int) -> Lengths:
        return Lengths.of_text(0, self.row_tokens)


class PlacesRecipe(ThoughtPlaces):
    """Places of documents at which a teacher thought: the text before one, with the thoughts in it, and the text after
    it, without thoughts. From each document, the first place with enough text on both sides."""

    feeds: ClassVar[Fed] = ("episodes", "thoughts")
    kind: Literal["places"]
    prefix_tokens: PositiveInt = 384
    """Maximum number of tokens before a place."""
    suffix_tokens: PositiveInt = 128
    """Maximum number of tokens after a place."""
    least_before: PositiveInt = 1
    """Minimum number of tokens of text before a place; places with fewer are skipped."""
    least_behind: PositiveInt = 1
    """Minimum number of tokens of text after a place; places with fewer are skipped."""

    def cut(self, tokenizer: Any) -> list[Task]:
        from sleuth.think.thoughts import spots_of

        return [spot.task for spot in spots_of(self, tokenizer)]


class HeldOutThoughtsRecipe(DocumentsRecipe, HeldOutFields):
    """Documents with thoughts that are measured and never trained on: `[stage.held_out]`."""

    measured: ClassVar[str] = "sleuth.think.thought_rows:HeldOutThoughts"
    limit: PositiveInt = 512
    """Use only the first `limit` documents."""
    row_tokens: PositiveInt = 768
    """Maximum number of tokens of a row."""

    def documents(self) -> list[Any]:
        """Those that have thoughts."""
        from sleuth.think.thoughts import thought_documents

        return thought_documents(self)


class SuffixRecipe(RewardFields):
    """1 if a judge, who never sees the thought, finds the suffix written after it equivalent to the true suffix
    (arXiv:2601.21343)."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("thought",)
    methods: ClassVar[tuple[str, ...]] = ("self_improving",)
    figures: ClassVar[tuple[StepFigure, ...]] = (
        StepFigure("suffix", "The continuation behind a thought says what the text says, by the judge."),
        StepFigure("right", "The continuation behind a thought names the right ending, where the data knows it."),
    )
    is_measured_alone: ClassVar[bool] = True
    kind: Literal["suffix"]
    judge: ContinuationJudgeTable
    """The judge: a table of kind "http" names a model; "ending" knows the right ending of world texts."""

    def build(self, inputs: RewardInputs) -> Reward:
        from sleuth.think.suffix_reward import SuffixReward, judge_of_suffixes

        return SuffixReward(*judge_of_suffixes(self.judge, inputs.judge_pool), inputs.dialect.think.close)

    def record(self, identify: Identify) -> dict[str, Any]:
        return {"scorer": identify(self.judge), "scorer_version": self.version}

    def skills(self) -> tuple[Skill, ...]:
        return ("suffixes",)

    def misfit(self, env: EnvFields) -> str | None:
        """Also why there is no suffix."""
        if (other := super().misfit(env)) is None and not getattr(env, "suffix_tokens", 0):
            return "judges the suffix written after a thought: set env.suffix_tokens, such as 128"
        return other


class GainRecipe(RewardFields):
    """Log-probability of the true suffix after the thought less that after an empty one, in nats a token, by the
    weights at the start of the stage. Needs no judge."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("thought",)
    is_scored_late: ClassVar[bool] = True
    is_measured_alone: ClassVar[bool] = True
    kind: Literal["gain"]
    clip: PositiveFloat | None = 2.0
    """The gain is clipped to [-clip, clip], in nats a token."""
    floor: Annotated[float, Field(le=0)] | None = None
    """Lower bound of the gain; absent: -clip. With 0, harmful thoughts score as much as empty ones, so that the policy
    has no reason to prefer empty thoughts while most of its thoughts are still wrong."""

    def build(self, inputs: RewardInputs) -> None:
        """`sleuth.think.thought_gain` adds it."""

    def record(self, identify: Identify) -> dict[str, Any]:
        scorer = f"frozen, clip={self.clip}, floor={self.floor}, decay=None"  # as when there were other scorers
        return {"scorer": scorer, "scorer_version": self.version}

    @property
    def highest(self) -> None:
        """No thought is right or wrong."""

    @combination
    def _floor_has_effect(self) -> Iterator[str]:
        if self.floor is not None and self.clip is not None and self.floor <= -self.clip:
            yield f"floor = {self.floor:g} has no effect with clip = {self.clip:g}; remove it"


class EndingJudgeRecipe(JudgeFields):
    """Compares with the right ending, where the data has one (`golden_answers`), without a model."""

    subjects: ClassVar[tuple[Literal["claims", "continuations"], ...]] = ("continuations",)
    needs_endings: ClassVar[bool] = True
    kind: Literal["ending"] = "ending"
    flip: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Share of its verdicts that are inverted, to measure the effect of a judge's errors on training."""

    def open(self) -> OpenJudge:
        from sleuth.judges.factory import OpenJudge
        from sleuth.think.suffix_reward import EndingJudge

        judge = EndingJudge(self.flip)
        return OpenJudge(judge=judge, pairs=judge)


class AnnotateRecipe(DocumentsRecipe, StageFields):
    """Lets a teacher insert thoughts into texts, if the file of them does not exist. Later stages may read that file,
    which is looked for when they begin. A run stops here with the reason if the teacher is not there; its answers are
    kept, and the same command goes on."""

    runner: ClassVar[str] = "sleuth.think.annotate"
    kind: Literal["annotate"]
    name: Name
    """Name of the stage, such as "thoughts"."""
    out: FilePath
    """The rows to write, a .parquet file. Runs that name the same file share it; an existing one is left as it is."""
    tokens: Annotated[int, Field(ge=8)] = 512
    """Tokens of each document that the teacher reads, from its beginning."""
    limit: Annotated[int, Field(ge=1)] = 8_192
    """Annotate only the first `limit` documents."""
    teacher: TeacherRecipe
    """The model that writes the thoughts."""
    gated: bool = True
    """Whether to leave out sources whose thoughts do not help the model that the stage starts from."""
    max_missing_fraction: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Largest share of texts that may stay without thoughts, because the teacher failed or answered in no valid form.
    With more the run stops, and the same command asks for those again."""

    def lengths(self, recipe: Recipe, index: int) -> Lengths:
        return Lengths.of_text(self.tokens, 0)

    def makes(self) -> tuple[Path, ...]:
        """The file of thoughts."""
        return (self.out,)

    def model_calls(self, size: AnswerSize) -> Iterator[ModelCalls]:
        yield ModelCalls("thoughts", self.limit, False, self.teacher)

    @combination
    def _out_is_written(self) -> Iterator[str]:
        if self.out.suffix != ".parquet":
            yield f'out = "{self.out}": should end in .parquet'
        if self.out == self.texts:
            yield f'out = "{self.out}" is the file of the texts; name another one'


ThoughtDataTable = Annotated[ThoughtPlaces, OneOf("data", lambda data: "thoughts" in data.feeds)]
"""`[stage.data]` of a stage that measures thoughts: texts, and where to think in them."""
ThoughtRewardTable = Annotated[RewardFields, OneOf("rewards", lambda reward: reward.scores == ("thought",))]
"""`[[stage.reward]]` of such a stage."""


class ThoughtPlayFields(EvaluationFields):
    """What stages that play thoughts in held-out texts share."""

    data: ThoughtDataTable
    """The held-out texts, and where to think in them."""
    env: ThoughtEnvRecipe
    """The environment, with its budgets; that of the rewarded stage in a gate. With suffix_tokens, suffixes are
    generated too, for a judge."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature of thoughts and suffixes."""

    def lengths(self, recipe: Recipe, index: int) -> Lengths:
        return self.env.lengths(0, self.data)


class ProbeRecipe(ThoughtPlayFields):
    """Compares the model's thoughts in held-out texts with empty ones, generic phrases, thoughts of other texts and a
    teacher's, by the log-probability of the true suffix. Writes `eval/NAME.json`, with a certificate."""

    runner: ClassVar[str] = "sleuth.think.thought_probe"
    kind: Literal["probe"]
    samples: PositiveInt = 4
    """Thoughts at each place."""
    judge: ContinuationJudgeTable | None = None
    """Decides whether a generated suffix is equivalent to the true one; absent: no suffix is generated."""
    held_out: HeldOutThoughtsRecipe | None = None
    """Held-out thoughts whose loss is measured too, as a supervised stage does; absent: none."""

    def skills(self) -> tuple[Skill, ...]:
        """What it asks of its judge."""
        return ("suffixes",)

    def model_calls(self, size: AnswerSize) -> Iterator[ModelCalls]:
        calls = PROBED * (self.asked or 0) * self.samples
        yield from (ModelCalls("suffix", calls, False, judge) for judge in self.served_judges())

    @combination
    def _judge_has_suffixes(self) -> Iterator[str]:
        if (self.judge is not None) != bool(self.env.suffix_tokens):
            yield "judge and env.suffix_tokens need each other: set both or neither"


class GateRecipe(ThoughtPlayFields):
    """Plays the episodes of a rewarded stage on a fixed set of prefixes, without an update, and decides whether the
    stages after it train. Writes `eval/NAME.json`: mean reward, share of groups without signal, length of thoughts. A
    run that misses its gate ends there, unless no later stage trains."""

    runner: ClassVar[str] = "sleuth.think.reward_gate"
    kind: Literal["gate"]
    reward: Annotated[Row[ThoughtRewardTable], Field(min_length=1)]
    """The rewards of the rewarded stage. The weights of the model at the gate compute gains."""
    samples: Annotated[int, Field(ge=2)] = 16
    """Episodes for each prefix. Of fewer, more groups are without signal: use as many as the rewarded stage does."""
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


PROBLEMS = {"gsm8k": 1_319, "math_500": 500, "gpqa_diamond": 198, "olympiad_bench": 674}
"""Problems of each test set: of OlympiadBench the English ones in mathematics with text and a final answer."""


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

    runner: ClassVar[str] = "sleuth.think.reasoning"
    kind: Literal["reason"]
    sets: Annotated[Row[ProblemsRecipe], Field(min_length=1)]
    """The test sets, one file each."""
    samples: PositiveInt = 8
    """Answers to each problem: the k of Mean@k and Pass@k."""
    temperature: NonNegativeFloat = 0.6
    """Sampling temperature, from the whole vocabulary; 0: greedy."""
    max_tokens: PositiveInt = 4_096
    """Maximum number of tokens of an answer."""

    def lengths(self, recipe: Recipe, index: int) -> Lengths:
        solution = round(FULL * self.max_tokens)
        return Lengths(limit=PROBLEM + self.max_tokens, prompt=PROBLEM, response=solution, sampled=solution)

    @property
    def asked(self) -> int:
        return sum(min(one.limit or PROBLEMS[one.layout], PROBLEMS[one.layout]) for one in self.sets)

    @combination
    def _samples_differ(self) -> Iterator[str]:
        layouts = [one.layout for one in self.sets]
        twice = next((layout for layout in layouts if layouts.count(layout) > 1), None)
        if twice is not None:
            yield f'sets has layout = "{twice}" twice; each layout is allowed once'
        if self.temperature == 0 and self.samples > 1:
            yield f"samples = {self.samples} are all equal with temperature = 0; set samples = 1"
