"""The setting of a searching stage's episodes: dialect, prompt, retriever and template."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from transformers import PreTrainedTokenizerFast

from sleuth.dialect import BUDGETS, Dialect, dialect_of, require_speakable
from sleuth.episodes.library import read_prompt
from sleuth.episodes.protocol import ProtocolCard
from sleuth.episodes.setting import Setting, asked_by
from sleuth.host.connections import CallClock
from sleuth.host.threads import to_stderr
from sleuth.retrieval.open_index import open_index
from sleuth.retrieval.remote import SEARCH_SECONDS, RecordedRetriever, Remote, wait_until_ready
from sleuth.search.env import EmptyRetriever, GoldRetriever, SearchEnv, ShuffledRetriever, WithoutRetriever
from sleuth.search.tables import SearchEnvRecipe
from sleuth.types import Env, EpisodeKey, Group, Passage, Retriever, RetrieverIdentity, SleuthError, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSetting(Setting):
    """What the episodes of a searching stage share. `gold` passages, by the ids of tasks, are shown in place of those
    that the retriever would find; the `hidden` ones of a task, by their ids, are not found. With `asks_servers` the
    retriever may answer otherwise the next time."""

    probe: ClassVar[str] = "sleuth.search.probe:probe_searches"

    retriever: Retriever
    gold: Mapping[str, Sequence[Passage]] | None = None
    hidden: Mapping[str, Collection[str]] = field(default_factory=dict)
    asks_servers: bool = False
    clock: CallClock = field(default_factory=CallClock, compare=False)

    def figures(self) -> dict[str, float | None]:
        return {"seconds_searches": self.clock.take()}

    def env(self, task: Task, key: EpisodeKey = (0, 0)) -> Env:
        retriever = self.retriever if self.gold is None else GoldRetriever(self.gold[task.id])
        if hidden := self.hidden.get(task.id):
            retriever = WithoutRetriever(retriever, hidden)
        return SearchEnv(
            task,
            self.dialect,
            self.asked_prompt(),
            retriever,
            forced_search=self.forced_search,
            closed_book=self.closed_book,
            frame=self.frame(),
            clock=self.clock,
        )

    def for_step(self, played: Callable[[], Mapping[int, Group]]) -> SearchSetting:
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
        return replace(self, retriever=RecordedRetriever(self.retriever, found))

    def notes(self) -> list[str]:
        """That searches find nothing, where they are allowed."""
        in_vain = isinstance(self.retriever, EmptyRetriever) and not self.closed_book and self.dialect.searches != 0
        return ["there is no index and no retrieval server: every search finds nothing"] if in_vain else []


def search_setting(
    env: SearchEnvRecipe,
    tokenizer: PreTrainedTokenizerFast | None,
    tasks: Sequence[Task],
    card: ProtocolCard | None = None,
) -> SearchSetting:
    """The dialect with the recipe's limits, the prompt and the retriever; of a checkpoint's `card`, its dialect, and
    its prompt unless `env` names another. Checks that the tokenizer, if it exists yet, can encode the dialect's tags
    and the chat template."""
    dialect = _dialect(env) if card is None else card.dialect
    asked = asked_by(env, env.prompt, dialect, tokenizer, tasks, card=card)
    require_speakable(dialect, env.prompt_role, forced_search=env.forced_search, closed_book=env.closed_book)
    unanswered = next((task for task in tasks if task.evidence and not task.golden_answers), None)
    if unanswered is not None:
        raise SleuthError(
            f"question {unanswered.id!r} has no golden answers to compare an answer with: rows of tool output are for "
            'kind = "refine"'
        )
    retriever, corpus, identity = retriever_of(env, tasks)
    return SearchSetting(
        **asked,
        retriever=retriever,
        gold=gold_passages(cast(Path, env.index), tasks) if env.retriever == "gold" else None,
        corpus_sha256=corpus,
        retriever_identity=identity,
        forced_search=env.forced_search,
        closed_book=env.closed_book,
        asks_servers=bool(env.urls) and not env.closed_book,
    )


def _dialect(env: SearchEnvRecipe) -> Dialect:
    changed: dict[str, Any] = {key: value for key in BUDGETS if (value := getattr(env, key)) is not None}
    if env.passage_tokens or env.results_tokens:  # the limit that the recipe names replaces both of the dialect's
        changed |= {"passage_tokens": env.passage_tokens, "results_tokens": env.results_tokens}
    if env.hint is not None:
        changed["hint"] = read_prompt(env.hint)
    return replace(dialect_of(env.dialect), **changed)


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
        return shuffled, corpus, replace(identity, shuffled=True)
    return source, corpus, identity
