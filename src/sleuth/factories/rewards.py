"""The rewards of a recipe as one function, their record in checkpoints, and what they are checked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from transformers import PreTrainedTokenizerFast

from sleuth.dialects import Dialect
from sleuth.dialects.refine import refines
from sleuth.factories.environments import EVAL_JUDGE
from sleuth.factories.judges import JudgePool, JudgeUse, identity_of, require_judge
from sleuth.factories.setting import Setting
from sleuth.judges.cache import NamedJudge, NamedSheetJudge
from sleuth.metrics.metrics import SCORE
from sleuth.recipe.evaluation import ProbeRecipe
from sleuth.recipe.judges import EndingJudgeRecipe, JudgeFields
from sleuth.recipe.preference import PreferenceFields, WinRateRecipe
from sleuth.recipe.rewards import (
    AnswerRewardRecipe,
    CitationRecipe,
    FunctionFields,
    FunctionRewardRecipe,
    GainRecipe,
    RewardFields,
    RubricRecipe,
    SuffixRecipe,
)
from sleuth.recipe.strict import StrictModel
from sleuth.rewards.answer import (
    AnswerReward,
    EpisodeReward,
    cited_answer,
    token_f1,
)
from sleuth.rewards.citation.measure import RewardSum
from sleuth.rewards.citation.reward import CitationReward
from sleuth.rewards.format import well_formed
from sleuth.rewards.function import FunctionReward
from sleuth.rewards.rubric import STATIC, Criteria, RubricReward
from sleuth.rewards.scorers import SCORERS, scorer_of
from sleuth.rewards.scorers.scorer import STRICT, correct_answer_score
from sleuth.rewards.thoughts import CaseBuilder, SuffixReward, equivalence_case, known_ending_case
from sleuth.rewards.total import TotalReward, WithParts
from sleuth.runs.protocol import RewardPart, RewardSpec
from sleuth.types import Episode, Group, Judge, Reward, Score, SleuthError, Task
from sleuth.user_code.functions import load_function

CITATION_VERSION = 2
FUNCTION_VERSION = 1
RUBRIC_VERSION = 2
SUFFIX_VERSION = 1
GAIN_VERSION = 1
"""Increased whenever the same episode could get another score under that reward, by our own criteria, or by a judge
that runs in this process."""

Identify = Callable[[JudgeFields], str]
"""The identity of a recipe's judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInputs:
    """What rewards are made with: the dialect of the episodes, the tokenizer and the judges."""

    dialect: Dialect
    tokenizer: PreTrainedTokenizerFast | None
    judge_pool: JudgePool


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardKind:
    """A kind of reward. `make` returns the reward of its recipe, None if it is scored after all episodes have ended;
    `record` returns its scorer, version and sources for checkpoints. `require_gradable` raises SleuthError for a task
    whose answers it cannot judge. `is_measured_alone`: exact match is not logged beside it."""

    make: Callable[[Any, RewardInputs], Reward] | None
    record: Callable[[Any, Identify], dict[str, Any]]
    require_gradable: Callable[[Any, Sequence[Task]], None] = lambda reward, tasks: None
    is_measured_alone: bool = False


def episode_reward(kind: str, version: int, function: Callable[[Episode, Dialect], float]) -> RewardKind:
    """A kind of reward that is a function of an episode. The `version` is increased whenever the same episode could get
    another score."""
    return RewardKind(
        make=lambda reward, inputs: EpisodeReward(kind, function, inputs.dialect),
        record=lambda reward, identify: {"scorer": kind, "scorer_version": version},
    )


def _make_answer(reward: AnswerRewardRecipe, inputs: RewardInputs) -> Reward:
    return answer_reward_of(reward.scorer, inputs.dialect, inputs.tokenizer)


def _record_answer(reward: AnswerRewardRecipe, identify: Identify) -> dict[str, Any]:
    return {"scorer": reward.scorer, "scorer_version": scorer_of(reward.scorer).version}


def _make_citation(reward: CitationRecipe, inputs: RewardInputs) -> Reward:
    worth = RewardSum(
        name=reward.sum,
        citation_weight=reward.citation_weight,
        verification_reward=reward.verification_reward,
        non_stop_penalty=reward.non_stop_penalty,
        format_gate=reward.format_gate,
        padding_penalty=reward.padding_penalty,
    )
    single, sheets = _judges_of(reward, inputs.judge_pool)
    return CitationReward(
        inputs.dialect, single, worth, sheet_judge=sheets, formula=reward.formula, content=reward.content
    )


def _make_rubric(reward: RubricRecipe, inputs: RewardInputs) -> Reward:
    single, sheets = _judges_of(reward, inputs.judge_pool)
    return RubricReward(
        inputs.dialect,
        criteria_of(reward),
        single,
        sheet_judge=sheets,
        aggregation=reward.aggregation,
        sees_evidence=reward.sees_evidence,
    )


def _judges_of(
    reward: CitationRecipe | RubricRecipe, judge_pool: JudgePool
) -> tuple[NamedJudge | None, NamedSheetJudge | None]:
    """The judge of single cases and that of sheets, as far as the reward's `calls` need them."""
    singly = reward.calls != "per_answer"
    return (
        judge_pool.judge(reward.judge, reward.watch) if singly else None,
        judge_pool.sheet_judge(reward.judge, reward.watch) if reward.asks_sheets else None,
    )


def _record_citation(reward: CitationRecipe, identify: Identify) -> dict[str, Any]:
    return {"scorer": _terms(reward, identify), "scorer_version": CITATION_VERSION}


def _record_rubric(reward: RubricRecipe, identify: Identify) -> dict[str, Any]:
    return {"scorer": _terms(reward, identify), "scorer_version": RUBRIC_VERSION}


def _terms(reward: CitationRecipe | RubricRecipe, identify: Identify) -> str:
    """All that a judged reward depends on: `lexical 2, sum=additive, formula=f1, ...`. Single calls go unsaid."""
    unsaid = {"kind", "judge", "watch", "weight", "shuffle", *(() if reward.asks_sheets else ("calls",))}
    terms = reward.model_dump(exclude=unsaid)
    return ", ".join([identify(reward.judge), *(f"{name}={value}" for name, value in terms.items())])


def _make_suffix(reward: SuffixRecipe, inputs: RewardInputs) -> Reward:
    return SuffixReward(*judge_of_suffixes(reward.judge, inputs.judge_pool), inputs.dialect.think.close)


def _record_suffix(reward: SuffixRecipe, identify: Identify) -> dict[str, Any]:
    return {"scorer": identify(reward.judge), "scorer_version": SUFFIX_VERSION}


def _record_gain(reward: GainRecipe, identify: Identify) -> dict[str, Any]:
    scorer = f"{reward.scorer}, clip={reward.clip}, floor={reward.floor}, decay={reward.decay}"
    return {"scorer": scorer, "scorer_version": GAIN_VERSION}


def function_record(reward: FunctionFields) -> dict[str, Any]:
    """Scorer, version and sources of a user's function."""
    function = load_function(reward.function, reward.files)
    terms = [function.name, *(f"{name}={value}" for name, value in reward.parameters.items())]
    return {"scorer": ", ".join(terms), "scorer_version": FUNCTION_VERSION, "sources": dict(function.sources)}


def _require_facts(reward: CitationRecipe, tasks: Sequence[Task]) -> None:
    for task in tasks if reward.content == "grounded" else ():
        if not task.golden_answers and (task.evidence is None or task.evidence.answerable is not False):
            raise SleuthError(
                f"question {task.id!r} has no golden answers, so that an answer cannot be judged right or wrong: set "
                'content = "none" in the citation reward, and citations alone are paid'
            )


def _require_criteria(reward: RubricRecipe, tasks: Sequence[Task]) -> None:
    criteria = criteria_of(reward)
    bare = next((task for task in tasks if not criteria.for_task(task)), None)
    if bare is not None:
        raise SleuthError(
            f"question {bare.id!r} has no rubrics, so that there is nothing to judge its answers by: give rows with "
            'rubrics, or set static = "refiner" in the rubric reward'
        )


REWARD_KINDS: dict[str, RewardKind] = {
    "answer": RewardKind(make=_make_answer, record=_record_answer, is_measured_alone=True),
    "token_f1": episode_reward("token_f1", 1, token_f1),
    "format": episode_reward("format", 1, well_formed),
    "cited_answer": episode_reward("cited_answer", 1, cited_answer),
    "citation": RewardKind(make=_make_citation, record=_record_citation, require_gradable=_require_facts),
    "rubric": RewardKind(make=_make_rubric, record=_record_rubric, require_gradable=_require_criteria),
    "suffix": RewardKind(make=_make_suffix, record=_record_suffix, is_measured_alone=True),
    "gain": RewardKind(make=None, record=_record_gain, is_measured_alone=True),
    "python": RewardKind(
        make=lambda reward, inputs: function_reward_of(reward), record=lambda reward, identify: function_record(reward)
    ),
}
"""By `kind` of `[[stage.reward]]`."""


def reward_spec_of(rewards: Sequence[RewardFields], identify: Identify = identity_of) -> RewardSpec:
    """The record of `reward_of` that checkpoints carry."""
    return RewardSpec(
        parts=tuple(
            RewardPart(
                kind=reward.kind,
                weight=reward.weight,
                shuffle=reward.shuffle,
                **REWARD_KINDS[reward.kind].record(reward, identify),
            )
            for reward in rewards
        )
    )


def criteria_of(reward: RubricRecipe) -> Criteria:
    """The criteria of a rubric reward."""
    return Criteria(own=reward.own, static=STATIC[reward.static])


def rightness(score: Score, rewards: Sequence[RewardFields]) -> float | None:
    """How right an episode is, from 0 to 1: what the scorer of answers says, or, without one, its score as a share of
    the highest that the rewards can give. Where that is not known it is the score itself. None for a missing score."""
    if score.value is None:
        return None
    if any(reward.answer_scorer for reward in rewards):
        scorer = answer_scorer_of(rewards)
        said = score.parts.get("correct" if scorer == STRICT.name else f"score_{scorer}", 0.0)
        return min(max(said, 0.0), 1.0)
    attainable = [reward.highest and reward.weight * reward.highest for reward in rewards]
    if not attainable or None in attainable:
        return score.value
    return min(max(score.value / sum(filter(None, attainable)), 0.0), 1.0)


def answer_scorer_of(rewards: Sequence[RewardFields]) -> str:
    """The scorer of the first reward for answers; the strict one if there is none."""
    return next((scorer for reward in rewards if (scorer := reward.answer_scorer)), STRICT.name)


def answer_reward_of(scorer: str, dialect: Dialect, tokenizer: PreTrainedTokenizerFast | None) -> AnswerReward:
    """The reward for answers in a dialect; the tokenizer gives the token that ends a text."""
    end_token = cast("int | None", tokenizer.eos_token_id) if tokenizer else None
    return AnswerReward(dialect, scorer=scorer_of(scorer), end_token=end_token)


def eval_reward_of(
    scorer: str,
    dialect: Dialect,
    tokenizer: PreTrainedTokenizerFast | None,
    rewards: Sequence[RewardFields] = (),
    judge: Judge = EVAL_JUDGE,
) -> Reward:
    """The reward by which evaluations measure episodes: strict exact match, `scorer` and, of an agent that writes tags,
    whether they are well formed; or, of a refiner, its citations by `judge`; and, as further parts, what the user's
    functions among the `rewards` give. If it `computes_score`, the value and the part `score` are the sum of
    the rewards."""
    others: list[Reward] = []
    if paid := computes_score(rewards, dialect):
        measured = reward_of(rewards, dialect, tokenizer)
    else:
        others += [function_reward_of(reward) for reward in rewards if isinstance(reward, FunctionRewardRecipe)]
        measured = CitationReward(dialect, judge) if refines(dialect) else answer_reward_of(scorer, dialect, tokenizer)
    if dialect.tool is None and not refines(dialect):
        others.append(EpisodeReward("well_formed", well_formed, dialect))
    return WithParts(measured, others, name=SCORE if paid else None)


def leads_with_score(rewards: Sequence[RewardFields], dialect: Dialect) -> bool:
    """Whether a stage pays something else than right answers; then the score and its parts lead its evaluations."""
    return bool(rewards) and not refines(dialect) and all(reward.answer_scorer is None for reward in rewards)


def computes_score(rewards: Sequence[RewardFields], dialect: Dialect) -> bool:
    """Whether evaluations compute the score of such a stage: no judge has to be asked for it."""
    at_once = all(not reward.judges() and not reward.is_scored_late for reward in rewards)
    return at_once and leads_with_score(rewards, dialect)


def function_reward_of(reward: FunctionFields) -> FunctionReward:
    """The reward that a user's function computes. Raises UserCodeError if there is no such function."""
    return FunctionReward(load_function(reward.function, reward.files), reward.parameters, seconds=reward.seconds)


def reward_of(
    rewards: Sequence[RewardFields],
    dialect: Dialect,
    tokenizer: PreTrainedTokenizerFast | None,
    judge_pool: JudgePool | None = None,
) -> Reward:
    """The weighted sum of a stage's rewards, with the judges of the pool, which may be absent if none asks one.
    Episodes that search are also measured by strict exact match, with weight 0; refiners and thoughts have no golden
    answer to match. A gain is added later, by `sleuth.training.credit.thought_gain`."""
    inputs = RewardInputs(dialect=dialect, tokenizer=tokenizer, judge_pool=cast("JudgePool", judge_pool))
    made = [(make(reward, inputs), reward.weight) for reward in rewards if (make := REWARD_KINDS[reward.kind].make)]
    if not refines(dialect) and not any(REWARD_KINDS[reward.kind].is_measured_alone for reward in rewards):
        made.insert(0, (answer_reward_of(STRICT.name, dialect, tokenizer), 0.0))
    return TotalReward([reward for reward, _ in made], [weight for _, weight in made])


def judge_of_suffixes(judge: JudgeFields, judge_pool: JudgePool) -> tuple[Judge, CaseBuilder]:
    """The judge of whether a suffix is equivalent to the true one, and the question it gets."""
    return judge_pool.judge(judge), known_ending_case if judge.needs_endings else equivalence_case


def require_judges(rewards: Sequence[RewardFields]) -> None:
    """Raises SleuthError if a judge of these rewards does not answer or cannot be loaded."""
    for use in judges_in(rewards):
        require_judge(use)


def judges_in(
    rewards: Sequence[RewardFields | PreferenceFields | ProbeRecipe | WinRateRecipe], what: str = "reward"
) -> Iterator[JudgeUse]:
    """Each judge, and each that watches one; without judges of endings, which know them and pass no exam."""
    for reward in rewards:
        for number, judge in enumerate(reward.judges()):
            if not isinstance(judge, EndingJudgeRecipe):  # the first one decides
                yield JudgeUse(of=f"the {reward.kind} {what}", judge=judge, skills=reward.skills(watching=number > 0))


def require_gradable(rewards: Sequence[RewardFields], tasks: Sequence[Task]) -> None:
    """Raises SleuthError for a task whose answers a reward cannot judge: no golden answer, no criterion, no ending."""
    for reward in rewards:
        REWARD_KINDS[reward.kind].require_gradable(reward, tasks)
        require_endings(reward.judges(), tasks)


def require_functions(rewards: Sequence[StrictModel], trial: Callable[[], Group]) -> None:
    """Calls each function of the user on the group that `trial` makes. Raises UserCodeError if one fails."""
    functions = [function_reward_of(reward) for reward in rewards if isinstance(reward, FunctionFields)]
    if functions:
        group = trial()
        for function in functions:
            asyncio.run(function.score_or_raise(group))


def require_endings(judges: Iterable[JudgeFields], tasks: Sequence[Task]) -> None:
    """Raises SleuthError for a text without a right ending, if one of the judges compares with it."""
    unanswered = next((task for task in tasks if not task.golden_answers), None)
    if unanswered is not None and any(judge.needs_endings for judge in judges):
        raise SleuthError(
            f'text {unanswered.id!r} has no golden_answers, and judge.kind = "ending" compares with nothing else: give '
            'texts that say what a right ending names, or a judge of kind "http"'
        )


def scorer_warnings(scorers: Iterable[str | None], setting: Setting) -> list[str]:
    """A sentence for each scorer that gives a right answer less than 1 under this prompt and dialect. Refiners and
    thoughts have no golden answer that a scorer could compare."""
    if refines(setting.dialect):
        return []
    return misfit_lines(scorers, setting.dialect, lambda: setting.opening, setting.prompt_name)


def misfit_lines(
    scorers: Iterable[str | None], dialect: Dialect, opening: Callable[[], str], prompt_name: str
) -> list[str]:
    """`scorer_warnings` of a dialect after the text before the policy's first token."""
    worths = {name: correct_answer_score(SCORERS[name], opening(), dialect) for name in dict.fromkeys(scorers) if name}
    return [
        f"the scorer {name} would pay a well-formed right answer {worth:g}, not 1: it reads "
        f"{SCORERS[name].view.label}, and the prompt {prompt_name} in the dialect {dialect.name} is not what it expects"
        for name, worth in worths.items()
        if worth < 1
    ]
