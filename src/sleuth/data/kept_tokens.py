"""Keeps the tokens of texts between starts of a run: encoding some ten thousand long documents takes minutes each time.

A file holds what one reading of texts encoded with one tokenizer. Its entries are found by the hash of a text, so that
changed texts are encoded again; entries that a reading did not use are dropped when it is written. A file that is
damaged is ignored and written anew, and the oldest files go when all are larger than `SLEUTH_KEPT_TOKENS_MB`.
"""

from __future__ import annotations

import hashlib
import os
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerFast

from sleuth.host.variables import KEPT_TOKENS
from sleuth.recipe.strict import StrictModel
from sleuth.render import Renderer
from sleuth.types import Piece, Segment

WORTH_SECONDS = 5.0
"""Seconds of encoding from which tokens are kept."""


@contextmanager
def keeping_tokens(tokenizer: PreTrainedTokenizerFast, data: StrictModel) -> Iterator[Renderer]:
    """Yields a renderer for one reading of `data`. It finds the tokens of texts that an earlier reading encoded, and
    keeps those of this one if encoding took WORTH_SECONDS."""
    texts = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode())
    texts.update(data.model_dump_json().encode())
    file = folder_of_tokens() / f"{texts.hexdigest()[:40]}.npz"
    renderer = KeepingRenderer(tokenizer, read_tokens(file))
    yield renderer
    if renderer.seconds < WORTH_SECONDS:
        with suppress(OSError):  # the file is the last that goes when there are too many
            os.utime(file)
        return
    with suppress(OSError):  # a full disk, a folder that may not be written: the next start encodes again
        file.parent.mkdir(parents=True, exist_ok=True)
        write_tokens(file, renderer.used)
        remove_oldest(file.parent, KEPT_TOKENS.bytes)


def folder_of_tokens() -> Path:
    """`sleuth/tokens` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sleuth" / "tokens"


class KeepingRenderer(Renderer):
    """Looks up the tokens of texts by their hash before it encodes them. `used` has those of this reading, `seconds`
    what encoding took."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, known: Mapping[bytes, np.ndarray]) -> None:
        super().__init__(tokenizer)
        self.known, self.seconds = known, 0.0
        self.used: dict[bytes, np.ndarray] = {}

    def render(self, piece: Piece) -> Segment:
        if piece != Piece(text=piece.text):  # a budget, tokens or an author of its own
            return super().render(piece)
        key = hashlib.blake2b(piece.text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if (found := self.known.get(key)) is None:
            began = time.perf_counter()
            found = np.array(super().render(piece).tokens, dtype=np.int32)
            self.seconds += time.perf_counter() - began
        self.used[key] = found
        return Segment(author=piece.author, tokens=tuple(found.tolist()), text=piece.text)


def write_tokens(file: Path, tokens: Mapping[bytes, np.ndarray]) -> None:
    """Writes them atomically, with a checksum. Several processes may write the same file; the last one stays."""
    parts = _parts(tokens)
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as out:
            np.savez(
                out,
                checksum=np.frombuffer(_checksum(parts), np.uint8),
                keys=parts["keys"],
                ends=parts["ends"],
                tokens=parts["tokens"],
            )
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def read_tokens(file: Path) -> dict[bytes, np.ndarray]:
    """The tokens by the hash of their text; empty if there is no file, or if it is damaged."""
    try:
        with np.load(file, allow_pickle=False) as found:
            parts = {name: found[name] for name in ("keys", "ends", "tokens")}
            if found["checksum"].tobytes() != _checksum(parts):
                return {}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return {}
    rows = np.split(parts["tokens"], parts["ends"][:-1])
    return dict(zip((key.tobytes() for key in parts["keys"]), rows, strict=True))


def remove_oldest(folder: Path, most: int) -> None:
    """Removes the files that were used least recently until the rest has at most so many bytes."""
    files = sorted(folder.glob("*.npz"), key=lambda file: file.stat().st_mtime, reverse=True)
    total = 0
    for file in files:
        total += file.stat().st_size
        if total > most:
            file.unlink(missing_ok=True)


def _parts(tokens: Mapping[bytes, np.ndarray]) -> dict[str, np.ndarray]:
    rows = list(tokens.values())
    return {
        "keys": np.frombuffer(b"".join(tokens), np.uint8).reshape(-1, 16),
        "ends": np.cumsum([len(row) for row in rows], dtype=np.int64),
        "tokens": np.concatenate(rows) if rows else np.zeros(0, np.int32),
    }


def _checksum(parts: Mapping[str, np.ndarray]) -> bytes:
    digest = hashlib.sha256()
    for name in ("keys", "ends", "tokens"):
        digest.update(np.ascontiguousarray(parts[name]).tobytes())
    return digest.digest()
