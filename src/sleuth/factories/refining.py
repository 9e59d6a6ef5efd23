"""The setting of a refiner: a dialect for its mode, and a prompt."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from sleuth.dialects.refine import REFINERS
from sleuth.envs.refine import RefineEnv
from sleuth.factories.setting import Setting, asked_with, template_of
from sleuth.judges import LexicalJudge
from sleuth.prompts.library import read_prompt, require_askable
from sleuth.recipe.envs import RefineEnvRecipe
from sleuth.runs.protocol import ProtocolCard, RewardSpec
from sleuth.types import Env, SleuthError, Task

EVAL_JUDGE = LexicalJudge()
"""Who judges the claims of a refiner that is evaluated."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RefineSetting(Setting):
    """What the episodes of a refining stage share. Nothing is searched: the evidence comes with the task."""

    def env(self, task: Task) -> Env:
        return RefineEnv(task, self.dialect, self.asked_prompt(), frame=self.frame())

    def protocol(
        self, scorer: str, context: int, reward: RewardSpec | None = None, questions_sha256: str | None = None
    ) -> ProtocolCard:
        """Whichever scorer is named: a refiner's answer is judged claim by claim and compared with none."""
        return Setting.protocol(self, EVAL_JUDGE.identity, context, reward, questions_sha256)


def refine_setting(
    env: RefineEnvRecipe,
    tokenizer: PreTrainedTokenizerFast | None,
    tasks: Sequence[Task],
    card: ProtocolCard | None = None,
) -> RefineSetting:
    """The mode's dialect with the recipe's budget, and the prompt: byte for byte that of a checkpoint's `card` where
    `env` names no other. Raises SleuthError for a task that brings no tool output."""
    bare = next((task for task in tasks if task.evidence is None), None)
    if bare is not None:
        raise SleuthError(
            f"question {bare.id!r} brings no tool output to refine: give rows with reasoning and tool_output, or set "
            'kind = "search"'
        )
    dialect = REFINERS[env.mode]
    if env.turn_tokens is not None:
        dialect = dataclasses.replace(dialect, turn_tokens=env.turn_tokens)
    carried = card is not None and env.prompt == card.prompt
    prompt = card.prompt_text if card is not None and carried else read_prompt(env.prompt)
    name = Path(env.prompt).stem
    require_askable(prompt, env.prompt_role, name)
    return RefineSetting(
        dialect=dialect,
        prompt_name=name,
        prompt=prompt,
        ask_with=card.ask_with if card is not None and not tasks else asked_with(tasks),
        prompt_role=env.prompt_role,
        template=template_of(env, dialect, tokenizer),
    )
