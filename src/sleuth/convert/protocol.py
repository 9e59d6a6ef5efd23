"""The protocol of a checkpoint of another trainer: that of a recipe, or of a dialect and a prompt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sleuth import family
from sleuth.answers.factory import answer_scorer_of, reward_spec_of
from sleuth.answers.scorers import scorer_of
from sleuth.dialect import DIALECTS
from sleuth.episodes.protocol import ProtocolCard
from sleuth.evaluation.eval_session import DEFAULT_CONTEXT
from sleuth.learn.models import Outline
from sleuth.recipe import GrpoRecipe, QuestionsRecipe, Recipe
from sleuth.recipe.envs import EnvFields, Role, environment_of
from sleuth.types import SleuthError


def protocol_of_recipe(recipe: Recipe, model: Outline) -> ProtocolCard:
    """The protocol and reward of a recipe's last stage that searches or refines with reinforcement learning. The corpus
    is recorded if the recipe's index is here, else what it requires of a retriever. Raises SleuthError without such a
    stage."""
    stages = reversed(recipe.stages_of(GrpoRecipe).values())
    stage = next((stage for stage in stages if stage.env.adopts(stage.env.plain_dialect(), ())), None)
    if stage is None:
        raise SleuthError(
            f"--like {recipe.name}: has no stage of kind grpo that searches or refines; name a recipe that has one, or "
            "give --dialect and --prompt"
        )
    env = stage.env
    index: Path | None = getattr(env, "index", None)
    if index is None or not index.is_dir():
        env = env.without_retriever()
    ask_with = stage.data.ask_with if isinstance(stage.data, QuestionsRecipe) else "question"
    setting = replace(env.setting(model.tokenizer, []), ask_with=ask_with)
    if setting.retriever_identity is None:
        setting = replace(setting, retriever_identity=env.required_identity)
    return setting.protocol(answer_scorer_of(stage.reward), stage.context, reward=reward_spec_of(stage.reward))


def protocol_of_names(
    model: Outline,
    *,
    dialect: str,
    prompt: str,
    prompt_role: Role = "raw",
    context: int | None = None,
    scorer: str = "strict",
) -> ProtocolCard:
    """The protocol of a search dialect or a refiner, with its own budgets. `context` is in tokens; absent, it is the
    model's own, as far as evaluations go by default. Raises SleuthError for an unknown name, or a prompt that does not
    fit its role."""
    answers = scorer_of(scorer)
    tables: list[type[EnvFields]] = family.tables("environments")
    known = {**DIALECTS, **{name: own for table in tables for name, own in table.own_dialects().items()}}
    if dialect not in known:
        raise SleuthError(f"--dialect {dialect}: there is no such dialect; there are {', '.join(known)}")
    env = environment_of(known[dialect]).speaking(dialect, prompt, prompt_role)
    if context is not None and context > model.context:
        raise SleuthError(f"--context {context}: the model holds {model.context} tokens; give that or fewer")
    setting = env.setting(model.tokenizer, [])
    return setting.protocol(answers.name, context or min(model.context, DEFAULT_CONTEXT))
