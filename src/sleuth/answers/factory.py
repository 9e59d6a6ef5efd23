"""The rewards of a recipe as one function, their record in checkpoints, and what they are checked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from transformers import PreTrainedTokenizerFast

from sleuth.answers.answer import SCORE, EpisodeReward, TotalReward, WithParts, answer_reward_of
from sleuth.answers.function import function_reward_of
from sleuth.answers.scorers import SCORERS
from sleuth.answers.scorers.scorer import STRICT, correct_answer_score
from sleuth.answers.tables import well_formed
from sleuth.data.rows import listed
from sleuth.dialect import Dialect
from sleuth.episodes.protocol import RewardPart, RewardSpec
from sleuth.episodes.setting import Setting
from sleuth.judges.factory import JudgePool, JudgeUse, identity_of, require_judge
from sleuth.recipe.envs import compares_answers, environment_of
from sleuth.recipe.judges import JudgedFields, JudgeFields
from sleuth.recipe.rewards import FunctionFields, Identify, RewardFields, RewardInputs, paid
from sleuth.recipe.strict import StrictModel
from sleuth.types import Group, Judge, Reward, Score, SleuthError, Task


def reward_spec_of(rewards: Sequence[Any], identify: Identify = identity_of) -> RewardSpec:
    """The record of the sum of rewards, of episodes or of candidates, that checkpoints carry."""
    return RewardSpec(
        parts=tuple(
            RewardPart(
                kind=reward.kind,
                weight=reward.weight,
                shuffle=getattr(reward, "shuffle", False),
                **reward.record(identify),
            )
            for reward in rewards
        )
    )


def rightness(score: Score, rewards: Sequence[RewardFields]) -> float | None:
    """How right an episode is, from 0 to 1: what the scorer of answers says, or, without one, its score as a share of
    the highest that the rewards can give. Where that is not known it is the score itself. None for a missing score."""
    if score.value is None:
        return None
    if any(reward.answer_scorer for reward in rewards):
        scorer = answer_scorer_of(rewards)
        said = score.parts.get("correct" if scorer == STRICT.name else f"score_{scorer}", 0.0)
        return min(max(said, 0.0), 1.0)
    attainable = [reward.highest and reward.weight * reward.highest for reward in paid(rewards)]
    if not attainable or None in attainable:
        return score.value
    return min(max(score.value / sum(filter(None, attainable)), 0.0), 1.0)


def answer_scorer_of(rewards: Sequence[RewardFields]) -> str:
    """The scorer of the first reward for answers; the strict one if there is none."""
    return next((scorer for reward in rewards if (scorer := reward.answer_scorer)), STRICT.name)


def eval_reward_of(
    scorer: str,
    dialect: Dialect,
    tokenizer: PreTrainedTokenizerFast | None,
    rewards: Sequence[RewardFields] = (),
    judge: Judge | None = None,
    measured: Sequence[PaidScores] = (),
) -> Reward:
    """The reward by which evaluations measure episodes: strict exact match, `scorer` and, of an agent that writes tags,
    whether they are well formed; or what the environment measures instead, by `judge`; and, as further parts, what the
    user's functions among the `rewards` give, and what is `measured`. If it `computes_score`, the value and the part
    `score` are the sum of the rewards."""
    others: list[Reward] = [*measured]
    compares = compares_answers(dialect)
    if scored := not measured and computes_score(rewards, dialect):
        main = reward_of([reward for reward in rewards if not reward.judges()], dialect, tokenizer)
    else:
        others += [function_reward_of(reward) for reward in rewards if isinstance(reward, FunctionFields)]
        answers = answer_reward_of(scorer, dialect, tokenizer) if compares else None
        main = answers or environment_of(dialect).measure(dialect, judge)
    if dialect.tool is None and compares:
        others.append(EpisodeReward("well_formed", well_formed, dialect))
    return WithParts(main, others, name=SCORE if scored else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidScores:
    """What `rewards` give, as parts of a score: `name`, their weighted sum; `name/KIND`, each of them; and those of its
    parts that its judge decides. What is missing is no part, and the note `name/KIND` says why."""

    name: str
    rewards: Sequence[RewardFields]
    built: Sequence[Reward]

    @classmethod
    def of(cls, name: str, rewards: Sequence[RewardFields], inputs: RewardInputs) -> PaidScores:
        """With the judges of the inputs."""
        return cls(name=name, rewards=rewards, built=[cast("Reward", reward.build(inputs)) for reward in rewards])

    async def __call__(self, group: Group) -> list[Score]:
        by_reward = await asyncio.gather(*(reward(group) for reward in self.built))
        return [self._named(scores) for scores in zip(*by_reward, strict=True)]

    def _named(self, scores: Sequence[Score]) -> Score:
        parts, notes, kinds = dict[str, float](), dict[str, str](), [reward.kind for reward in self.rewards]
        for at, (reward, score) in enumerate(zip(self.rewards, scores, strict=True)):
            found = {reward.kind: score.value, **{part: score.parts.get(part) for part in reward.judged_parts}}
            suffix = f"_{at}" if kinds.count(reward.kind) > 1 else ""
            parts |= {f"{self.name}/{part}{suffix}": value for part, value in found.items() if value is not None}
            if reward.weight and score.value is None:
                notes[f"{self.name}/{reward.kind}{suffix}"] = score.note
        total = sum(reward.weight * (score.value or 0) for reward, score in zip(self.rewards, scores, strict=True))
        return Score(value=None, parts=parts if notes else {self.name: total, **parts}, notes=notes)


def leads_with_score(rewards: Sequence[RewardFields], dialect: Dialect) -> bool:
    """Whether a stage pays something else than right answers; then the score and its parts lead its evaluations."""
    scorers = [reward.answer_scorer for reward in paid(rewards)]
    return bool(scorers) and compares_answers(dialect) and not any(scorers)


def computes_score(rewards: Sequence[RewardFields], dialect: Dialect) -> bool:
    """Whether evaluations compute the score of such a stage: no judge has to be asked for it."""
    at_once = all(not reward.judges() and not reward.is_scored_late for reward in paid(rewards))
    return at_once and leads_with_score(rewards, dialect)


def reward_of(
    rewards: Sequence[RewardFields],
    dialect: Dialect,
    tokenizer: PreTrainedTokenizerFast | None,
    judge_pool: JudgePool | None = None,
) -> Reward:
    """The weighted sum of a stage's rewards, with the judges of the pool, which may be absent if none asks one.
    Episodes that search are also measured by strict exact match, with weight 0; refiners and thoughts have no golden
    answer to match. A gain is added later, by `sleuth.think.thought_gain`."""
    inputs = RewardInputs(dialect=dialect, tokenizer=tokenizer, judge_pool=cast("JudgePool", judge_pool))
    made = [(built, reward.weight) for reward in rewards if (built := reward.build(inputs)) is not None]
    if compares_answers(dialect) and not any(reward.is_measured_alone for reward in rewards):
        made.insert(0, (answer_reward_of(STRICT.name, dialect, tokenizer), 0.0))
    return TotalReward([reward for reward, _ in made], [weight for _, weight in made])


def require_judges(rewards: Sequence[RewardFields]) -> None:
    """Raises SleuthError if a judge of these rewards does not answer or cannot be loaded."""
    for use in judges_in(rewards):
        require_judge(use)


def judges_in(rewards: Sequence[JudgedFields], what: str = "reward") -> Iterator[JudgeUse]:
    """Each judge; without judges of endings, which know them and pass no exam."""
    for reward in rewards:
        for judge in reward.judges():
            if not judge.needs_endings:
                yield JudgeUse(of=f"the {reward.kind} {what}", judge=judge, skills=reward.skills())


def require_gradable(rewards: Sequence[RewardFields], tasks: Sequence[Task]) -> None:
    """Raises SleuthError for a task whose answers a reward cannot judge: no golden answer, no criterion, no ending."""
    if rewards:
        require_answers(rewards, tasks)
    for reward in rewards:
        reward.require_gradable(tasks)
        require_endings(reward.judges(), tasks)


def require_answers(tables: Sequence[Any], tasks: Sequence[Task], what: str = "reward") -> None:
    """Raises SleuthError for a question without golden answers, if one of these tables, rewards or others, cannot do
    without; or if there are none, so that exact match is measured."""
    unanswered = next((task for task in tasks if not (task.golden_answers or task.evidence or task.continuation)), None)
    needing = next((table.kind for table in tables if getattr(table, "needs_answers", True)), None)
    if unanswered is not None and (needing or not tables):
        needs = f"the {needing} {what} needs them" if needing else "exact match needs them"
        raise SleuthError(
            f'question {unanswered.id!r} has no golden_answers, and {needs}; expected a list such as ["Tarn"], or an '
            f"`answer`; its other columns are {listed(unanswered.info) or 'none'}"
        )


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
    if not compares_answers(setting.dialect):
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
