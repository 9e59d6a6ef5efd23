"""An environment that folds its history: a text longer than the context, read in parts, of which only notes are kept.
`notes.toml` trains in it."""

import random
import re

from sleuth.types import Action, Piece, Reply, StopReason, Task

COLOURS = ["red", "green", "blue", "pink", "black", "white", "grey", "golden", "dark", "striped"]
THINGS = ["door", "gate", "box", "chest", "safe", "drawer"]


def rows(*, seed: int = 0, limit: int = 64):
    """Questions about one of 60 sentences."""
    rng = random.Random(seed)
    for at in range(limit):
        names = [f"{colour} {thing}" for colour in COLOURS for thing in THINGS]
        rng.shuffle(names)
        codes = [str(rng.randint(10, 99)) for _ in names]
        text = " ".join(f"The {name} has the code {code}." for name, code in zip(names, codes, strict=True))
        asked = rng.randrange(len(names))
        question = f"What is the code of the {names[asked]}?"
        yield {"id": f"codes-{at}", "question": question, "golden_answers": [codes[asked]], "text": text}


class Reading:
    def __init__(self, task: Task, *, words: int = 70) -> None:
        text = task.info["text"].split()
        self.parts = [" ".join(text[at : at + words]) for at in range(0, len(text), words)]
        self.question, self.notes = task.question, "none"

    def _next_part(self, **others: object) -> Reply:
        page = f"{self.parts.pop(0)}\n{self.question}\nNotes so far: {self.notes}\nNotes:"
        return Reply(pieces=(Piece(text=page, quoted=True),), max_tokens=24, stops=("</answer>",), **others)

    async def open(self) -> Reply:
        return self._next_part()

    async def reply(self, text: str, stop: StopReason) -> Reply:
        if found := re.search(r"<answer>(.*?)</answer>", text):
            self.notes = found[1]
        action = Action(kind="answer", text=self.notes)
        if not self.parts:
            return Reply(action=action, done="answered")
        return self._next_part(restarts=True, action=action)  # the history is this part and the notes alone
