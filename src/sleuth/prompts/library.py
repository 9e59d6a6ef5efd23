"""Prompts by their names: our own, and the published ones that a user has imported into the data folder."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from sleuth.prompts.published import PUBLISHED, PublishedPrompt, place_of, sha256_of
from sleuth.types import SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A prompt that a recipe can name. `text` is None for a published one that was not imported."""

    name: str
    text: str | None
    published: PublishedPrompt | None = None


def folder() -> Path:
    """Where imported prompts are kept: `sleuth/prompts` in `$XDG_DATA_HOME`, or in `~/.local/share` without one."""
    home = os.environ.get("XDG_DATA_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".local" / "share") / "sleuth" / "prompts"


def listed() -> list[Listed]:
    """Our own prompts and the published ones, each by its name."""
    ours = [Listed(name=name, text=_our_text(name).decode()) for name in our_names()]
    return ours + [
        Listed(name=prompt.name, text=read_prompt(prompt.name) if _kept(prompt).exists() else None, published=prompt)
        for prompt in PUBLISHED.values()
    ]


def our_names() -> list[str]:
    """The names of our own prompts."""
    texts = (file.name for file in files("sleuth").joinpath("prompts").iterdir() if file.name.endswith(".txt"))
    return sorted(name.removesuffix(".txt") for name in texts)


def read_prompt(prompt: str) -> str:
    """A prompt by its name, or any by its path, byte for byte: no newline is translated."""
    if prompt in PUBLISHED:
        return _published_text(PUBLISHED[prompt])
    if prompt in our_names():
        contents = _our_text(prompt)
    elif Path(prompt).is_file():
        contents = Path(prompt).read_bytes()
    else:
        names = ", ".join([*our_names(), *PUBLISHED])
        raise SleuthError(f"prompt = {prompt!r}: no such file, and no prompt of that name; there are {names}")
    try:
        return contents.decode()
    except UnicodeDecodeError:
        raise SleuthError(f"{prompt}: the prompt is no UTF-8 text") from None


def require_askable(text: str, role: str, name: str) -> None:
    """Raises SleuthError for a prompt that nothing can be asked with in the `role`: it must have one place for the
    question, or none as a system message, which the question follows as the user's."""
    place = place_of(text)
    if name in PUBLISHED and PUBLISHED[name].role == "hint":
        raise SleuthError(f"prompt = {name!r}: this text answers a bad action: name it as hint")
    if role == "system" and place in text:
        raise SleuthError(
            f"{name}: the prompt has a {place}, but the question follows a system message as the user's; take a prompt "
            'without it, or set prompt_role = "user"'
        )
    if role != "system" and place not in text:
        raise SleuthError(
            f"{name}: the prompt has no {place}, so the question would never be asked; if it is meant as a system "
            'message, set prompt_role = "system"'
        )


def import_prompt(name: str, file: Path) -> Path:
    """Take the published prompt `name` from a file that holds it, and keep it; where it is kept. Raises SleuthError
    for a name that is not known, and for a file that does not hold those very bytes."""
    if name not in PUBLISHED:
        raise SleuthError(
            f"{name}: no published prompt of that name; there are {', '.join(PUBLISHED)}. "
            "One of your own needs no import: a recipe names it by its path"
        )
    prompt = PUBLISHED[name]
    text = next((text for text in texts_in(file, prompt.place) if _is(text.encode(), prompt)), None)
    if text is None:
        raise SleuthError(
            f"{file}: does not hold {name}: nothing in it has the sha256 {prompt.sha256[:12]}; "
            f"it is published as {prompt.source}"
        )
    kept = _kept(prompt)
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(".partial")
    partial.write_bytes(text.encode())
    partial.replace(kept)
    return kept


def _published_text(prompt: PublishedPrompt) -> str:
    kept = _kept(prompt)
    if not kept.is_file():
        ours = f"; our own words for it are {prompt.ours!r}" if prompt.ours else ""
        raise SleuthError(
            f"prompt {prompt.name!r} is not ours to carry: it is published as {prompt.source}; get that file and run "
            f"sleuth prompts import {prompt.name} FILE{ours}"
        )
    contents = kept.read_bytes()
    if not _is(contents, prompt):
        raise SleuthError(f"{kept}: is no longer the published {prompt.name}; import it again")
    return contents.decode()


def _is(contents: bytes, prompt: PublishedPrompt) -> bool:
    return sha256_of(contents) == prompt.sha256


def _kept(prompt: PublishedPrompt) -> Path:
    return folder() / f"{prompt.name}.txt"


def _our_text(name: str) -> bytes:
    return files("sleuth").joinpath("prompts", f"{name}.txt").read_bytes()


# Nothing in a file is executed.

LONGEST_FILE = 16 * 2**20
"""Bytes of a file of text: a prompt is no book."""

ROWS = 64
"""Rows of a parquet file that are looked into: a prompt that is in one is in all."""


def texts_in(file: Path, place: str | None) -> Iterator[str]:
    """The texts of a file, one after the other. In a row the question is replaced by `place`. Raises SleuthError for a
    file that cannot be read."""
    if file.suffix == ".parquet":
        yield from _texts_of_rows(file, place)
        return
    contents = _contents(file)
    yield contents
    yield contents.strip()
    if file.suffix == ".py":
        yield from _strings_of_source(contents, file)


def _contents(file: Path) -> str:
    try:
        if file.stat().st_size > LONGEST_FILE:
            raise SleuthError(f"{file}: has more than {LONGEST_FILE:,} bytes, and no prompt has")
        return file.read_bytes().decode()
    except UnicodeDecodeError:
        raise SleuthError(f"{file}: is neither UTF-8 text nor .parquet") from None
    except OSError as error:
        raise SleuthError(f"{file}: cannot be read: {error.strerror}") from None


def _strings_of_source(contents: str, file: Path) -> Iterator[str]:
    """The string literals, those that are written in several parts put together."""
    try:
        tree = ast.parse(contents)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SleuthError(f"{file}: is no Python source that could be read") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
            if len(parts) == len(node.values):
                yield "".join(map(str, parts))


def _texts_of_rows(file: Path, place: str | None) -> Iterator[str]:
    """What each message of the `prompt` column says, with the row's question taken out."""
    for row in _rows(file):
        question = str(row.get("question") or "").strip()
        for message in row.get("prompt") or ():
            content = message.get("content") if isinstance(message, dict) else None
            if not isinstance(content, str):
                continue
            yield content
            for asked in (f"{question}?", question):
                before, found, after = content.rpartition(asked)
                if question and found:
                    yield before + (place or "") + after


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(file)
        columns = [name for name in ("prompt", "question") if name in parquet.schema_arrow.names]
        if "prompt" not in columns:
            raise SleuthError(f"{file}: its rows have no column `prompt`")
        yield from next(parquet.iter_batches(ROWS, columns=columns)).to_pylist()
    except (OSError, pa.ArrowException, StopIteration) as error:
        reason = str(error).splitlines()[0] if str(error) else "it has no rows"
        raise SleuthError(f"{file}: no parquet file that could be read: {reason}") from None
