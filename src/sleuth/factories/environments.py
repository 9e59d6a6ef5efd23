"""The setting of a stage's episodes by the kind of its environment: dialect, prompt, retriever and template."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedTokenizerFast

from sleuth.dialects import DIALECTS, Dialect, dialect_of, require_speakable
from sleuth.dialects.refine import REFINERS
from sleuth.envs.refine import RefineEnv
from sleuth.envs.search import SearchEnv
from sleuth.factories.setting import Setting, asked_with, changes_of_card, template_of
from sleuth.factories.thoughts import thought_setting
from sleuth.judges import LexicalJudge
from sleuth.prompts.library import read_prompt, require_askable
from sleuth.recipe.envs import RefineEnvRecipe, SearchEnvRecipe, ThoughtEnvRecipe, TrainedEnvRecipe
from sleuth.retrieval.control import EmptyRetriever, ShuffledRetriever
from sleuth.retrieval.open_index import open_index
from sleuth.retrieval.remote import Remote, wait_until_ready
from sleuth.runs.protocol import ProtocolCard, RewardSpec
from sleuth.types import Env, Retriever, SleuthError, Task

BUDGETS = ("top_k", "searches", "turns", "turn_tokens", "response_tokens", "passage_tokens", "results_tokens")
"""The limits of a dialect that a recipe may override."""
EVAL_JUDGE = LexicalJudge()
"""The judge of a refiner's claims in evaluations."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchSetting(Setting):
    """What the episodes of a searching stage share."""

    retriever: Retriever
    closed_book: bool = False

    def env(self, task: Task) -> Env:
        return SearchEnv(
            task,
            self.dialect,
            self.asked_prompt(),
            self.retriever,
            forced_search=self.forced_search,
            closed_book=self.closed_book,
            frame=self.frame(),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RefineSetting(Setting):
    """What the episodes of a refining stage share. There is no search: the evidence comes with the task."""

    def env(self, task: Task) -> Env:
        return RefineEnv(task, self.dialect, self.asked_prompt(), frame=self.frame())

    def protocol(
        self, scorer: str, context: int, reward: RewardSpec | None = None, questions_sha256: str | None = None
    ) -> ProtocolCard:
        """The card names the judge of claims in place of `scorer`: no answer is compared with a golden one."""
        return Setting.protocol(self, EVAL_JUDGE.identity, context, reward, questions_sha256)


def setting_of(env: TrainedEnvRecipe, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]) -> Setting:
    """What the episodes in an environment share. Raises SleuthError for tasks of another kind."""
    if isinstance(env, ThoughtEnvRecipe):
        return thought_setting(env, tokenizer)
    if isinstance(env, RefineEnvRecipe):
        return refine_setting(env, tokenizer, tasks)
    return search_setting(env, tokenizer, tasks)


def search_setting(
    env: SearchEnvRecipe, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]
) -> SearchSetting:
    """The dialect with the recipe's limits, the prompt and the retriever. Checks that the tokenizer, if it exists yet,
    can encode the dialect's tags and the chat template."""
    changed: dict[str, Any] = {key: value for key in BUDGETS if (value := getattr(env, key)) is not None}
    if env.passage_tokens or env.results_tokens:  # the limit that the recipe names replaces both of the dialect's
        changed |= {"passage_tokens": env.passage_tokens, "results_tokens": env.results_tokens}
    if env.hint is not None:
        changed["hint"] = read_prompt(env.hint)
    dialect = dataclasses.replace(dialect_of(env.dialect), **changed)
    return _setting(env, dialect, tokenizer, tasks, prompt_name=Path(env.prompt).stem, prompt=None)


def setting_of_card(
    card: ProtocolCard, env: SearchEnvRecipe, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task]
) -> tuple[SearchSetting, list[str]]:
    """The dialect and prompt of a checkpoint's card, unless `env` names another prompt, with the retriever of `env`;
    and a sentence for each difference."""
    same = env.prompt == card.prompt
    name, prompt = (card.prompt, card.prompt_text) if same else (Path(env.prompt).stem, None)
    setting = _setting(env, card.dialect, tokenizer, tasks, prompt_name=name, prompt=prompt)
    return setting, changes_of_card(card, setting)


def _setting(
    env: SearchEnvRecipe,
    dialect: Dialect,
    tokenizer: PreTrainedTokenizerFast | None,
    tasks: Sequence[Task],
    *,
    prompt_name: str,
    prompt: str | None,
) -> SearchSetting:
    """`prompt` is its text; None reads the one that `env` names."""
    prompt = read_prompt(env.prompt) if prompt is None else prompt
    require_askable(prompt, env.prompt_role, prompt_name)
    require_speakable(dialect, env.prompt_role, forced_search=env.forced_search)
    unanswered = next((task for task in tasks if not task.golden_answers), None)
    if unanswered is not None:
        raise SleuthError(
            f"question {unanswered.id!r} has no golden answers to compare an answer with: rows of tool output are for "
            'kind = "refine"'
        )
    template = template_of(env, dialect, tokenizer)
    retriever, corpus = retriever_of(env, tasks)
    return SearchSetting(
        dialect=dialect,
        prompt_name=prompt_name,
        prompt=prompt,
        ask_with=asked_with(tasks),
        prompt_role=env.prompt_role,
        template=template,
        retriever=retriever,
        corpus_sha256=corpus,
        forced_search=env.forced_search,
    )


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


def dialect_in(env: TrainedEnvRecipe) -> Dialect:
    """The dialect of an environment, without the recipe's limits."""
    match env:
        case RefineEnvRecipe():
            return REFINERS[env.mode]
        case ThoughtEnvRecipe():
            return DIALECTS["sleuth"]
        case SearchEnvRecipe():
            return dialect_of(env.dialect)


def retriever_of(env: SearchEnvRecipe, tasks: Sequence[Task]) -> tuple[Retriever, str | None]:
    """The retriever, and the hash of its corpus."""
    if env.retriever == "empty":
        return EmptyRetriever(), None
    if env.urls:
        corpus = wait_until_ready(env.urls, say=lambda line: print(line, file=sys.stderr, flush=True))
        source: Retriever = Remote(env.urls, env.search_seconds)
    else:
        index = open_index(cast(Path, env.index))
        source, corpus = index, index.card.corpus_sha256
    if env.retriever == "shuffled":
        return ShuffledRetriever(source, [task.question for task in tasks]), corpus
    return source, corpus
