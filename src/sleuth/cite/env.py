"""The refiner's environment: one prompt with a search agent's reasoning and tool output, one answer; and its
setting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from transformers import PreTrainedTokenizerFast

from sleuth.cite.dialect import REFINERS
from sleuth.cite.tables import EVAL_JUDGE, RefineEnvRecipe
from sleuth.dialect import Dialect
from sleuth.episodes.frames import Frame, TextFrame
from sleuth.episodes.protocol import ProtocolCard, RewardSpec
from sleuth.episodes.setting import Setting, asked_by
from sleuth.types import Action, Env, EpisodeKey, Evidence, Piece, Reply, SleuthError, StopReason, Task

SNIPPET_MARKUP = re.compile(r"(</?(?:snippet|webpage)\b[^<>]*>)", re.IGNORECASE)


class RefineEnv:
    """A single turn. The prompt contains all evidence; nothing that the policy writes becomes evidence."""

    def __init__(self, task: Task, dialect: Dialect, prompt: str, *, frame: Frame | None = None) -> None:
        self.task = task
        self.dialect = dialect
        self.prompt = prompt
        self.frame = frame or TextFrame(dialect)

    async def open(self) -> Reply:
        """The prompt filled with question, reasoning and tool output, or with the task's own prompt."""
        own = self.task.prompt
        question = [Piece(text=own, author="template")] if own else self._question()
        pieces = tuple(self.frame.open(self.prompt, *question))
        return Reply(pieces=pieces, max_tokens=self.dialect.turn_tokens, stops=self.dialect.stops)

    async def reply(self, text: str, stop: StopReason) -> Reply:
        """The end: `answered`, or without a closed answer `length` or `turns`."""
        if (match := self.dialect.find_action(text)) is not None:
            return Reply(action=Action(kind="answer", text=match["text"].strip()), done="answered")
        action = Action(kind="invalid", text=text.strip())
        return Reply(action=action, done="length" if stop == "length" else "turns")

    def _question(self) -> list[Piece]:
        """Of the tool output only the markup of its snippets is more than quoted text."""
        evidence = self.task.evidence or Evidence(reasoning="", output="", snippets=())  # refused by the factory
        pieces = [Piece(text="Question: "), Piece(text=self.task.question, quoted=True), Piece(text="\n")]
        if evidence.reasoning:
            pieces += [Piece(text="Reasoning: "), Piece(text=evidence.reasoning, quoted=True), Piece(text="\n")]
        parts = SNIPPET_MARKUP.split(evidence.output.strip())  # every second part is markup
        output = [Piece(text=part, quoted=not at % 2) for at, part in enumerate(parts) if part]
        tags = self.dialect.information
        return [*pieces, Piece(text=f"{tags.open}\n"), *output, Piece(text=f"\n{tags.close}")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefineSetting(Setting):
    """What the episodes of a refining stage share. There is no search: the evidence comes with the task."""

    probe: ClassVar[str] = "sleuth.cite.citation_gain:probe_citations"

    def env(self, task: Task, key: EpisodeKey = (0, 0)) -> Env:
        return RefineEnv(task, self.dialect, self.asked_prompt(), frame=self.frame())

    def hooks(self, inputs: Any) -> list[Any]:
        from sleuth.cite.red_team import RedTeam

        return [RedTeam(inputs.worker)] if inputs.worker.stage.red_team_every else []

    def protocol(
        self, scorer: str, context: int, reward: RewardSpec | None = None, questions_sha256: str | None = None
    ) -> ProtocolCard:
        """The card names the judge of claims in place of `scorer`: no answer is compared with a golden one."""
        return Setting.protocol(self, EVAL_JUDGE.identity, context, reward, questions_sha256)


def refine_setting(
    env: RefineEnvRecipe,
    tokenizer: PreTrainedTokenizerFast | None,
    tasks: Sequence[Task],
    card: ProtocolCard | None = None,
) -> RefineSetting:
    """The mode's dialect with the recipe's limits, and the prompt: that of a checkpoint's `card` if `env` names no
    other. Raises SleuthError for a task without tool output."""
    bare = next((task for task in tasks if task.evidence is None), None)
    if bare is not None:
        raise SleuthError(
            f"question {bare.id!r} has no tool output to refine: give rows with reasoning and tool_output, or set "
            'kind = "search"'
        )
    dialect = REFINERS[env.mode]
    if env.turn_tokens is not None:
        dialect = replace(dialect, turn_tokens=env.turn_tokens)
    asked = asked_by(env, env.prompt, dialect, tokenizer, tasks, card=card)
    if card is not None and not tasks:
        asked["ask_with"] = card.ask_with
    return RefineSetting(**asked)
