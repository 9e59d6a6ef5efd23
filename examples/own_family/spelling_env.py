"""The environment of the family in spelling.py: one question, one turn; and the reward for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spelling import SPELLING

from sleuth.dialect import Dialect
from sleuth.episodes.setting import Setting
from sleuth.types import (
    Action,
    Case,
    Env,
    EpisodeKey,
    Group,
    Judge,
    Piece,
    Reply,
    Score,
    StopReason,
    Task,
    Verdict,
    failed_score,
)

PROMPT = "Spell backwards: {question}\n<answer>"


class SpellEnv:
    """The word, then one turn."""

    def __init__(self, task: Task, dialect: Dialect) -> None:
        self.task = task
        self.dialect = dialect

    async def open(self) -> Reply:
        """The prompt, with the word as quoted text: what it spells cannot close a tag."""
        before, after = PROMPT.split("{question}")
        pieces = (Piece(text=before), Piece(text=self.task.question, quoted=True), Piece(text=after))
        return Reply(pieces=pieces, max_tokens=self.dialect.turn_tokens, stops=self.dialect.stops)

    async def reply(self, text: str, stop: StopReason) -> Reply:
        """The end: all that was written is the answer."""
        answer = text.removesuffix(self.dialect.answer.close).strip()
        return Reply(action=Action(kind="answer", text=answer), done="answered")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpellSetting(Setting):
    """What the episodes of a stage share."""

    def env(self, task: Task, key: EpisodeKey = (0, 0)) -> Env:
        return SpellEnv(task, self.dialect)


def spell_setting(turn_tokens: int) -> SpellSetting:
    """The setting with so many tokens for an answer."""
    return SpellSetting(
        dialect=replace(SPELLING, turn_tokens=turn_tokens),
        prompt_name="spell",
        prompt=PROMPT,
        prompt_role="raw",
        template=None,
    )


class SpelledReward:
    """Scores a group: a case for the judge for each answer."""

    def __init__(self, dialect: Dialect, judge: Judge) -> None:
        self.dialect = dialect
        self.judge = judge

    async def __call__(self, group: Group) -> list[Score]:
        """A score for each episode, missing where it failed or has no verdict."""
        right = group.task.golden_answers[0]
        ended = [failed_score(episode) for episode in group.episodes]
        answers = [actions[-1].text if (actions := episode.trajectory.actions) else "" for episode in group.episodes]
        verdicts = await self.judge.judge([Case(claim=answer, evidence=right) for answer in answers])
        return [failed or scored(verdict) for failed, verdict in zip(ended, verdicts, strict=True)]


def scored(verdict: Verdict) -> Score:
    """The score of a verdict, with its part for the figure `letters`."""
    parts = {} if verdict.score is None else {"letters": verdict.score}
    return Score(value=verdict.score, parts=parts, note=verdict.reason)
