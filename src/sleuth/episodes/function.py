"""Environments that a user's class computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sleuth.dialect import dialect_of
from sleuth.episodes.own_code import env_code_in
from sleuth.episodes.setting import Setting
from sleuth.episodes.tables import FunctionEnvRecipe
from sleuth.own.calls import THREADS, Caller
from sleuth.own.functions import UserCodeError, load_function, require_arguments
from sleuth.types import Action, Env, EpisodeKey, Piece, Reply, StopReason, Task

ENDS = (None, "answered", "turns", "length", "failed")
"""What `Reply.done` may be."""


class FunctionEnv:
    """An environment of the user, made by `make(task, **parameters)`, for one episode.

    If it raises, takes too long or returns no valid reply, the episode ends with the stop reason `failed`, so that its
    score is missing; the `failure` of the last action is the reason, with the user's file and line. Its methods may be
    asynchronous or not.
    """

    def __init__(self, task: Task, make: Caller, parameters: Mapping[str, Any]) -> None:
        self.task = task
        self.make = make
        self.parameters = parameters
        self.env: Any = None

    async def open(self) -> Reply:
        """The user's first reply."""
        try:
            self.env = await self.make(self.task, **self.parameters)
            for method in ("open", "reply"):
                if not callable(getattr(self.env, method, None)):
                    raise self.make.function.error(f"made {self.env!r}, which has no method {method}")
            return self._checked(await self.make.run(self.env.open), "open")
        except UserCodeError as error:
            return _failed(error)

    async def reply(self, text: str, stop: StopReason) -> Reply:
        """The user's reply to a turn."""
        try:
            return self._checked(await self.make.run(self.env.reply, text, stop), "reply")
        except UserCodeError as error:
            return _failed(error)

    def _checked(self, reply: Any, method: str) -> Reply:
        error = self.make.function.error
        if not isinstance(reply, Reply):
            raise error(f"{method} returned {repr(reply)[:60]}; expected a sleuth.types.Reply")
        if not isinstance(reply.pieces, tuple) or not all(isinstance(piece, Piece) for piece in reply.pieces):
            raise error(f"{method} returned pieces = {repr(reply.pieces)[:60]}; expected a tuple of sleuth.types.Piece")
        texts = (*(piece.text for piece in reply.pieces), *reply.stops)
        if odd := next((text for text in texts if not isinstance(text, str)), None):
            raise error(f"{method} returned {repr(odd)[:60]} as the text of a piece or a stop; expected a str")
        if any(piece.author == "policy" for piece in reply.pieces):
            raise error(f'{method} returned a piece with author = "policy": only the policy writes those')
        if reply.done not in ENDS:
            raise error(f"{method} returned done = {reply.done!r}: expected None, {', '.join(map(repr, ENDS[1:]))}")
        if not isinstance(reply.max_tokens, int) or (reply.done is None and reply.max_tokens < 1):
            raise error(f"{method} returned a reply that allows the policy no token: set max_tokens, or done")
        actions = (*reply.earlier, reply.action) if reply.action is not None else reply.earlier
        if not all(isinstance(action, Action) for action in actions):
            raise error(f"{method} returned an action that is not a sleuth.types.Action")
        if method == "open" and not reply.pieces and reply.done is None:
            raise error("open returned no pieces, so that the policy would have no prompt")
        return reply


def _failed(error: UserCodeError) -> Reply:
    return Reply(action=Action(kind="invalid", text="", failure=str(error)), done="failed")


@dataclass(frozen=True, slots=True, kw_only=True)
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


def function_setting(env: FunctionEnvRecipe) -> FunctionSetting:
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
