"""The refiner's environment: one prompt with a search agent's reasoning and tool output, one answer."""

from __future__ import annotations

import re

from sleuth.dialect import Dialect
from sleuth.episodes.frames import Frame, TextFrame
from sleuth.types import Action, Evidence, Piece, Reply, StopReason, Task

SNIPPET_MARKUP = re.compile(r"(</?(?:snippet|webpage)\b[^<>]*>)", re.IGNORECASE)


class RefineEnv:
    """A single turn. The prompt contains all evidence; nothing that the policy writes becomes evidence."""

    def __init__(self, task: Task, dialect: Dialect, prompt: str, *, frame: Frame | None = None) -> None:
        self.task = task
        self.dialect = dialect
        self.prompt = prompt
        self.frame = frame or TextFrame(dialect)

    async def open(self) -> Reply:
        """The prompt filled with question, reasoning and tool output, or with the task's own prompt."""
        own = self.task.prompt
        question = [Piece(text=own, author="template")] if own else self._question()
        return Reply(
            pieces=tuple(self.frame.open(self.prompt, *question)),
            max_tokens=self.dialect.turn_tokens,
            stops=self.dialect.stops,
        )

    async def reply(self, text: str, stop: StopReason) -> Reply:
        """The end: `answered`, or without a closed answer `length` or `turns`."""
        match = self.dialect.find_action(text)
        if match is None:
            return Reply(
                action=Action(kind="invalid", text=text.strip()), done="length" if stop == "length" else "turns"
            )
        return Reply(action=Action(kind="answer", text=match["text"].strip()), done="answered")

    def _question(self) -> list[Piece]:
        """Of the tool output only the markup of its snippets is more than quoted text."""
        evidence = self.task.evidence or Evidence(reasoning="", output="", snippets=())  # refused by the factory
        pieces = [Piece(text="Question: "), Piece(text=self.task.question, quoted=True), Piece(text="\n")]
        if evidence.reasoning:
            pieces += [Piece(text="Reasoning: "), Piece(text=evidence.reasoning, quoted=True), Piece(text="\n")]
        parts = SNIPPET_MARKUP.split(evidence.output.strip())  # every second part is markup
        output = [Piece(text=part, quoted=not at % 2) for at, part in enumerate(parts) if part]
        tags = self.dialect.information
        return [*pieces, Piece(text=f"{tags.open}\n"), *output, Piece(text=f"\n{tags.close}")]
