"""Trajectories in the shape that the page's script draws: segments by author, passages in order, texts stored once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sleuth.runs.checkpoints import latest_checkpoint


class TextPool:
    """Texts by number. Siblings share prompts and passages, so each text travels once; `size` is what it costs."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.size = 0
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        """The number of `text`, now or since before."""
        if text not in self._places:
            self._places[text] = len(self.texts)
            self.texts.append(text)
            self.size += len(text.encode("utf-8", "replace"))
        return self._places[text]


def read_tokenizer(run: Path) -> Tokenizer | None:
    """The tokenizer of a run's newest checkpoint; without one, tokens cannot be shown one by one."""
    checkpoint = latest_checkpoint(run / "checkpoints")
    file = checkpoint and checkpoint / "tokenizer.json"
    return Tokenizer.from_file(str(file)) if file and file.is_file() else None


def segment_view(segment: Mapping[str, Any], pool: TextPool, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """`{"author", "text": place}` and, where they apply, `cut` and for each token `ends` (where its text ends, in
    characters) with `logprobs`."""
    view: dict[str, Any] = {"author": segment["author"], "text": pool.place(segment["text"])}
    if segment.get("cut"):
        view["cut"] = segment["cut"]
    logprobs = segment.get("logprobs")
    if logprobs and tokenizer is not None:
        ends = token_ends(segment["tokens"], segment["text"], tokenizer)
        if ends is not None:
            view["ends"] = ends
            view["logprobs"] = [round(value, 2) if math.isfinite(value) else None for value in logprobs]
    return view


def token_ends(tokens: Sequence[int], text: str, tokenizer: Tokenizer) -> list[int] | None:
    """Where in `text` each token ends, for display only; None if the tokens do not spell `text`.

    A character of several tokens belongs to its last one. The last token may overhang a stop string: it ends with it.
    """
    ends, spelled, start = [], "", 0
    for index in range(len(tokens)):
        piece = tokenizer.decode(list(tokens[start : index + 1]), skip_special_tokens=False)
        if not piece.endswith("\N{REPLACEMENT CHARACTER}"):
            spelled += piece
            start = index + 1
        ends.append(min(len(spelled), len(text)))
    return ends if spelled.startswith(text) else None


def action_view(action: Mapping[str, Any], gold: Sequence[str], pool: TextPool) -> dict[str, Any]:
    """An action with its passages in order; `gold` marks those that hold the answer."""
    passages = [
        {
            "id": passage["id"],
            "title": passage["title"],
            "text": pool.place(passage["text"]),
            "gold": passage["id"] in gold,
        }
        for passage in action.get("passages") or ()
    ]
    return {"kind": action["kind"], "text": action["text"], "passages": passages}
