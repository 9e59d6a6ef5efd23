"""Hooks of the user, `hooks = ["module:name"]` of a GRPO stage: what they are made with, may return and are checked
for."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.answers.function import checked_parts, finite_number
from sleuth.own.calls import Caller
from sleuth.own.functions import UserFunction, load_function, parameters_of, require_arguments
from sleuth.runs.checkpoints import require_plain
from sleuth.training.loop import Figures
from sleuth.training.rollout_worker import Hook
from sleuth.training.stage_context import Saved, StageContext
from sleuth.types import Group, Score

METHODS = (
    *("opening(self)", "score(self, step, groups)", "after_update(self)", "measure(self, step, groups)"),
    *("state(self)", "load_state(self, state)", "log(self, stage, step, figures)", "close(self)"),
)
"""What a class may have, each once or not at all; a function is `measure` alone."""
PREFIX = "hook_"
"""Before the name of a hook, and a slash before its figures: `hook_Drift/norm`."""
SECONDS = 60.0
"""Timeout of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookStage:
    """What a class of the user is made with: name and steps of the stage, the run's folder, and the model, to read."""

    name: str
    steps: int
    folder: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast


def require_hook(function: UserFunction) -> None:
    """Raises UserCodeError for a function or class that is no hook."""
    name, made = function.short_name, function.call
    if not isinstance(made, type):
        require_arguments(function, 2, {}, f"def {name}(step, groups) -> dict[str, float], or a class")
        return
    if len(parameters_of(function)) > 0:
        require_arguments(function, 1, {}, f"{name}(stage)")
    examples = {example.partition("(")[0]: example for example in METHODS}
    own = [method for method in examples if callable(getattr(made, method, None))]
    if not {*own} - {"state", "load_state", "close"}:
        raise function.error(f"has no method of a hook; expected one or more of {', '.join(examples)}")
    if ("state" in own) != ("load_state" in own):
        raise function.error("state and load_state belong together: a resumed run loads what a checkpoint has")
    for method in own:
        try:
            inspect.signature(getattr(made, method)).bind(*range(examples[method].count(",") + 1))
        except TypeError:
            raise function.error(f"{method} should be def {examples[method]}") from None


class OwnHook(Hook):
    """A hook of the user. Only the first rank makes and calls it; what it scores reaches the others. Whatever it raises
    is a UserCodeError with file and line, and so are a call that does not return and a figure that is no number; of
    `log` and `close` the tracker of the run reports it, and goes on without."""

    def __init__(self, name: str, stage: HookStage, context: StageContext, saved: Saved | None) -> None:
        self.function, self.stage, self.ranks = load_function(name), stage, context.ranks
        self.call = Caller(self.function, seconds=SECONDS)
        self.key, self.made = f"hook {self.function.name}", None
        if not self.ranks.first:
            return
        if isinstance(self.function.call, type):
            self.made = asyncio.run(self.call(*((stage,) if parameters_of(self.function) else ())))
        if saved is not None and self.key in saved.state:
            self._ask("load_state", saved.state[self.key])
        if hasattr(self.made, "log") or hasattr(self.made, "close"):
            context.folder.trackers.add(self.function.name, self)

    def _ask(self, method: str, *arguments: Any) -> Any:
        """What a method of the user's returns; None if the object has none."""
        call = getattr(self.made, method, None)
        return None if call is None else asyncio.run(self.call.run(call, *arguments))

    def opening(self) -> list[str]:
        lines = self._ask("opening")
        return [] if lines is None else [" ".join(str(line).split()) for line in lines]

    def score(self, step: int, groups: list[Group]) -> tuple[list[Group], Figures]:
        """The groups with the scores of the user's."""
        if not self.ranks.broadcast(lambda: hasattr(self.made, "score")):
            return groups, {}
        return self.ranks.broadcast(lambda: self._scored(self._ask("score", step, groups), groups)), {}

    def after_update(self) -> None:
        self._ask("after_update")

    def measure(self, step: int, groups: Sequence[Group]) -> Figures:
        """The user's figures, by names of this hook's own."""
        if not self.ranks.first:
            return {}
        if isinstance(self.function.call, type):
            found = self._ask("measure", step, groups)
        else:
            found = asyncio.run(self.call(step, groups))
        return dict(checked_parts(self.function, found or {}, PREFIX + self.function.short_name, "figure"))

    def state_dict(self) -> dict[str, Any]:
        if not hasattr(self.made, "state"):
            return {}
        state = self._ask("state")
        try:
            require_plain(state, "state()")
        except TypeError as error:
            raise self.function.error(str(error)) from None
        return {self.key: state}

    def log(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        """A row of this stage, as a tracker gets it."""
        if stage == self.stage.name:
            self._ask("log", stage, step, dict(figures))

    def close(self) -> None:
        self._ask("close")

    def _scored(self, found: Any, groups: Sequence[Group]) -> list[Group]:
        error = self.function.error
        if not isinstance(found, Sequence) or len(found) != len(groups):
            raise error(f"score returned {repr(found)[:60]}; expected the {len(groups)} groups that it got")
        for new, old in zip(found, groups, strict=True):
            if not isinstance(new, Group) or new.task is not old.task or new.episodes is not old.episodes:
                raise error(f"score returned {repr(new)[:60]} in place of the group that it got, with other scores")
            values = [score.value if isinstance(score, Score) else math.nan for score in new.scores]
            if len(values) != len(old.scores) or any(v is not None and finite_number(v) is None for v in values):
                raise error(
                    f"score returned {repr(new.scores)[:60]}; expected a Score, finite or None, of each episode"
                )
        return list(found)
