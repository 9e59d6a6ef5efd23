"""Our search environment and rewards as a taskset of verifiers (verifiers 0.4.0), for its evaluations and prime-rl.

verifiers plays the episodes: its harness sends messages to a chat server, which parses calls, and makes them at our
search tool, a server of its own process. An episode is read from the messages, and the recipe's own rewards score it.
Departures from a run of ours:

- chat template, tool calls and thoughts are the chat server's, with the parsers that it was started with. A turn is
  written again from the parts of its message, so that white space around them may differ;
- all calls of a message are made (here, one search with several queries), and a call of an unknown tool is answered
  with the harness's error. `searches` and `turn_tokens` are the harness's to limit (`max_turns`, `max_tokens`);
- the messages hold no passages, so each search is made again to score the episode. The score is missing if it now finds
  something else, or if the retriever had failed;
- a missing score is an error of the trace, with the reason; there, a reward is always a number;
- each episode is scored by itself, so a reward that compares siblings sees none.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, cast

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
from pydantic import Field

from sleuth.episodes.calls import ERROR, parsed
from sleuth.render import encode
from sleuth.search.env import SearchEnv
from sleuth.trainers.search_stage import PlayedTurn, SearchStage, ToolCall, load_search_stage
from sleuth.types import Episode, Piece, Segment, SleuthError, StopReason, Task


@cache
def stage_of(recipe: str, overrides: tuple[str, ...], verdicts: str) -> SearchStage:
    """The stage of a recipe, loaded once in each process."""
    return load_search_stage(recipe, overrides, verdicts=verdicts)


class RecipeConfig(vf.BaseConfig):
    """Which recipe: its file, the `overrides` of `--set`, and the file that caches what models judge."""

    recipe: str = ""
    overrides: list[str] = Field(default_factory=list)
    verdicts: str = "verdicts.sqlite"

    @property
    def named(self) -> dict[str, Any]:
        """The three, for a config or a record of another class."""
        return {"recipe": self.recipe, "overrides": self.overrides, "verdicts": self.verdicts}

    @property
    def stage(self) -> SearchStage:
        """What they name. Raises SleuthError if there is no recipe, or for what verifiers cannot play."""
        if not self.recipe:
            raise SleuthError("recipe is missing: name a recipe file, such as --env.taskset.recipe recipe.toml")
        return stage_of(self.recipe, tuple(self.overrides), self.verdicts)


class SearchToolsetConfig(vf.SharedToolsetConfig, RecipeConfig):
    """The tool server's recipe, and the folder to which paths in it are relative."""

    folder: str = ""


class SearchTasksetConfig(vf.TasksetConfig, RecipeConfig):
    """The taskset's recipe."""


class SearchData(vf.TaskData):
    """A question, by its `id`, of a recipe."""

    recipe: str
    overrides: list[str]
    verdicts: str


class SearchToolset(vf.Toolset[SearchToolsetConfig]):
    """The dialect's search tool over the recipe's retriever."""

    TOOL_PREFIX = None

    async def setup(self) -> None:
        """verifiers starts the server in a folder of its own."""
        if self.config.folder:
            os.chdir(self.config.folder)

    def register(self, mcp: Any) -> None:
        """Adds the tool with the name, the argument and the descriptions that our prompts have."""
        stage = self.config.stage
        tool = stage.tool

        async def search(**arguments: Any) -> str:
            return (await stage.call(arguments)).text

        hint = Annotated[list[str] if tool.several else str, Field(description=tool.argument_description)]
        named = inspect.Parameter(tool.argument, inspect.Parameter.KEYWORD_ONLY, annotation=hint)
        cast(Any, search).__signature__ = inspect.Signature([named], return_annotation=str)
        search.__annotations__ = {tool.argument: hint, "return": str}
        mcp.add_tool(search, name=tool.name, description=tool.description)


class SearchTask(vf.Task[SearchData, vf.State, vf.TaskConfig]):
    """A question with the recipe's reward."""

    @vf.reward
    async def recipe_reward(self, trace: Any) -> float:
        """The score; its parts are metrics. Raises SleuthError if it is missing."""
        data = self.data
        stage = stage_of(data.recipe, tuple(data.overrides), data.verdicts)
        [score] = await stage.scores([await episode_of(stage, stage.tasks[data.id], trace)])
        if score.value is None:
            raise SleuthError(f"question {data.id!r} has no score: {score.note}")
        trace.record_metrics(score.parts)
        return score.value


class SearchTaskset(vf.Taskset[SearchTask, SearchTasksetConfig]):
    """The questions of a recipe's first `grpo` stage."""

    def load(self) -> Iterable[SearchTask]:
        """The tasks, in the order of the recipe's questions."""
        stage, named = self.config.stage, self.config.named
        for task in stage.tasks.values():
            *system, user = stage.messages(task)
            rules = system[0]["content"] if system else None
            data = SearchData(id=task.id, prompt=user["content"], system_prompt=rules, **named)
            yield SearchTask(data, self.config.task)

    @classmethod
    def toolsets(cls, config: SearchTasksetConfig) -> list[vf.Toolset]:
        """One tool server for all tasks."""
        return [SearchToolset(SearchToolsetConfig(**config.named, folder=os.getcwd()))]


async def episode_of(stage: SearchStage, task: Task, trace: Any) -> Episode:
    """The episode in the messages of a trace's last branch. Raises SleuthError if a search now finds something else."""
    env = cast(SearchEnv, stage.setting.env(task))
    beginning = stage.segment("template", (await env.open()).pieces)
    messages = list(trace.messages)
    cut = any(call.finish_reason == "length" for branch in trace.branches[-1:] for call in branch.calls[-1:])
    said = [at for at, message in enumerate(messages) if message.role == "assistant"]
    turns: list[PlayedTurn] = []
    for at, end in zip(said, [*said[1:], len(messages)], strict=True):
        stop: StopReason = "length" if cut and at == said[-1] else "eos"
        text = _text_of(stage, messages[at])
        ending = [cast(int, stage.tokenizer.eos_token_id)] if stop == "eos" else []
        policy = Segment(author="policy", tokens=(*encode(stage.tokenizer, text), *ending), text=text)
        answers = {one.tool_call_id: _text_in(one.content) for one in messages[at + 1 : end] if one.role == "tool"}
        if not answers:
            turns.append(PlayedTurn(policy=policy, stop=stop))
            continue
        calls = [
            await _call_again(stage, call, answers[call.id])
            for call in messages[at].tool_calls or ()
            if call.name == stage.tool.name and call.id in answers
        ]
        shown = [Piece(text="\n".join(answers.values()), quoted=True)]
        results = stage.segment("env", env.frame.results(text, stop, shown).pieces)
        turns.append(PlayedTurn(policy=policy, stop=stop, calls=tuple(calls), results=results))
    return await stage.episode(task, beginning, turns)


async def _call_again(stage: SearchStage, call: Any, shown: str) -> ToolCall:
    """The call of a message, with the passages that it found; `shown` is what the policy read."""
    arguments = parsed(call.arguments)
    again = await stage.call(arguments if isinstance(arguments, dict) else {})
    if not again.queries:
        return ToolCall(queries=(), text=shown)
    if shown.startswith(ERROR):
        return ToolCall(queries=again.queries, text=shown, failure=shown.removeprefix(ERROR))
    if again.text != shown:
        raise SleuthError(
            f"the search {call.arguments} finds other passages than when the episode was played, so that it cannot be "
            "scored: keep the index and the recipe as they were"
        )
    return again


def _text_of(stage: SearchStage, message: Any) -> str:
    """What the policy wrote, in the dialect's tags."""
    dialect = stage.setting.dialect
    calls = [
        json.dumps({"name": call.name, "arguments": parsed(call.arguments)}, ensure_ascii=False)
        for call in message.tool_calls or ()
    ]
    thought = [dialect.think.around(message.reasoning_content)] if message.reasoning_content else []
    return "\n".join([*thought, *([message.content] if message.content else []), *map(dialect.search.around, calls)])


def _text_in(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content if part.type == "text")


if __name__ == "__main__":  # how verifiers starts a tool server
    SearchToolset.run()
