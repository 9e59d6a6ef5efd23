"""`[[stage.reward]]`: the rewards. The score of an episode is their weighted sum."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, get_args

from pydantic import Field, NonNegativeFloat, PositiveFloat

from sleuth.dialect import Dialect
from sleuth.own.functions import load_function
from sleuth.recipe.envs import EnvFields, EpisodeKind
from sleuth.recipe.judges import ON_SHEETS, JudgedFields, JudgeFields, JudgeTable, ServedModelRecipe, Skill
from sleuth.recipe.strict import FilePath, FunctionName, OneOf, Row, StrictModel, combination
from sleuth.types import Judge, PairJudge, Reward, SheetJudge, StepFigure, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ScorerName = Literal["strict", "search_r1", "search_r1_format", "slime", "verl", "skyrl", "research", "tinker"]
"""The scorers of answers, ours and published ones."""

Identify = Callable[[JudgeFields], str]
"""The identity of a recipe's judge."""

FUNCTION_VERSION = 1
"""Increased whenever the same function could give the same episode another score."""


class Judges(Protocol):
    """The judges of a stage by their tables, each opened once, as in `sleuth.judges.factory.JudgePool`."""

    def judge(self, recipe: JudgeFields) -> Judge: ...

    def sheet_judge(self, recipe: JudgeFields) -> SheetJudge: ...

    def pair_judge(self, recipe: JudgeFields) -> PairJudge: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInputs:
    """What rewards are made with: the dialect of the episodes, the tokenizer and the judges."""

    dialect: Dialect
    tokenizer: PreTrainedTokenizerFast | None
    judge_pool: Judges


class AnswerSize(NamedTuple):
    """How many cases an answer has for a judge: `own` criteria of a row, and `cited`, those of its claims."""

    own: int
    cited: int


class ModelCalls(NamedTuple):
    """Up to so many `calls` of a served `model` for a reward, or another purpose, of this `kind`. `assumed`: rows and
    answers decide how many."""

    kind: str
    calls: float
    assumed: bool
    model: ServedModelRecipe


class RewardFields(JudgedFields):
    """The keys of every reward, how it is made, and what differs between rewards; the defaults are those of one of
    episodes that search, without a judge."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("agent",)
    """The kinds of episodes that it can score."""
    is_scored_late: ClassVar[bool] = False
    """Whether its scores are known only after all episodes of a step have ended."""
    is_measured_alone: ClassVar[bool] = False
    """Whether exact match is not logged beside it."""
    version: ClassVar[int] = 1
    """Increased whenever the same episode could get another score under this reward, by our own criteria, or by a judge
    that runs in this process."""
    compares_answers: ClassVar[bool] = False
    """Whether it compares answers with golden ones, so that an episode is right or wrong."""
    needs_answers: ClassVar[bool] = True
    """Whether it scores no question without golden answers."""
    methods: ClassVar[tuple[str, ...]] = ()
    """Published methods that it follows, by their names in `sleuth.runs.model_card.METHODS`."""
    figures: ClassVar[tuple[StepFigure, ...]] = ()
    """The parts of its scores, as `metrics.jsonl` names their means, and what each means."""
    judged_parts: ClassVar[tuple[str, ...]] = ()
    """The parts that depend on its judge, which evaluations of what was paid have too."""

    weight: NonNegativeFloat = 1.0
    """Factor of this reward in the sum. 0: a metric, which is measured beside the others and never paid; where it is
    missing, the score is not."""
    shuffle: bool = False
    """Control arm: permutes the scores within the step, so that they do not depend on their episodes."""

    @abstractmethod
    def build(self, inputs: RewardInputs) -> Reward | None:
        """The reward; None if it is scored after all episodes have ended."""

    def record(self, identify: Identify) -> dict[str, Any]:
        """Its scorer, version and sources, as checkpoints carry them."""
        return {"scorer": self.kind, "scorer_version": self.version}

    def require_gradable(self, tasks: Sequence[Task]) -> None:
        """Raises SleuthError for a task whose answers it cannot judge."""

    @property
    def highest(self) -> float | None:
        """The highest score that it gives, before its weight; None where that is not known."""
        return 1.0

    @property
    def asks_sheets(self) -> bool:
        """Whether one call of the judge asks for several verdicts."""
        return False

    @property
    def answer_scorer(self) -> str | None:
        """The scorer of answers; None for a reward that does not compare answers with golden ones."""
        return None

    def cases(self, size: AnswerSize) -> tuple[int, bool]:
        """For one answer: calls of its judge, and whether the row or the answer decides how many."""
        return 1, False

    def calls_for(self, answers: int, size: AnswerSize) -> Iterator[ModelCalls]:
        """Calls of models over HTTP for so many answers."""
        cases, assumed = self.cases(size)
        for judge in self.served_judges():
            yield ModelCalls(self.kind, answers * cases, assumed, judge)

    def misfit(self, env: EnvFields) -> str | None:
        """Why it cannot score the episodes of an environment; None if it can."""
        if env.plays in self.scores:
            return None
        plays = "refiner" if env.plays == "refiner" else "thought"
        tables = OneOf("rewards", lambda table: plays in table.scores).tables()
        fitting = sorted(f'"{table.own_kind()}"' for table in tables if not issubclass(table, FunctionFields))
        if env.plays == "refiner":
            needed = 'env.kind = "thought"' if self.scores == ("thought",) else "an env that searches"
            return f'needs {needed}; for env.kind = "refine" set {" or ".join(fitting)}'
        kind, named = getattr(env, "kind", ""), " and ".join(fitting)
        return f'does not fit env.kind = "{kind}": {named} need env.kind = "thought", which allows no other'


class JudgedPartRecipe(RewardFields):
    """A reward that asks a judge."""

    kind: Any
    """Set by each such reward."""
    calls: Any
    """Set by each such reward."""
    judge: JudgeTable = Field(default={"kind": "lexical"}, validate_default=True)
    """The judge. "lexical" compares names, dates, numbers, words and negations on this machine; a table of
    kind "http" names a model."""

    def judges_of(self, inputs: RewardInputs) -> tuple[Judge | None, SheetJudge | None]:
        """The judge of single cases and that of sheets, as far as `calls` needs them."""
        singly, pool = self.calls != "per_answer", inputs.judge_pool
        return (
            pool.judge(self.judge) if singly else None,
            pool.sheet_judge(self.judge) if self.asks_sheets else None,
        )

    def record(self, identify: Identify) -> dict[str, Any]:
        """All that it depends on is its scorer: `lexical 2, sum=additive, formula=f1, ...`. Single calls go unsaid."""
        unsaid = {"kind", "judge", "weight", "shuffle", *(() if self.asks_sheets else ("calls",))}
        terms = [f"{name}={value}" for name, value in self.model_dump(exclude=unsaid).items()]
        return {"scorer": ", ".join([identify(self.judge), *terms]), "scorer_version": self.version}

    @property
    def asks_sheets(self) -> bool:
        return self.calls.startswith("per_answer")

    @property
    def subjects(self) -> tuple[Skill, ...]:
        """What is judged, in however many calls."""
        return ("claims",)

    def skills(self) -> tuple[Skill, ...]:
        singly = self.subjects if self.calls != "per_answer" else ()
        return (*singly, *(f"{subject}{ON_SHEETS}" for subject in self.subjects if self.asks_sheets))

    @combination
    def _sheets_have_effect(self) -> Iterator[str]:
        if self.asks_sheets and self.judge.kind != "http":
            yield f'calls = "{self.calls}" has no effect with judge.kind = "{self.judge.kind}", which makes no calls'


class FunctionFields(StrictModel):
    """The keys of a reward that a function of the user computes."""

    named: ClassVar[Mapping[str, str]] = {"function": "reward", "files": "files"}
    function: FunctionName
    """The function, `MODULE:NAME`. The module is looked for beside the recipe, in the current folder and among the
    installed packages. Its first parameter is an `episode`, or a whole `group`."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the function, by name: `[stage.reward.parameters]`."""
    files: Row[FilePath] = ()
    """Files that the function reads, hashed like code: a run does not continue when one has changed."""
    seconds: PositiveFloat = 60.0
    """Timeout of a call in seconds; then the score is missing."""

    def record(self, identify: Identify) -> dict[str, Any]:
        """Scorer, version and sources of the function, as checkpoints carry them."""
        function = load_function(self.function, self.files)
        terms = [function.name, *(f"{name}={value}" for name, value in self.parameters.items())]
        return {"scorer": ", ".join(terms), "scorer_version": FUNCTION_VERSION, "sources": dict(function.sources)}


def unfit_rewards(rewards: Sequence[RewardFields], env: EnvFields) -> Iterator[str]:
    """A line about each reward that cannot score the episodes of an environment."""
    for index, reward in enumerate(rewards):
        if (problem := reward.misfit(env)) is not None:
            yield f'reward.{index}.kind = "{getattr(reward, "kind", "")}" {problem}'


def paid(rewards: Iterable[RewardFields]) -> list[RewardFields]:
    """Those that are no metrics."""
    return [reward for reward in rewards if reward.weight]


def scored_late(rewards: Iterable[RewardFields]) -> list[RewardFields]:
    """The rewards whose scores are known only after all episodes of a step have ended."""
    return [reward for reward in rewards if reward.is_scored_late]


def clashing_figures(rewards: Sequence[StrictModel]) -> Iterator[str]:
    """A sentence for each function of the user whose figures would have the name of another reward's."""
    scorers = get_args(ScorerName)
    names: dict[str, int] = {}
    for index, reward in enumerate(rewards):
        if isinstance(reward, FunctionFields):
            name = reward.function.rpartition(":")[2]
            if name in names or name in scorers:
                other = f"that of reward.{names[name]}" if name in names else "a published scorer"
                yield (
                    f"reward.{index}.function is called {name}, as {other}, and both would be the figure score_{name}; "
                    "rename one of them"
                )
            names.setdefault(name, index)


RewardTable = Annotated[RewardFields, OneOf("rewards")]
"""One `[[stage.reward]]`."""


class MeasuredFields(StrictModel):
    """What an evaluation measures of rewards, whether they are paid or not."""

    reward: Row[RewardTable] = ()
    """Rewards to measure on these questions, by their judges: their sum as the figure `score`, each of them and their
    parts as `score/NAME`. `reward = "grpo"` copies those of the stage of that name: what it pays."""
    audit_judge: JudgeTable | None = None
    """Another judge of the same rewards, which is never paid: `audit_score` and `audit_score/NAME`. Where `score` rises
    and this does not, the paid judge is gamed."""

    @property
    def judged_again(self) -> tuple[RewardFields, ...]:
        """The rewards with the audit judge in the place of theirs; none without one."""
        judge = {"judge": self.audit_judge}
        rewards = self.reward if self.audit_judge is not None else ()
        return tuple(reward.model_copy(update=judge) if reward.judges() else reward for reward in rewards)

    @combination
    def _audit_fits(self) -> Iterator[str]:
        if self.audit_judge is not None and not any(reward.judges() for reward in self.reward):
            yield "audit_judge has nothing to judge: add a reward that asks a judge, or remove it"
        for index, reward in enumerate(self.judged_again):
            if reward == self.reward[index] and reward.judges():
                yield f"audit_judge is reward.{index}.judge itself: name another judge, or remove it"
            for check in reward.combinations():
                yield from (f"audit_judge cannot stand in for reward.{index}.judge: {line}" for line in check(reward))
