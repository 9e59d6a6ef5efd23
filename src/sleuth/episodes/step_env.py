"""Environments of the user with `reset` and `step`, as Gymnasium and the clients of OpenEnv have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sleuth.dialect import Dialect
from sleuth.episodes.calls import ERROR
from sleuth.episodes.frames import Frame, Framed
from sleuth.episodes.library import QUESTION
from sleuth.episodes.own_object import OwnObject
from sleuth.host.escapes import replace_surrogates
from sleuth.own.calls import finite_number, plain, shown_value
from sleuth.own.functions import UserCodeError
from sleuth.types import Action, Piece, Reply, Score, StopReason

EXPECTED = "expected (observation, reward, terminated, truncated, info), or a result with observation, reward and done"


@dataclass(slots=True)
class StepEnv:
    """One episode in which each turn of the policy is an action. The `frame` makes messages or plain text of
    observations; the score is the sum of the rewards, missing if none of the steps gave one.

    `to_action` makes an action of a turn, which is otherwise its text; the policy reads what it raises, and no step is
    made. `to_text` writes an observation, which otherwise has to be text.
    """

    own: OwnObject
    frame: Frame
    dialect: Dialect
    to_action: Callable[[str], Any] | None = None
    to_text: Callable[[Any], str] | None = None
    rewards: list[float | None] = field(default_factory=list)

    async def open(self) -> Reply:
        """The first observation. Raises UserCodeError for one that is no text."""
        found = await self.own.reset()
        if isinstance(found, tuple) and len(found) == 2:
            found, _ = found
        text = await self._text("reset", getattr(found, "observation", found))
        opening = self._next(Framed(pieces=tuple(self.frame.open(QUESTION, _shown(text)))))
        if not opening.pieces:
            raise self.own.error("reset", "returned an empty observation, so that the policy would have no prompt")
        return opening

    async def reply(self, text: str, stop: StopReason) -> Reply:
        """The observation after a step. Raises UserCodeError if it fails, or returns something else."""
        action: Any = text
        if self.to_action is not None:
            try:
                action = await self.own.make.run(self.to_action, text)
            except UserCodeError as error:
                wrong = replace_surrogates(ERROR + str(error.__cause__ or error))
                framed = self.frame.message(turn=text, stop=stop, piece=_shown(wrong))
                return self._next(framed, Action(kind="call", text=text, result=wrong))
        observation, reward, done = self._result(await self.own.call("step", action))
        self.rewards.append(reward)
        shown = await self._text("step", observation)
        if done is not None:
            return Reply(action=Action(kind="answer", text=text, result=shown), done=done)
        framed = self.frame.message(turn=text, stop=stop, piece=_shown(shown))
        return self._next(framed, Action(kind="call", text=text, result=shown))

    def score(self) -> Score:
        """The sum of the rewards; 0 of an episode without a step."""
        known = [reward for reward in self.rewards if reward is not None]
        if self.rewards and not known:
            return Score(value=None, note="no step gave a reward")
        return Score(value=sum(known, 0.0))

    def _next(self, framed: Framed, action: Action | None = None) -> Reply:
        return Reply(
            pieces=tuple(piece for piece in framed.pieces if piece.text),
            restarts=framed.restarts,
            action=action,
            max_tokens=self.dialect.turn_tokens,
            stops=self.dialect.stops,
        )

    def _result(self, result: Any) -> tuple[Any, float | None, str | None]:
        """The observation, the reward and the stop reason, if the episode has ended."""
        if isinstance(result, tuple):
            values: Sequence[Any] = result
        else:
            values = [getattr(result, "observation", result), *(getattr(result, x, result) for x in ("reward", "done"))]
            values = [*values, False, None]
        if len(values) != 5:
            raise self.own.error("step", f"returned a tuple of {len(values)}; {EXPECTED}")
        observation, reward, ended, truncated = values[0], values[1], plain(values[2]), plain(values[3])
        number = None if reward is None else finite_number(reward)
        if (number is None and reward is not None) or not isinstance(ended, bool) or not isinstance(truncated, bool):
            raise self.own.error("step", f"returned {shown_value(result)}; {EXPECTED}")
        return observation, number, "answered" if ended else "turns" if truncated else None

    async def _text(self, method: str, observation: Any) -> str:
        text = observation if self.to_text is None else await self.own.make.run(self.to_text, observation)
        if not isinstance(text, str):
            made = "an observation that is" if self.to_text is None else "an observation of which to_text made"
            raise self.own.error(
                method,
                f"returned {made} {shown_value(text)}; expected text: return (environment, to_action, to_text) from "
                f"{self.own.make.function.short_name}, of which to_text writes it",
            )
        return replace_surrogates(text)


def _shown(text: str) -> Piece:
    return Piece(text=text, quoted=True)
