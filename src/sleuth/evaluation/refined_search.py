"""A search agent that is shown what a refiner makes of its results, in their place."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property

from sleuth.data.refiner import snippets_of, tool_output_of
from sleuth.engines.local.engine import LocalEngine
from sleuth.evaluation.eval_session import EvalSession, open_eval_session
from sleuth.factories import RefineSetting, SearchSetting
from sleuth.metrics.refiner_rows import reasoning_before
from sleuth.render import Renderer
from sleuth.rewards.citation.claims import tagged
from sleuth.rollout import Rollout
from sleuth.types import Action, Env, Evidence, Passage, Reply, Retriever, SleuthError, StopReason, Task

FIRST_ID = 10


class Refiner:
    """A refiner's checkpoint, asked greedily. `name` is what files call it."""

    def __init__(self, name: str, session: EvalSession) -> None:
        if not isinstance(session.setting, RefineSetting):
            raise SleuthError(
                f"--refiner {name}: was trained to search, not to refine; name a checkpoint of a stage whose env is of "
                'kind = "refine"'
            )
        self.name = name
        self.session = session

    async def digest(self, question: str, reasoning: str, found: Sequence[Passage]) -> list[Passage]:
        """The claims of its answer about what a search found, each as a passage under the title of the first that it
        cites; none where it abstains, or writes nothing that cites what is there. It is shown ids of two digits, for
        those of a corpus may be long."""
        by_id = {str(FIRST_ID + at): passage for at, passage in enumerate(found)}
        output = tool_output_of([dataclasses.replace(passage, id=id_) for id_, passage in by_id.items()])
        evidence = Evidence(reasoning=reasoning, output=output, snippets=snippets_of(output))
        task = Task(id="", question=question, golden_answers=(), evidence=evidence)
        episode = await self._rollout.episode(self.session.setting.env(task), task, 0, 0)
        answers = [done.text for done in episode.whole.actions if done.kind == "answer"]
        return [
            Passage(id=by_id[known[0]].id, title=by_id[known[0]].title, text=claim.text)
            for claim in (tagged(answers[-1]).claims if answers else ())
            if (known := [id_ for id_ in claim.ids if id_ in by_id])
        ]

    @cached_property
    def _rollout(self) -> Rollout:
        asked = self.session
        engine = LocalEngine(asked.weights, asked.tokenizer, slots=asked.slots, context=asked.context)
        return Rollout(
            engine=engine, renderer=Renderer(asked.tokenizer), context=asked.context, temperature=0.0, key=(asked.seed,)
        )


class RefinedSearch:
    """Between an agent and its search: an `Env` for the one, whose turns it hears, and a `Retriever` for the other."""

    def __init__(self, setting: SearchSetting, refiner: Refiner, task: Task) -> None:
        self._source: Retriever = setting.retriever
        self._dialect = setting.dialect
        self._refiner = refiner
        self._task = task
        self._turn = ""
        self._env = SearchSetting.env(dataclasses.replace(setting, retriever=self), task)

    async def open(self) -> Reply:
        """As the environment of the search does."""
        return await self._env.open()

    async def reply(self, text: str, stop: StopReason) -> Reply:
        """Likewise, once it is known what was thought."""
        self._turn = text
        return await self._env.reply(text, stop)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """What the refiner tells of the passages of each query."""
        return [
            await self._digested(query, found)
            for query, found in zip(queries, await self._source.search(queries, k), strict=True)
        ]

    async def _digested(self, query: str, found: Sequence[Passage]) -> list[Passage]:
        if not found:
            return []
        reasoning = reasoning_before(self._turn, Action(kind="search", text=query), self._dialect)
        return await self._refiner.digest(self._task.question, reasoning, found)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RefinedSetting(SearchSetting):
    """The setting of a search whose results a refiner digests."""

    refiner: Refiner

    def env(self, task: Task) -> Env:
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(SearchSetting)}
        return RefinedSearch(SearchSetting(**plain), self.refiner, task)


def with_refiner(agent: EvalSession, model: str, *, dtype: str | None = None) -> tuple[EvalSession, list[str]]:
    """The same agent, shown what a refiner's checkpoint makes of its results; and what is to be said of that one.
    Raises SleuthError where the one does not search, or the other does not refine."""
    setting = agent.setting
    if not isinstance(setting, SearchSetting):
        raise SleuthError(f"--refiner {model}: is for an agent that searches, and the model that is asked refines")
    refiner, notes = open_eval_session(model, [], index=None, slots=agent.slots, dtype=dtype)
    plain = {field.name: getattr(setting, field.name) for field in dataclasses.fields(SearchSetting)}
    refined = RefinedSetting(**plain, refiner=Refiner(model, refiner))
    return dataclasses.replace(agent, setting=refined), [f"{model}: {note}" for note in notes]
