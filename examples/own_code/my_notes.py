"""An environment that folds its history: tool output longer than the context, read in parts, of which the snippets stay
that the policy cites. `notes.toml` trains in it; `python examples/own_code/my_notes.py` writes its rows, of the world
that `sleuth world runs/world` has made."""

import json
import random
import re
from pathlib import Path

from sleuth.types import Action, Piece, Reply, StopReason, Task

WORLD, FOLDER = Path("runs/world"), Path("runs/notes")
PARTS, SNIPPETS, KEPT = 6, 5, 3
"""Parts of a text, snippets of a part, and how many stay."""
SNIPPET = re.compile(r"<snippet id=\d+>(.*?)</snippet>")


def rows(split: str):
    """Questions that one snippet of 30 answers; the others are of other questions."""
    rng = random.Random(0)
    made = [json.loads(line) for line in (WORLD / f"refiner_{split}.jsonl").read_text().splitlines()]
    snippets = [snippet for row in made for snippet in SNIPPET.findall(row["tool_output"])]
    for row in made:
        if row["answerable"] and row["type"] == "one_hop":
            own = SNIPPET.findall(row["tool_output"])
            text = own + rng.sample(snippets, PARTS * SNIPPETS - len(own))
            rng.shuffle(text)
            told = {key: row[key] for key in ("id", "question", "golden_answers")}
            yield {**told, "need": row["reasoning"], "snippets": text}


class Reading:
    def __init__(self, task: Task) -> None:
        texts = list(task.info["snippets"])
        self.parts = [texts[at : at + SNIPPETS] for at in range(0, len(texts), SNIPPETS)]
        self.question, self.need, self.golden = task.question, task.info["need"], task.golden_answers
        self.shown: dict[str, str] = {}
        self.kept: list[str] = []
        self.answer = ""

    def _next_part(self, **others: object) -> Reply:
        texts = [*self.kept, *self.parts.pop(0)]
        self.shown = {str(at): text for at, text in enumerate(texts, 11)}
        pieces = [Piece(text="Question: "), Piece(text=self.question, quoted=True)]
        pieces += [Piece(text="\nReasoning: "), Piece(text=self.need, quoted=True), Piece(text="\n<tool_output>")]
        for at, text in self.shown.items():
            pieces += [Piece(text=f"\n<snippet id={at}>"), Piece(text=text, quoted=True), Piece(text="</snippet>")]
        pieces.append(Piece(text="\n</tool_output>"))
        return Reply(pieces=tuple(pieces), max_tokens=96, stops=("</answer>",), **others)

    async def open(self) -> Reply:
        return self._next_part()

    async def reply(self, text: str, stop: StopReason) -> Reply:
        found = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
        self.answer = found[1] if found else ""
        cited = dict.fromkeys(re.findall(r"\d+", self.answer))
        self.kept = [self.shown[at] for at in cited if at in self.shown][:KEPT]
        action = Action(kind="answer", text=self.answer)
        if not self.parts:
            return Reply(action=action, done="answered")
        return self._next_part(restarts=True, action=action)  # the history is this part and what was cited

    def score(self) -> float:
        return float(any(golden in self.answer for golden in self.golden))


def main() -> None:
    """Writes the rows of both files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        (FOLDER / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(split)))


if __name__ == "__main__":
    main()
