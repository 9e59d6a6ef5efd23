"""Our search environment and rewards in TRL's `GRPOTrainer` (TRL 1.16.0).

TRL plays the episodes: it renders the messages, samples, parses calls, and appends the results. Our class for its
`environment_factory` answers the calls. Its `get_reward` would never see what the policy wrote, so the scores are
computed in `reward_funcs`, which read the sampled tokens. Departures from a run of ours:

- the chat template is TRL's: it replaces one that is not prefix-preserving by its own variant;
- calls are parsed by TRL. All calls of a message are made (here, one search with several queries); a message whose call
  TRL cannot read is the last (no hint), and a call of an unknown tool is answered with TRL's error;
- a result is encoded with the template around it as one text: names of control tokens in a passage become those tokens,
  and a token may span the end of a passage. Sampled tokens stay as they are;
- a turn is limited by `max_completion_length` alone, which counts all tokens after the prompt, results included;
- if the retriever failed, the policy reads the failure and plays on; the score is missing, as with us. TRL then trains
  the episode with advantage 0, we leave it out;
- episodes have no log-probabilities, and several processes score the siblings that they played.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, cast

from sleuth.answers.answer import CITING
from sleuth.evaluation.figures import is_score
from sleuth.render import decode
from sleuth.trainers.search_stage import PlayedTurn, SearchStage, ToolCall, load_search_stage
from sleuth.types import Episode, Score, Segment, SleuthError

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEnvironment:
    """Arguments of `GRPOTrainer` under its own names, and `config`, those of `GRPOConfig` that the recipe sets."""

    model: str
    processing_class: Any
    train_dataset: Any
    environment_factory: Callable[[], Any]
    reward_funcs: list[Callable[..., Any]]
    config: dict[str, Any]


def search_environment(
    recipe: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    verdicts: str | os.PathLike[str] = "verdicts.sqlite",
) -> SearchEnvironment:
    """The environment, the rewards and the questions of a recipe's first `grpo` stage, for `GRPOTrainer`.

    `overrides` are those of `--set`; what models judge is cached in the file `verdicts`. Raises SleuthError for what
    TRL cannot play.
    """
    try:
        from datasets import Dataset  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise SleuthError('TRL is not installed here: pip install "sleuth[trl]"') from None
    stage = load_search_stage(recipe, overrides, verdicts=verdicts)
    rows = [{"prompt": stage.messages(task), "task_id": task.id} for task in stage.tasks.values()]
    dialect = stage.setting.dialect
    return SearchEnvironment(
        model=stage.model,
        processing_class=stage.tokenizer,
        train_dataset=Dataset.from_list(rows),
        environment_factory=environment_class(stage),
        reward_funcs=[TrlScorer(stage).recipe_reward],
        config={
            "num_generations": stage.recipe.samples_per_prompt,
            "temperature": stage.recipe.sampling.temperature,
            "max_tool_calling_iterations": stage.rounds,
            "max_completion_length": dialect.response_tokens or stage.recipe.context,
            "chat_template_kwargs": stage.flags,
        },
    )


def environment_class(stage: SearchStage) -> type:
    """A class whose one public method besides `reset` is the dialect's search tool. TRL reads the tool's schema from
    the signature and the docstring; it is the schema that our prompts have."""
    tool = stage.tool

    class SearchTool:
        def __init__(self) -> None:
            self.calls: list[ToolCall | None] = []

        def reset(self, **row: Any) -> None:
            self.calls = []

    async def search(self: SearchTool, **arguments: Any) -> str:
        at = len(self.calls)
        self.calls.append(None)  # calls of one message are made concurrently, and end in any order
        self.calls[at] = call = await stage.call(arguments)
        return call.text

    hint = list[str] if tool.several else str
    named = inspect.Parameter(tool.argument, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=hint)
    search.__name__ = search.__qualname__ = tool.name
    search.__doc__ = f"{tool.description}\n\nArgs:\n    {tool.argument}: {tool.argument_description}\n"
    search.__annotations__ = {tool.argument: hint}
    cast(Any, search).__signature__ = inspect.Signature(
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), named]
    )
    setattr(SearchTool, tool.name, search)
    return SearchTool


class TrlScorer:
    """Scores what TRL played by the recipe's rewards."""

    def __init__(self, stage: SearchStage) -> None:
        from trl.chat_template_utils import (  # pyright: ignore[reportMissingImports]
            add_response_schema,
            get_training_chat_template,
            is_chat_template_prefix_preserving,
        )

        self.stage = stage
        self.tokenizer = stage.tokenizer
        try:
            if getattr(self.tokenizer, "response_template", None) is None:
                add_response_schema(self.tokenizer)
            preserving = is_chat_template_prefix_preserving(self.tokenizer)
            self.template = None if preserving else get_training_chat_template(self.tokenizer)
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
            raise SleuthError(f"{stage.model}: TRL cannot call tools with this chat template: {reason}") from None

    async def recipe_reward(
        self,
        *,
        prompts: Sequence[Sequence[Message]],
        completions: Sequence[Sequence[Message]],
        completion_ids: Sequence[Sequence[int]],
        environments: Sequence[Any],
        task_id: Sequence[str],
        log_metric: Callable[[str, float], None] = lambda name, value: None,
        **others: Any,
    ) -> list[float | None]:
        """The score of each completion, None if it is missing, as TRL calls it. The means of the parts of the scores
        are logged as `parts/NAME`."""
        rows = zip(task_id, prompts, completions, completion_ids, environments, strict=True)
        scores = await self.stage.scores([await self.episode(*row) for row in rows])
        for name, mean in _mean_parts(scores).items():
            log_metric(f"parts/{name}", mean)
        return [score.value for score in scores]

    async def episode(
        self,
        task_id: str,
        prompt: Sequence[Message],
        completion: Sequence[Message],
        tokens: Sequence[int],
        environment: Any,
    ) -> Episode:
        """The episode that TRL played, token id by token id. `tokens` are all after the prompt."""
        before = self._encoded(prompt, add_generation_prompt=True, tools=[self.stage.tool.schema])
        beginning = Segment(author="template", tokens=tuple(before), text=decode(self.tokenizer, before))
        waiting: list[ToolCall] = list(environment.calls)
        turns, at = list[PlayedTurn](), 0
        for answers in _tool_messages(completion):
            results = self._results(answers)
            end = _find(results, tokens, at)
            policy, stop = self.stage.policy_segment(tokens[at:end], [*before, *tokens[:at]])
            calls = [waiting.pop(0) for answer in answers if waiting and waiting[0].text == answer["content"]]
            appended = Segment(author="env", tokens=tuple(results), text=decode(self.tokenizer, results))
            turns.append(PlayedTurn(policy=policy, stop=stop, calls=tuple(calls), results=appended))
            at = end + len(results)
        if at < len(tokens):
            policy, stop = self.stage.policy_segment(tokens[at:], [*before, *tokens[:at]])
            turns.append(PlayedTurn(policy=policy, stop=stop, calls=tuple(waiting)))
        return await self.stage.episode(self.stage.tasks[task_id], beginning, turns)

    def _results(self, answers: Sequence[Message]) -> list[int]:
        """The tokens that TRL appends after a turn: what the template renders after the end of a message with a call.
        As `GRPOTrainer._get_tool_suffix_ids`."""
        function = {"name": answers[0]["name"], "arguments": {}}
        called = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        ]
        start = self._encoded(called)
        ends = [at for at, token in enumerate(start, 1) if token == self.tokenizer.eos_token_id]
        return self._encoded([*called, *answers], add_generation_prompt=True)[ends[-1] if ends else len(start) :]

    def _encoded(self, messages: Sequence[Message], **options: Any) -> list[int]:
        encoded = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            chat_template=self.template,
            tokenize=True,
            return_dict=False,
            **options,
            **self.stage.flags,
        )
        return cast("list[int]", encoded)


def _tool_messages(completion: Sequence[Message]) -> list[list[Message]]:
    """The tool messages after each message of the policy that has some."""
    turns: list[list[Message]] = []
    for message in completion:
        if message["role"] == "tool":
            turns[-1].append(message)
        else:
            turns.append([])
    return [answers for answers in turns if answers]


def _find(part: list[int], tokens: Sequence[int], start: int) -> int:
    """Where `part` next occurs in the tokens. A policy cannot write it itself: its turns end at an end-of-text token,
    and the tokens that follow one are not its own."""
    for at in range(start, len(tokens) - len(part) + 1):
        if tokens[at] == part[0] and list(tokens[at : at + len(part)]) == part:
            return at
    raise SleuthError(
        "the completion has other tokens than the recipe's tokenizer and template give a tool's answer: pass "
        "`processing_class` and `config` of `search_environment` to the trainer"
    )


def _mean_parts(scores: Sequence[Score]) -> dict[str, float]:
    """Absent parts are 0, but for those of citing and of the user's functions, which only some answers have."""
    scored = [score.parts for score in scores if score.value is not None]
    return {
        name: fmean(parts.get(name, 0.0) for parts in scored if name in parts or not (name in CITING or is_score(name)))
        for name in sorted({name for parts in scored for name in parts})
    }
