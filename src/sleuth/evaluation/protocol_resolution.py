"""Under which setting a model is asked: that of the protocol it carries, as far as nobody asks for another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from sleuth.dialects.refine import REFINERS, Mode, refines
from sleuth.factories import Setting, changes_of_card, refine_setting, search_setting, setting_of_card
from sleuth.recipe.envs import RefineEnvRecipe, Role, SearchEnvRecipe
from sleuth.runs.protocol import ProtocolCard
from sleuth.types import SleuthError, Task

DEFAULT_DIALECT = "sleuth"
DEFAULT_PROMPT = "plain"
DEFAULT_REFINER = REFINERS["answer_only"].name
DEFAULT_REFINE_PROMPT = "refine"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOverrides:
    """What a person asks for; None leaves it as the checkpoint has it, or else as it is by default."""

    index: Path | None = None
    urls: tuple[str, ...] = ()
    dialect: str | None = None
    prompt: str | None = None
    prompt_role: Role | None = None
    forced_search: bool | None = None


def resolve_protocol(
    card: ProtocolCard | None, overrides: EvalOverrides, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task]
) -> tuple[Setting, list[str] | None]:
    """The setting, and what in it is not as the checkpoint was trained; None where it speaks another dialect, or there
    is no card. A model without a card searches, unless all tasks bring a tool output to refine."""
    brought = bool(tasks) and all(task.evidence is not None for task in tasks)
    if refines(card.dialect) if card else brought:
        return _refining(card, overrides, tokenizer, tasks)
    return _searching(card, overrides, tokenizer, tasks)


def _searching(
    card: ProtocolCard | None, overrides: EvalOverrides, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task]
) -> tuple[Setting, list[str] | None]:
    role = overrides.prompt_role or (card.prompt_role if card else "raw")
    forced = card.forced_search if card and overrides.forced_search is None else bool(overrides.forced_search)
    env = SearchEnvRecipe(
        kind="search",
        dialect=overrides.dialect or (card.dialect.name if card else DEFAULT_DIALECT),
        prompt=overrides.prompt or (card.prompt if card else DEFAULT_PROMPT),
        prompt_role=role,
        template_flags=card.template_flags if card and role != "raw" else {},
        index=overrides.index,
        urls=overrides.urls,
        retriever="remote" if overrides.urls else "index" if overrides.index else "empty",
        forced_search=forced,
    )
    if card is not None and env.dialect == card.dialect.name:
        return setting_of_card(card, env, tokenizer, tasks)
    return search_setting(env, tokenizer, tasks), None


def _refining(
    card: ProtocolCard | None, overrides: EvalOverrides, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task]
) -> tuple[Setting, list[str] | None]:
    searching = {"--index": overrides.index, "--retriever": overrides.urls, "--forced-search": overrides.forced_search}
    for option, given in searching.items():
        if given:
            raise SleuthError(f"{option} is for a search; here the tool output that the rows bring is refined")
    modes: dict[str, Mode] = {dialect.name: mode for mode, dialect in REFINERS.items()}
    name = overrides.dialect or (card.dialect.name if card else DEFAULT_REFINER)
    if name not in modes:
        raise SleuthError(f"--dialect {name}: here a tool output is refined, in {' or '.join(modes)}")
    role = overrides.prompt_role or (card.prompt_role if card else "raw")
    same = card is not None and card.dialect.name == name
    env = RefineEnvRecipe(
        kind="refine",
        mode=modes[name],
        prompt=overrides.prompt or (card.prompt if card else DEFAULT_REFINE_PROMPT),
        prompt_role=role,
        template_flags=card.template_flags if card and role != "raw" else {},
        turn_tokens=card.dialect.turn_tokens if card and same else None,
    )
    setting = refine_setting(env, tokenizer, tasks, card)
    return setting, changes_of_card(card, setting) if card and same else None
