"""A search agent that sees the claims of a refiner in place of its search results."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property

from sleuth.cite.claims import tagged
from sleuth.cite.env import RefineSetting
from sleuth.cite.episode_rows import reasoning_before
from sleuth.cite.rows import snippets_of, tool_output_of
from sleuth.evaluation.eval_session import EvalSession, open_eval_session
from sleuth.render import Renderer
from sleuth.rollout import PromptTooLong, Rollout
from sleuth.search.setting import SearchSetting
from sleuth.types import (
    Env,
    EpisodeKey,
    Evidence,
    Passage,
    Refined,
    Reply,
    Retriever,
    SleuthError,
    StopReason,
    Task,
)

FIRST_ID = 10
"""Ids of two digits replace those of the corpus, which may be long."""


class Refiner:
    """A refiner's checkpoint, sampled greedily; `name` is the name that files use."""

    def __init__(self, name: str, session: EvalSession) -> None:
        if not isinstance(session.setting, RefineSetting):
            raise SleuthError(
                f"--refiner {name}: was trained to search, not to refine; name a checkpoint of a stage whose env has "
                'kind = "refine"'
            )
        self.name = name
        self.session = session

    async def digest(self, question: str, reasoning: str, passages: Sequence[Passage]) -> tuple[list[Passage], Refined]:
        """The claims of its answer about the passages, each as a passage with the title of the first that it cites, and
        what became of them; no claims if it abstains, cites none of them, or has no room for them in its context."""
        by_id = {str(FIRST_ID + at): passage for at, passage in enumerate(passages)}
        output = tool_output_of([dataclasses.replace(passage, id=id_) for id_, passage in by_id.items()])
        evidence = Evidence(reasoning=reasoning, output=output, snippets=snippets_of(output))
        task = Task(id="", question=question, golden_answers=(), evidence=evidence)
        try:
            episode = await self._rollout.episode(self.session.setting.env(task), task, 0, 0)
        except PromptTooLong:  # of one result, which must not end an evaluation
            return [], "too_long"
        answers = [action.text for action in episode.whole.actions if action.kind == "answer"]
        claims = [
            Passage(id=by_id[known[0]].id, title=by_id[known[0]].title, text=claim.text)
            for claim in (tagged(answers[-1]).claims if answers else ())
            if (known := [id_ for id_ in claim.ids if id_ in by_id])
        ]
        return claims, "claims" if claims else "abstained"

    @cached_property
    def _rollout(self) -> Rollout:
        session, tokenizer = self.session, self.session.tokenizer
        return Rollout(
            engine=session.local_engine(),
            renderer=Renderer(tokenizer, session.setting.dialect.tags),
            context=session.context,
            temperature=0.0,
            key=(session.seed,),
        )


class RefinedSearch:
    """An `Env` for the agent, whose turns it records, and the `Retriever` of that environment, which refines
    results."""

    def __init__(self, setting: RefinedSetting, task: Task) -> None:
        self._source: Retriever = setting.retriever
        self._dialect = setting.dialect
        self._refiner = setting.refiner
        self._task = task
        self._turn = ""
        self._refined: list[tuple[Refined, ...]] = []  # of the turn's searches
        self._env = SearchSetting.env(dataclasses.replace(setting, retriever=self), task)

    async def open(self) -> Reply:
        """The prompt, as the environment of the search gives it."""
        return await self._env.open()

    async def reply(self, text: str, stop: StopReason) -> Reply:
        """Its reply, after the turn is recorded as reasoning for the refiner."""
        self._turn, self._refined = text, []
        reply = await self._env.reply(text, stop)
        if reply.action is None:
            return reply
        outcomes = iter(self._refined)
        *earlier, last = (
            dataclasses.replace(action, refined=next(outcomes, ())) if action.kind == "search" else action
            for action in (*reply.earlier, reply.action)
        )
        return dataclasses.replace(reply, earlier=tuple(earlier), action=last)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """By query, the refiner's claims about the passages."""
        claims: list[list[Passage]] = []
        outcomes: list[Refined] = []
        for query, found in zip(queries, await self._source.search(queries, k), strict=True):
            claims.append([])
            if found:
                reasoning = reasoning_before(self._turn, query, self._dialect)
                claims[-1], outcome = await self._refiner.digest(self._task.question, reasoning, found)
                outcomes.append(outcome)
        self._refined.append(tuple(outcomes))
        return claims


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RefinedSetting(SearchSetting):
    """The setting of a search whose results a refiner replaces by its claims."""

    refiner: Refiner

    def env(self, task: Task, key: EpisodeKey = (0, 0)) -> Env:
        return RefinedSearch(self, task)


def with_refiner(agent: EvalSession, model: str, *, dtype: str | None = None) -> tuple[EvalSession, list[str]]:
    """The same agent with a refiner's checkpoint between it and its search, and notes on that checkpoint. Raises
    SleuthError if the agent does not search, or `model` does not refine."""
    setting = agent.setting
    if not isinstance(setting, SearchSetting):
        raise SleuthError(f"--refiner {model}: is for an agent that searches, but this model refines")
    refiner, notes = open_eval_session(
        model, [], index=None, slots=agent.slots, cache_memory=agent.cache_memory, dtype=dtype
    )
    plain = {field.name: getattr(setting, field.name) for field in dataclasses.fields(SearchSetting)}
    refined = RefinedSetting(**plain, refiner=Refiner(model, refiner))
    return dataclasses.replace(agent, setting=refined), [f"{model}: {note}" for note in notes]
