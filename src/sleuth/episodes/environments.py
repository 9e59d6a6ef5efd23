"""The setting of a stage's episodes by the kind of its environment: dialect, prompt, retriever and template."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

from transformers import PreTrainedTokenizerFast

from sleuth.cite.dialect import REFINERS
from sleuth.cite.env import RefineEnv
from sleuth.dialect import BUDGETS, DIALECTS, Dialect, Tool, dialect_of, require_speakable
from sleuth.episodes.calls import CallRecord, EpisodeCalls
from sleuth.episodes.function import FunctionEnv
from sleuth.episodes.library import read_prompt, require_askable
from sleuth.episodes.mcp_server import ServerTool, tool_server
from sleuth.episodes.own_code import env_code_in
from sleuth.episodes.protocol import ProtocolCard, RewardSpec
from sleuth.episodes.setting import Setting, asked_with, changes_of_card, template_of
from sleuth.host.threads import to_stderr
from sleuth.judges.lexical import LexicalJudge
from sleuth.own.calls import THREADS, Caller
from sleuth.own.functions import load_function, require_arguments
from sleuth.recipe.envs import (
    EnvFields,
    FunctionEnvRecipe,
    RefineEnvRecipe,
    SearchEnvRecipe,
    ToolEnvRecipe,
    ToolTableRecipe,
)
from sleuth.retrieval.open_index import open_index
from sleuth.retrieval.remote import SEARCH_SECONDS, RecordedRetriever, Remote, wait_until_ready
from sleuth.search.control import EmptyRetriever, GoldRetriever, ShuffledRetriever
from sleuth.search.dialects.tools import TOOLS_CHAT, TOOLS_TEXT
from sleuth.search.env import SearchEnv
from sleuth.search.tools import SEARCH, AnyTool, FunctionTool, ToolEnv
from sleuth.think.thoughts import thought_setting
from sleuth.types import Env, EpisodeKey, Group, Passage, Retriever, RetrieverIdentity, SleuthError, Task

EVAL_JUDGE = LexicalJudge()
"""The judge of a refiner's claims in evaluations."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchSetting(Setting):
    """What the episodes of a searching stage share. `gold` passages, by the ids of tasks, are shown in place of those
    that the retriever would find. With `asks_servers` the retriever may answer otherwise the next time."""

    probe: ClassVar[str] = "sleuth.search.probe:probe_searches"

    retriever: Retriever
    gold: Mapping[str, Sequence[Passage]] | None = None
    asks_servers: bool = False

    def env(self, task: Task, key: EpisodeKey = (0, 0)) -> Env:
        return SearchEnv(
            task,
            self.dialect,
            self.asked_prompt(),
            self.retriever if self.gold is None else GoldRetriever(self.gold[task.id]),
            forced_search=self.forced_search,
            closed_book=self.closed_book,
            frame=self.frame(),
        )

    def for_step(self, step: int, steps: int, played: Callable[[], Mapping[int, Group]]) -> SearchSetting:
        """With servers, the setting in which the groups `played` before find what they found."""
        if not self.asks_servers:
            return self
        found = {
            action.text: action.passages
            for group in played().values()
            for episode in group.episodes
            for action in episode.trajectory.actions
            if action.kind == "search" and action.passages  # none: the search may not have been made
        }
        return dataclasses.replace(self, retriever=RecordedRetriever(self.retriever, found))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RefineSetting(Setting):
    """What the episodes of a refining stage share. There is no search: the evidence comes with the task."""

    probe: ClassVar[str] = "sleuth.cite.probe:probe_citations"

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSetting(Setting):
    """What the episodes in an environment of the user share. Of its dialect only the tags that rewards read are used:
    the environment has its own prompt."""

    parameters: Mapping[str, Any]
    make: Caller

    longest_answer_is: ClassVar[str] = "an answer of at least "
    longest_answer_key: ClassVar[str] = "what the environment's `open` writes"

    def env(self, task: Task, key: EpisodeKey = (0, 0)) -> Env:
        return FunctionEnv(task, self.make, self.parameters)

    @property
    def longest_answer(self) -> int:
        """Any token: each reply has its own limit."""
        return 1

    @property
    def opening(self) -> str:
        """Unknown without a task."""
        return ""


TOOLS = "{tools}"
"""The placeholder for the descriptions of tools in a prompt."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ToolSetting(Setting):
    """What the episodes with the user's tools share; `record` has the results of one step's calls."""

    tools: Mapping[str, AnyTool]
    retriever: Retriever | None = None
    record: CallRecord | None = None

    def env(self, task: Task, key: EpisodeKey = (0, 0)) -> Env:
        return ToolEnv(
            task,
            self.dialect,
            self.asked_prompt(),
            self.tools,
            retriever=self.retriever,
            calls=EpisodeCalls(task, key, self.record),
            frame=self.frame(),
        )

    def asked_prompt(self) -> str:
        """The prompt with the schemas of the tools, one a line."""
        schemas = [tool.schema["function"] for tool in self.tools.values()]
        schemas += [SEARCH_SCHEMA["function"]] if self.retriever is not None else []
        shown = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
        return Setting.asked_prompt(self).replace(TOOLS, shown)

    def for_step(self, step: int, steps: int, played: Callable[[], Mapping[int, Group]]) -> ToolSetting:
        """The setting with a record of the results that the groups `played` before got."""
        return dataclasses.replace(self, record=CallRecord(played()))


class EnvKind(NamedTuple):
    """A kind of environment: `make` returns its setting, and `dialect` its dialect without the recipe's limits."""

    make: Callable[[Any, PreTrainedTokenizerFast | None, Sequence[Task]], Setting]
    dialect: Callable[[Any], Dialect]


def setting_of(env: EnvFields, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]) -> Setting:
    """What the episodes in an environment share. Raises SleuthError for tasks of another kind."""
    return ENV_KINDS[env.kind].make(env, tokenizer, tasks)


def dialect_in(env: EnvFields) -> Dialect:
    """The dialect of an environment, without the recipe's limits."""
    return ENV_KINDS[env.kind].dialect(env)


def function_setting(
    env: FunctionEnvRecipe, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]
) -> FunctionSetting:
    """The user's class. Raises UserCodeError if there is none, or if it cannot be called with a task."""
    function = load_function(env.function, env.files)
    require_arguments(function, 1, env.parameters, f"{function.short_name}(task)")
    return FunctionSetting(
        dialect=dialect_of(env.dialect),
        prompt_name="",
        prompt="",
        prompt_role="raw",
        template=None,
        own_code=env_code_in(env),
        parameters=env.parameters,
        make=Caller(function, seconds=env.seconds, delays_engine=True, at_once=THREADS),
    )


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
    require_speakable(dialect, env.prompt_role, forced_search=env.forced_search, closed_book=env.closed_book)
    unanswered = next((task for task in tasks if not task.golden_answers), None)
    if unanswered is not None:
        raise SleuthError(
            f"question {unanswered.id!r} has no golden answers to compare an answer with: rows of tool output are for "
            'kind = "refine"'
        )
    template = template_of(env, dialect, tokenizer)
    retriever, corpus, identity = retriever_of(env, tasks)
    return SearchSetting(
        dialect=dialect,
        prompt_name=prompt_name,
        prompt=prompt,
        ask_with=asked_with(tasks),
        prompt_role=env.prompt_role,
        template=template,
        retriever=retriever,
        gold=gold_passages(cast(Path, env.index), tasks) if env.retriever == "gold" else None,
        corpus_sha256=corpus,
        retriever_identity=identity,
        forced_search=env.forced_search,
        closed_book=env.closed_book,
        asks_servers=bool(env.urls) and not env.closed_book,
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


SEARCH_SCHEMA = Tool(
    name=SEARCH,
    argument="query",
    several=False,
    description="Looks up passages of an encyclopaedia.",
    argument_description="What to look up, in a few words.",
).schema


def tool_setting(env: ToolEnvRecipe, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]) -> ToolSetting:
    """The user's tools, the prompt, and the index if there is one. Raises UserCodeError if a function is no tool, and
    SleuthError for a server without its tools or two tools of one name."""
    made = [tool for named in env.tools for tool in _tools_of(named, env)]
    index = open_index(env.index) if env.index is not None else None
    names = [tool.name for tool in made] + ([SEARCH] if index is not None else [])
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SleuthError(f"tools has {twice} twice; the policy could call only one of them")
    dialect = dataclasses.replace(
        TOOLS_TEXT if env.prompt_role == "raw" else TOOLS_CHAT,
        top_k=env.top_k,
        searches=env.calls,
        turn_tokens=env.turn_tokens,
        results_tokens=env.result_tokens,
    )
    prompt, name = read_prompt(env.prompt), Path(env.prompt).stem
    require_askable(prompt, env.prompt_role, name)
    return ToolSetting(
        dialect=dialect,
        prompt_name=name,
        prompt=prompt,
        ask_with=asked_with(tasks),
        prompt_role=env.prompt_role,
        template=template_of(
            env, dialect, tokenizer, [tool.schema for tool in made] + ([SEARCH_SCHEMA] if index is not None else [])
        ),
        corpus_sha256=index.card.corpus_sha256 if index is not None else None,
        retriever_identity=index.card.retriever if index is not None else None,
        own_code=env_code_in(env),
        tools={tool.name: tool for tool in made},
        retriever=index,
    )


def _tools_of(named: str | ToolTableRecipe, env: ToolEnvRecipe) -> list[FunctionTool | ServerTool]:
    table = ToolTableRecipe(function=named) if isinstance(named, str) else named
    if table.function is not None:
        return [FunctionTool(load_function(table.function, env.files), seconds=env.seconds, shared=table.shared)]
    server = tool_server(table.mcp or "", table.folder)
    if not table.shared:
        server.say_what_is_shared()
    return [ServerTool(server, tool, seconds=env.seconds, shared=table.shared) for tool in server.offered(table.only)]


def gold_passages(index: Path, tasks: Sequence[Task]) -> dict[str, list[Passage]]:
    """The gold passages of each task that are in the index, each once, by the task's id. Raises SleuthError for tasks
    without any."""
    opened = open_index(index)
    gold = {
        task.id: [p for name in dict.fromkeys(task.gold_passages) if (p := opened.passage(name)) is not None]
        for task in tasks
    }
    if absent := [task_id for task_id, passages in gold.items() if not passages]:
        raise SleuthError(
            f'retriever = "gold": {len(absent):,} of {len(tasks):,} questions have no gold_ids that are in {index}, '
            f"such as question {absent[0]!r}"
        )
    return gold


def retriever_of(env: SearchEnvRecipe, tasks: Sequence[Task]) -> tuple[Retriever, str | None, RetrieverIdentity | None]:
    """The retriever, the hash of its corpus, and its identity. Raises SleuthError for another retriever than the recipe
    requires."""
    if env.retriever == "empty" or env.closed_book:
        return EmptyRetriever(), None, None
    if env.urls:
        corpus, identity = wait_until_ready(env.urls, log=to_stderr)
        source: Retriever = Remote(env.urls, SEARCH_SECONDS)
    else:
        index = open_index(cast(Path, env.index))
        source, corpus, identity = index, index.card.corpus_sha256, index.card.retriever
    env.require_retriever(identity)
    if env.retriever == "gold":
        return source, corpus, RetrieverIdentity(kind="gold")
    if env.retriever == "shuffled":
        shuffled = ShuffledRetriever(source, [task.question for task in tasks])
        return shuffled, corpus, dataclasses.replace(identity, shuffled=True)
    return source, corpus, identity


ENV_KINDS: dict[str, EnvKind] = {
    "search": EnvKind(search_setting, lambda env: dialect_of(env.dialect)),
    "refine": EnvKind(refine_setting, lambda env: REFINERS[env.mode]),
    "thought": EnvKind(lambda env, tokenizer, tasks: thought_setting(env, tokenizer), lambda env: DIALECTS["sleuth"]),
    "tools": EnvKind(tool_setting, lambda env: TOOLS_TEXT if env.prompt_role == "raw" else TOOLS_CHAT),
    "python": EnvKind(function_setting, lambda env: dialect_of(env.dialect)),
}
"""By `kind` of `[stage.env]`."""
