"""Trajectories in the form that the page's script draws: segments by author, passages in order, texts stored once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sleuth.runs.checkpoints import latest_checkpoint


class TextPool:
    """Texts by index. Siblings share prompts and passages, so each text is stored once; `size` is their bytes."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.size = 0
        self._indices: dict[str, int] = {}

    def index(self, text: str) -> int:
        """The index of `text`, which is added if it is new."""
        if text not in self._indices:
            self._indices[text] = len(self.texts)
            self.texts.append(text)
            self.size += len(text.encode("utf-8", "replace"))
        return self._indices[text]


def read_tokenizer(run: Path) -> Tokenizer | None:
    """The tokenizer of a run's newest checkpoint; None without one, and then tokens are not shown one by one."""
    checkpoint = latest_checkpoint(run / "checkpoints")
    file = checkpoint and checkpoint / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(file)) if file and file.is_file() else None
    except Exception:  # the library's own, of a damaged file, which the report's warning names
        return None


def segment_view(segment: Mapping[str, Any], pool: TextPool, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """`{"author", "text": index}` and, if known, `cut` and the `ends` of tokens (in characters) with `logprobs`."""
    view: dict[str, Any] = {"author": segment["author"], "text": pool.index(segment["text"])}
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
    """The end of each token in `text`, in characters, for display only; None if the tokens do not spell `text`.

    A character of several tokens belongs to its last one. A last token that overhangs a stop string ends with the text.
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
            "text": pool.index(passage["text"]),
            "gold": passage["id"] in gold,
        }
        for passage in action.get("passages") or ()
    ]
    return {"kind": action["kind"], "text": action["text"], "passages": passages}
