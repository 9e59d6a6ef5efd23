"""What is paid for: a recipe's rewards as one, and what travels with a checkpoint of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from transformers import PreTrainedTokenizerFast

from sleuth.dialects import Dialect
from sleuth.dialects.refine import refines
from sleuth.factories.judge_pool import JudgePool
from sleuth.factories.judges import identity_of, require_there
from sleuth.factories.refining import EVAL_JUDGE
from sleuth.factories.setting import Setting
from sleuth.judges.ending import EndingJudge
from sleuth.recipe.judges import ContinuationJudge, EndingJudgeRecipe, HttpJudgeRecipe, JudgeRecipe
from sleuth.recipe.rewards import (
    AnswerRewardRecipe,
    CitationRecipe,
    GainRecipe,
    JudgedPartRecipe,
    RewardRecipe,
    RubricRecipe,
    SuffixRecipe,
)
from sleuth.rewards.answer import (
    AnswerReward,
    EpisodeReward,
    answer_from_evidence,
    evidence_in_results,
    searched,
    sub_match,
    token_f1,
)
from sleuth.rewards.citation.measure import RewardSum
from sleuth.rewards.citation.reward import CitationReward
from sleuth.rewards.format import well_formed
from sleuth.rewards.rubric import STATIC, Criteria, RubricReward
from sleuth.rewards.scorers import SCORERS, scorer_of
from sleuth.rewards.scorers.scorer import STRICT, correct_answer_score
from sleuth.rewards.thoughts import CaseBuilder, SuffixReward, equivalence_case, known_ending_case
from sleuth.rewards.total import TotalReward
from sleuth.runs.protocol import RewardPart, RewardSpec
from sleuth.types import Episode, Judge, Reward, SleuthError, Task

EPISODE_REWARDS: dict[str, tuple[int, Callable[[Episode, Dialect], float]]] = {
    "sub_match": (1, sub_match),
    "token_f1": (1, token_f1),
    "format": (1, well_formed),
    "searched": (1, searched),
    "evidence_in_results": (1, evidence_in_results),
    "answer_from_evidence": (1, answer_from_evidence),
}
"""What may be paid for beside the answer, by kind: a version, raised whenever the same episode could score differently,
and the function that measures an episode."""

CITATION_VERSION = 2
RUBRIC_VERSION = 1
SUFFIX_VERSION = 1
GAIN_VERSION = 1
"""Raised whenever the same episode could score differently under that reward, its criteria in our words included, or
under a judge of this machine."""


Identify = Callable[[JudgeRecipe], str]
"""Who a judge is, of its recipe."""


def reward_spec_of(rewards: Sequence[RewardRecipe], identify: Identify = identity_of) -> RewardSpec:
    """What `reward_of` pays for, as it travels with a checkpoint."""
    return RewardSpec(parts=tuple(_reward_part(reward, identify) for reward in rewards))


def _reward_part(reward: RewardRecipe, identify: Identify) -> RewardPart:
    if isinstance(reward, AnswerRewardRecipe):
        scorer, version = reward.scorer, scorer_of(reward.scorer).version
    elif isinstance(reward, CitationRecipe):
        scorer, version = _terms(reward, identify), CITATION_VERSION
    elif isinstance(reward, RubricRecipe):
        scorer, version = _terms(reward, identify), RUBRIC_VERSION
    elif isinstance(reward, SuffixRecipe):
        judge, version = reward.judge, SUFFIX_VERSION
        scorer = EndingJudge(judge.flip).identity if isinstance(judge, EndingJudgeRecipe) else identify(judge)
    elif isinstance(reward, GainRecipe):
        scorer, version = (
            f"{reward.scorer}, clip={reward.clip}, floor={reward.floor}, decay={reward.decay}",
            GAIN_VERSION,
        )
    else:
        scorer, version = reward.kind, EPISODE_REWARDS[reward.kind][0]
    return RewardPart(
        kind=reward.kind, scorer=scorer, scorer_version=version, weight=reward.weight, shuffle=reward.shuffle
    )


def _terms(reward: CitationRecipe | RubricRecipe, identify: Identify) -> str:
    """All that decides what a judged reward pays: `lexical, sum=additive, formula=f1, ...`."""
    terms = reward.model_dump(exclude={"kind", "judge", "watch", "weight", "shuffle"})
    return ", ".join([identify(reward.judge), *(f"{name}={value}" for name, value in terms.items())])


def citation_reward_of(reward: CitationRecipe, dialect: Dialect, judge: Judge) -> CitationReward:
    """What pays for the citations of the answers given in a dialect, as the judge finds them."""
    worth = RewardSum(
        name=reward.sum,
        citation_weight=reward.citation_weight,
        verification_reward=reward.verification_reward,
        non_stop_penalty=reward.non_stop_penalty,
        format_gate=reward.format_gate,
        padding_penalty=reward.padding_penalty,
    )
    return CitationReward(dialect, judge, worth, formula=reward.formula, content=reward.content)


def criteria_of(reward: RubricRecipe) -> Criteria:
    """By which criteria a rubric reward judges."""
    return Criteria(own=reward.own, static=STATIC[reward.static], dropout=reward.dropout)


def rubric_reward_of(reward: RubricRecipe, dialect: Dialect, judge_pool: JudgePool) -> RubricReward:
    """What pays for the answers given in a dialect, as a judge of the bench finds them by the criteria."""
    sheets = reward.calls == "per_answer"
    return RubricReward(
        dialect,
        criteria_of(reward),
        None if sheets else judge_pool.judge(reward.judge, reward.watch),
        sheet_judge=judge_pool.sheet_judge(reward.judge, reward.watch) if sheets else None,
        aggregation=reward.aggregation,
        sees_evidence=reward.sees_evidence,
    )


def answer_scorer_of(rewards: Sequence[RewardRecipe]) -> str:
    """Who decides what a right answer is: the scorer of the first reward for answers, ours where there is none."""
    return next((reward.scorer for reward in rewards if isinstance(reward, AnswerRewardRecipe)), STRICT.name)


def answer_reward_of(scorer: str, dialect: Dialect, tokenizer: PreTrainedTokenizerFast | None) -> AnswerReward:
    """What reads the answers given in a dialect; the tokenizer tells which token ends a text."""
    end_token = cast("int | None", tokenizer.eos_token_id) if tokenizer else None
    return AnswerReward(dialect, scorer=scorer_of(scorer), end_token=end_token)


def eval_reward_of(scorer: str, dialect: Dialect, tokenizer: PreTrainedTokenizerFast | None) -> Reward:
    """What an evaluation tells of each episode: strict exact match with what `scorer` says beside it, or, of a refiner,
    how well it cites."""
    if refines(dialect):
        return CitationReward(dialect, EVAL_JUDGE)
    return answer_reward_of(scorer, dialect, tokenizer)


def reward_of(
    rewards: Sequence[RewardRecipe], dialect: Dialect, tokenizer: PreTrainedTokenizerFast | None, judge_pool: JudgePool
) -> Reward:
    """The rewards of a stage as their weighted sum, judged by those on the bench. Strict exact match is told of every
    episode that searches, whatever is paid; what a refiner writes is never a golden answer and nothing else, and a text
    that is thought about has none. A gain is added behind all others, by `sleuth.training.credit.thought_gain`."""

    def build(reward: RewardRecipe) -> Reward:
        if isinstance(reward, AnswerRewardRecipe):
            return answer_reward_of(reward.scorer, dialect, tokenizer)
        if isinstance(reward, CitationRecipe):
            return citation_reward_of(reward, dialect, judge_pool.judge(reward.judge, reward.watch))
        if isinstance(reward, RubricRecipe):
            return rubric_reward_of(reward, dialect, judge_pool)
        if isinstance(reward, SuffixRecipe):
            return suffix_reward_of(reward, dialect, judge_pool)
        assert not isinstance(reward, GainRecipe)  # left out below
        return EpisodeReward(reward.kind, EPISODE_REWARDS[reward.kind][1], dialect)

    early = [reward for reward in rewards if not isinstance(reward, GainRecipe)]
    parts, weights = [build(reward) for reward in early], [reward.weight for reward in early]
    told = (AnswerRewardRecipe, SuffixRecipe, GainRecipe)
    if not refines(dialect) and not any(isinstance(reward, told) for reward in rewards):
        parts, weights = [answer_reward_of(STRICT.name, dialect, tokenizer), *parts], [0.0, *weights]
    return TotalReward(parts, weights)


def suffix_reward_of(reward: SuffixRecipe, dialect: Dialect, judge_pool: JudgePool) -> SuffixReward:
    """What pays for what is written behind a thought."""
    return SuffixReward(*judge_of_suffixes(reward.judge, judge_pool), dialect.think.close)


def judge_of_suffixes(judge: ContinuationJudge, judge_pool: JudgePool) -> tuple[Judge, CaseBuilder]:
    """Who decides whether a suffix comes to the true one, and what they are asked."""
    if isinstance(judge, EndingJudgeRecipe):
        return EndingJudge(judge.flip), known_ending_case
    return judge_pool.judge(judge), equivalence_case


def require_judges(rewards: Sequence[RewardRecipe]) -> None:
    """Raises SleuthError where a judge of these rewards is not there, or could not be loaded."""
    for kind, judge in judges_in(rewards):
        try:
            require_there(judge)
            identity_of(judge)
        except SleuthError as error:
            raise SleuthError(f"the judge of the {kind} reward: {error}") from None


def judges_in(rewards: Sequence[RewardRecipe]) -> Iterator[tuple[str, JudgeRecipe]]:
    """(kind of the reward, judge): those who pay, and those who watch them."""
    for reward in rewards:
        if isinstance(reward, JudgedPartRecipe):
            yield reward.kind, reward.judge
            if reward.watch is not None:
                yield reward.kind, reward.watch.judge
        elif isinstance(reward, SuffixRecipe) and isinstance(reward.judge, HttpJudgeRecipe):
            yield reward.kind, reward.judge


def require_gradable(rewards: Sequence[RewardRecipe], tasks: Sequence[Task]) -> None:
    """Raises SleuthError for a task that a citation reward could not tell the content of, or that a rubric reward has
    no criterion for."""
    for reward in rewards:
        bare = [task for task in tasks if isinstance(reward, RubricRecipe) and not criteria_of(reward).for_task(task)]
        if bare:
            raise SleuthError(
                f"question {bare[0].id!r} brings no rubrics, so that there is nothing to judge its answers by: give "
                'rows with rubrics, or set static = "refiner" in the rubric reward'
            )
        if isinstance(reward, SuffixRecipe) and isinstance(reward.judge, EndingJudgeRecipe):
            require_endings(tasks)
    if not any(isinstance(reward, CitationRecipe) and reward.content == "grounded" for reward in rewards):
        return
    for task in tasks:
        if not task.golden_answers and (task.evidence is None or task.evidence.answerable is not False):
            raise SleuthError(
                f"question {task.id!r} has no golden answers, so that nobody can tell whether an answer is right: set "
                'content = "none" in the citation reward, and citations alone are paid'
            )


def require_endings(tasks: Sequence[Task]) -> None:
    """Raises SleuthError for a text without a right ending, which a judge of endings could not judge."""
    mute = next((task for task in tasks if not task.golden_answers), None)
    if mute is not None:
        raise SleuthError(
            f'text {mute.id!r} has no golden_answers, and judge.kind = "ending" compares with nothing else: give texts '
            'that say what a right ending names, or a judge of kind "http"'
        )


def scorer_warnings(rewards: Sequence[RewardRecipe], setting: Setting) -> list[str]:
    """Scorers that would not pay a right answer in full under this prompt and dialect, in sentences."""
    asked = {reward.scorer for reward in rewards if isinstance(reward, AnswerRewardRecipe)}
    worths = {
        name: correct_answer_score(scorer, setting.opening, setting.dialect)
        for name, scorer in SCORERS.items()
        if name in asked
    }
    return [
        f"the scorer {name} would pay a well-formed right answer {worth:g}, not 1: it reads "
        f"{SCORERS[name].view.label}, and the prompt {setting.prompt_name} in the dialect {setting.dialect.name} is "
        "not what it expects"
        for name, worth in worths.items()
        if worth < 1
    ]
