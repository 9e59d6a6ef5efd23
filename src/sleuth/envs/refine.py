"""The refiner's environment: what a search agent thought and what its tool returned go in, one answer comes out."""

from __future__ import annotations

import re

from sleuth.dialects import Dialect
from sleuth.envs.frames import Frame, TextFrame
from sleuth.types import Action, Evidence, Piece, Reply, StopReason, Task


class RefineEnv:
    """One turn. Its prompt holds all the evidence there will ever be: nothing that the policy writes becomes any."""

    def __init__(self, task: Task, dialect: Dialect, prompt: str, *, frame: Frame | None = None) -> None:
        self.task = task
        self.dialect = dialect
        self.prompt = prompt
        self.frame = frame or TextFrame(dialect)

    async def open(self) -> Reply:
        """The prompt with question, reasoning and tool output in its place, or with what the data brings instead."""
        own = self.task.prompt
        asked = Piece(text=own, author="template") if own else Piece(text=self._brief())
        return Reply(
            pieces=tuple(self.frame.open(self.prompt, asked)),
            max_tokens=self.dialect.turn_tokens,
            stops=self.dialect.stops,
        )

    async def reply(self, text: str, stop: StopReason) -> Reply:
        """The end: `answered`, or `length` or `turns` where there is no closed answer."""
        match = re.search(self.dialect.action, text)
        if match is None:
            return Reply(
                action=Action(kind="invalid", text=text.strip()), done="length" if stop == "length" else "turns"
            )
        return Reply(action=Action(kind="answer", text=match["text"].strip()), done="answered")

    def _brief(self) -> str:
        """Of a task without a tool output, the question alone; building the environment has refused it."""
        evidence = self.task.evidence or Evidence(reasoning="", output="", snippets=())
        reasoning = f"Reasoning: {evidence.reasoning}\n" if evidence.reasoning else ""
        output = self.dialect.information.around(f"\n{evidence.output.strip()}\n")
        return f"Question: {self.task.question}\n{reasoning}{output}"
