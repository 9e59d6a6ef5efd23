"""A searching stage of a recipe for a trainer that plays the episodes itself: messages, the search tool, and scores.

Another trainer calls tools through the model's chat template, so the dialect must have a native tool (`chat`, `verl`).
The trainer appends what the template renders after a turn, as our dialects do in `messages`. What it played becomes an
`Episode` of ours, which the recipe's own rewards score.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from sleuth.answers.factory import judges_in, require_gradable, reward_of
from sleuth.dialect import Tool, dialect_of
from sleuth.episodes.calls import ERROR, queries_of
from sleuth.episodes.fitting import fitting_tasks, require_room
from sleuth.episodes.frames import first_messages
from sleuth.evaluation.judge_exam import require_accurate
from sleuth.judges.factory import JudgePool
from sleuth.learn.models import load_outline
from sleuth.recipe import GrpoRecipe, Recipe, load_recipe
from sleuth.render import IncrementalDecoder, Renderer
from sleuth.search.env import EmptyRetriever, SearchEnv, find_results, result_pieces
from sleuth.search.setting import SearchSetting, search_setting
from sleuth.search.tables import SearchEnvRecipe
from sleuth.types import (
    Action,
    Author,
    Episode,
    Group,
    Passage,
    Piece,
    RetrievalFailed,
    Reward,
    Score,
    Segment,
    SleuthError,
    StopReason,
    Task,
    Trajectory,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of the search tool, and `text`, which the policy reads: `ToolCall(queries=("Ada Voss",), text="[1] Ada
    Voss | ...", passages=(Passage(...),))`.

    A call that could not be read has no `queries`, and its text is the dialect's hint. `failure`: why the retriever did
    not answer.
    """

    queries: tuple[str, ...]
    text: str
    passages: tuple[Passage, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTurn:
    """A turn of the policy, why it stopped, and the `calls` in it that the trainer made. `results` is all that the
    trainer appended after it; None after the last turn."""

    policy: Segment
    stop: StopReason
    calls: tuple[ToolCall, ...] = ()
    results: Segment | None = None

    @property
    def action(self) -> Action:
        """Several calls in one turn are one search with several queries."""
        queries = [query for call in self.calls for query in call.queries]
        if not queries:
            return Action(kind="invalid", text=self.policy.text.strip())
        passages = tuple(passage for call in self.calls for passage in call.passages)
        failure = next((call.failure for call in self.calls if call.failure), "")
        return Action(kind="search", text="\n".join(queries), passages=passages, failure=failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchStage:
    """What another trainer needs of a stage. `tasks` are by their id; `eos_ids` end a turn of the model."""

    recipe: GrpoRecipe
    model: str
    tokenizer: PreTrainedTokenizerFast
    eos_ids: frozenset[int]
    renderer: Renderer
    setting: SearchSetting
    tasks: Mapping[str, Task]
    reward: Reward

    @property
    def tool(self) -> Tool:
        """The search tool."""
        assert self.setting.dialect.tool is not None  # `load_search_stage` refuses other dialects
        return self.setting.dialect.tool

    @property
    def flags(self) -> dict[str, Any]:
        """Extra variables for the chat template."""
        return dict(self.setting.template.flags) if self.setting.template is not None else {}

    @property
    def rounds(self) -> int | None:
        """How often the policy may search before its last turn; None: no limit."""
        dialect = self.setting.dialect
        limits = [dialect.searches, None if dialect.turns is None else dialect.turns - 1]
        return min((limit for limit in limits if limit is not None), default=None)

    def messages(self, task: Task) -> list[dict[str, str]]:
        """The first messages of an episode: `[{"role": "user", "content": "Answer ... where was Ada Voss born?"}]`."""
        question = Piece(text=task.prompt, author="template") if task.prompt else Piece(text=task.question)
        messages = first_messages(self.setting.asked_prompt(), [question], self.setting.prompt_role)
        return [{"role": one.role, "content": "".join(piece.text for piece in one.content)} for one in messages]

    def segment(self, author: Author, pieces: Sequence[Piece]) -> Segment:
        """These pieces as one segment of `author`."""
        segments = self.renderer.render_all(pieces)
        tokens = tuple(token for segment in segments for token in segment.tokens)
        return Segment(author=author, tokens=tokens, text="".join(segment.text for segment in segments))

    async def call(self, arguments: Mapping[str, Any]) -> ToolCall:
        """The search that a call asks for, with the dialect's limits on passages."""
        queries = queries_of(json.dumps({"name": self.tool.name, "arguments": dict(arguments)}), self.tool)
        dialect = self.setting.dialect
        if not queries:
            return ToolCall(queries=(), text=dialect.hint)
        try:
            results = await find_results(self.setting.retriever, queries, dialect)
        except RetrievalFailed as error:
            return ToolCall(queries=queries, text=f"{ERROR}{error}", failure=str(error))
        text = self.segment("env", list(result_pieces(dialect, results))).text
        return ToolCall(queries=queries, text=text, passages=tuple(chain.from_iterable(results)))

    def policy_segment(self, tokens: Sequence[int], before: Sequence[int]) -> tuple[Segment, StopReason]:
        """A turn that the policy sampled after the tokens `before`, and why it stopped. As in our engines, the text is
        without the end-of-text token."""
        ended = bool(tokens) and tokens[-1] in self.eos_ids
        decoder = IncrementalDecoder(self.tokenizer, context=before)
        text = "".join(map(decoder.push, tokens[:-1] if ended else tokens)) + decoder.flush()
        return Segment(author="policy", tokens=tuple(tokens), text=text), "eos" if ended else "length"

    async def episode(self, task: Task, prompt: Segment, turns: Sequence[PlayedTurn]) -> Episode:
        """The episode of these turns after a prompt. As in our own loop, it ends where a retriever failed, and as
        `length` where results or a further turn did not fit."""
        segments, actions, stop = [prompt], list[Action](), "length"
        for turn in turns:
            segments.append(turn.policy)
            action = turn.action
            if action.failure:
                actions, stop = [*actions, replace(action, passages=())], "failed"
                break
            if turn.results is not None:
                segments.append(turn.results)
            elif turn.calls:
                action = replace(action, passages=())
            else:
                action, stop = await self._last_action(task, turn)
            actions.append(action)
        trajectory = Trajectory(segments=tuple(segments), actions=tuple(actions), stop=stop)
        return Episode(task=task, sample=0, trajectories=(trajectory,))

    async def _last_action(self, task: Task, turn: PlayedTurn) -> tuple[Action, str]:
        """The action of a turn after which nothing was appended, and the stop reason, by our own environment."""
        dialect = replace(self.setting.dialect, searches=0, turns=None)
        reply = await SearchEnv(task, dialect, "", EmptyRetriever()).reply(turn.policy.text, turn.stop)
        assert reply.action is not None  # every reply to a turn has one
        assert reply.done is not None  # no search and no hint is left
        return reply.action, reply.done

    async def scores(self, episodes: Sequence[Episode]) -> list[Score]:
        """The scores by the recipe's rewards. Episodes of one question that follow each other are a group."""
        groups: list[Group] = []
        for _, siblings in groupby(episodes, key=lambda episode: episode.task.id):
            group = tuple(replace(episode, sample=sample) for sample, episode in enumerate(siblings))
            groups.append(Group(task=group[0].task, episodes=group))
        scored = await asyncio.gather(*(self.reward(group) for group in groups))
        return list(chain.from_iterable(scored))


def load_search_stage(
    recipe: str | os.PathLike[str], overrides: Sequence[str] = (), *, verdicts: str | os.PathLike[str]
) -> SearchStage:
    """The first `grpo` stage of a recipe. What models judge is cached in the file `verdicts`. Raises a SleuthError with
    a line for each problem: of the recipe, and of what another trainer cannot play."""
    resolved = load_recipe(recipe, overrides)
    index, stage = next(iter(resolved.stages_of(GrpoRecipe).items()), (0, None))
    if stage is None:
        lacks = 'no stage has kind = "grpo"; another trainer takes the environment of such a stage'
        raise SleuthError(f"{recipe}: {lacks}")
    env = stage.env
    if not isinstance(env, SearchEnvRecipe):
        raise SleuthError(f'stage.{index}.env.kind = "{env.kind}": another trainer can only play kind = "search"')
    if problems := list(_problems(resolved, index, stage, env)):
        raise SleuthError(*problems)
    outline = load_outline(resolved.model)
    read = stage.data.tasks(outline.tokenizer)
    setting = search_setting(env, outline.tokenizer, read)
    require_room(stage.data, setting, outline.tokenizer, read, stage.context)
    tasks, _ = fitting_tasks(stage.data, setting, outline.tokenizer, read, stage.context)
    # earlier messages stay as they are, and a call that the trainer cannot read ends the episode
    setting = replace(setting, dialect=replace(setting.dialect, frame="messages", hints=0))
    require_gradable(stage.reward, tasks)
    judge_pool = JudgePool(Path(verdicts))
    with ThreadPoolExecutor(max_workers=1) as own_loop:  # in a notebook, this thread's event loop is running
        own_loop.submit(require_accurate, judges_in(stage.reward), judge_pool).result()
    return SearchStage(
        recipe=stage,
        model=resolved.model,
        tokenizer=outline.tokenizer,
        eos_ids=outline.eos_ids,
        renderer=Renderer(outline.tokenizer, setting.dialect.tags),
        setting=setting,
        tasks={task.id: task for task in tasks},
        reward=reward_of(stage.reward, setting.dialect, outline.tokenizer, judge_pool),
    )


def _problems(recipe: Recipe, index: int, stage: GrpoRecipe, env: SearchEnvRecipe) -> Iterator[str]:
    if not recipe.model:
        yield "model is missing: another trainer starts from the recipe's model; set it to a folder or a hub id"
    if dialect_of(env.dialect).frame == "text":
        instead = 'another trainer calls tools through the chat template; set dialect = "chat" and prompt_role = "user"'
        yield f'stage.{index}.env.dialect = "{env.dialect}": {instead}'
    if stage.credit is not None:
        why = "another trainer takes one number for an episode, and no credit for single tokens; remove [stage.credit]"
        yield f"stage.{index}.credit: {why}"
