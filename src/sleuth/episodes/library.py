"""Prompts by name: our own, and published ones that the user has imported into the data folder.

The texts of published prompts belong to others and are not included; their hashes are of UTF-8 bytes with the original
placeholder for the question. Imported files are only searched for texts; nothing in them is executed.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from sleuth.host.atomic import replacing_file
from sleuth.types import SleuthError

MAX_FILE_BYTES = 16 * 2**20
"""Limit on text files to search for a prompt."""
SEARCHED_ROWS = 64
"""Rows of a parquet file to search: a prompt is in all rows or none."""


QUESTION = "{question}"
"""The placeholder for the question in a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPrompt:
    """A prompt that can be imported. `role`: its authors' system message, user message, or `hint` after an invalid
    action. `place`: its placeholder for the question, if any. `ours`: the name of our own prompt for the same purpose.
    """

    name: str
    role: Literal["system", "user", "hint"]
    place: str | None
    source: str
    sha256: str
    ours: str | None


PUBLISHED: dict[str, PublishedPrompt] = {
    prompt.name: prompt
    for prompt in (
        PublishedPrompt(
            name="p1_basic_w_ex",
            role="system",
            place=None,
            source="QWEN3_0_6B_TEMPLATE in evaluation_research/flashrag/search_r1/templates.py "
            "of github.com/GaurisankarJ/reason_over_search, branch m5.5",
            sha256="7790d9749b3e11205093811ba26cbf30deb27e0ba11ffec600dba39f6714258f",
            ours="research_example",
        ),
        PublishedPrompt(
            name="p3_decide_no_ex",
            role="system",
            place=None,
            source="P3_DECIDE_NO_EX_TEMPLATE in evaluation_research/flashrag/search_r1/templates.py "
            "of github.com/GaurisankarJ/reason_over_search, branch m5.5",
            sha256="60190fad7c9af817907a9a90d25c420c00bdcb2e7f9060e396d2113f1fe57cb0",
            ours="research_rules",
        ),
        PublishedPrompt(
            name="search_r1_base",
            role="user",
            place="{prompt}",
            source="the rows of Search-R1's data (PeterJinGo/nq_hotpotqa_train), or SEARCH_R1_TEMPLATE in "
            "evaluation_research/flashrag/search_r1/templates.py "
            "of github.com/GaurisankarJ/reason_over_search, branch m5.5",
            sha256="9377ef4bcfe00cea7cafe7e66451a2cf790de33669eac2b8a175a7730926c965",
            ours="search_example",
        ),
        PublishedPrompt(
            name="search_r1_retry",
            role="hint",
            place=None,
            source="search_r1/llm_agent/generation.py of github.com/PeterGriffinJin/Search-R1",
            sha256="2b4e05101bcbf539265251f74e7730289cf105d94dff9a05193061e9b0f050ba",
            ours=None,
        ),
    )
}


def sha256_of(contents: bytes) -> str:
    """The hex digest, as in `PublishedPrompt.sha256`."""
    return hashlib.sha256(contents).hexdigest()


@cache
def place_of(text: str) -> str:
    """A prompt's placeholder for the question: that of a published prompt, else `{question}`."""
    digest = sha256_of(text.encode())
    places = (prompt.place for prompt in PUBLISHED.values() if prompt.sha256 == digest)
    return next(places, None) or QUESTION


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPrompt:
    """A prompt that a recipe can name. `text` is None for a published one that is not imported."""

    name: str
    text: str | None
    published: PublishedPrompt | None = None


def folder() -> Path:
    """The folder of imported prompts: `sleuth/prompts` in `$XDG_DATA_HOME`, or else in `~/.local/share`."""
    home = os.environ.get("XDG_DATA_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".local" / "share") / "sleuth" / "prompts"


def list_prompts() -> list[ListedPrompt]:
    """Our own prompts, then the published ones."""
    ours = [ListedPrompt(name=name, text=_our_text(name).decode()) for name in our_names()]
    return ours + [
        ListedPrompt(
            name=prompt.name, text=read_prompt(prompt.name) if stored_file(prompt).exists() else None, published=prompt
        )
        for prompt in PUBLISHED.values()
    ]


def our_names() -> list[str]:
    """The names of our own prompts."""
    texts = (file.name for file in files("sleuth.episodes").joinpath("prompts").iterdir() if file.name.endswith(".txt"))
    return sorted(name.removesuffix(".txt") for name in texts)


def read_prompt(prompt: str) -> str:
    """The text of a prompt by its name or path, byte for byte, without newline translation."""
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
    """Raises SleuthError unless the prompt fits its `role`: a system message, which the question follows as a user
    message, has no placeholder for it, and any other has one."""
    place = place_of(text)
    if name in PUBLISHED and PUBLISHED[name].role == "hint":
        raise SleuthError(f"prompt = {name!r}: this text is a hint after an invalid action: set it as hint")
    if role == "system" and place in text:
        raise SleuthError(
            f"{name}: the prompt has a {place}, but after a system message the question is a user message; use one "
            'without it, or set prompt_role = "user"'
        )
    if role != "system" and place not in text:
        raise SleuthError(
            f"{name}: the prompt has no {place}, so the question would never be asked; if it is meant as a system "
            'message, set prompt_role = "system"'
        )


def import_prompt(name: str, file: Path) -> str:
    """The text of the published prompt `name`, imported from a file that contains it. Raises SleuthError for an unknown
    name, or if nothing there consists of exactly these bytes."""
    if name not in PUBLISHED:
        raise SleuthError(
            f"{name}: no published prompt of that name; there are {', '.join(PUBLISHED)}. "
            "One of your own needs no import: a recipe names it by its path"
        )
    prompt = PUBLISHED[name]
    text = next((text for text in _texts_in(file, prompt.place) if sha256_of(text.encode()) == prompt.sha256), None)
    if text is None:
        raise SleuthError(
            f"{file}: does not hold {prompt.name}: nothing in it has the sha256 {prompt.sha256[:12]}; "
            f"it is published as {prompt.source}"
        )
    stored = stored_file(prompt)
    stored.parent.mkdir(parents=True, exist_ok=True)
    with replacing_file(stored) as partial:
        partial.write_bytes(text.encode())
    return text


def stored_file(prompt: PublishedPrompt) -> Path:
    """The path of the imported copy."""
    return folder() / f"{prompt.name}.txt"


def _published_text(prompt: PublishedPrompt) -> str:
    stored = stored_file(prompt)
    if not stored.is_file():
        ours = f"; our own words for it are {prompt.ours!r}" if prompt.ours else ""
        raise SleuthError(
            f"prompt {prompt.name!r} is not ours to carry: it is published as {prompt.source}; get that file and run "
            f"sleuth prompts import {prompt.name} FILE{ours}"
        )
    contents = stored.read_bytes()
    if sha256_of(contents) != prompt.sha256:
        raise SleuthError(f"{stored}: is no longer the published {prompt.name}; import it again")
    return contents.decode()


def _our_text(name: str) -> bytes:
    return files("sleuth.episodes").joinpath("prompts", f"{name}.txt").read_bytes()


def _texts_in(file: Path, place: str | None) -> Iterator[str]:
    """Yields the texts of a file: as it is, without white space around it, and the strings of a Python source; in
    parquet rows the question is replaced by `place`. Raises SleuthError if the file cannot be read."""
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
        if file.stat().st_size > MAX_FILE_BYTES:
            raise SleuthError(f"{file}: has more than {MAX_FILE_BYTES:,} bytes, and no prompt has")
        return file.read_bytes().decode()
    except UnicodeDecodeError:
        raise SleuthError(f"{file}: is neither UTF-8 text nor .parquet") from None
    except OSError as error:
        raise SleuthError(f"{file}: cannot be read: {error.strerror}") from None


def _strings_of_source(contents: str, file: Path) -> Iterator[str]:
    """Yields the string literals, with f-strings without expressions joined."""
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
    """Yields the messages of the `prompt` column, as they are and with the row's question replaced by `place`."""
    for row in _rows(file):
        question = str(row.get("question") or "").strip()
        for message in row.get("prompt") or ():
            content = message.get("content") if isinstance(message, dict) else None
            if not isinstance(content, str):
                continue
            yield content
            for variant in (f"{question}?", question):
                before, match, after = content.rpartition(variant)
                if question and match:
                    yield before + (place or "") + after


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(file)
        columns = [name for name in ("prompt", "question") if name in parquet.schema_arrow.names]
        if "prompt" not in columns:
            raise SleuthError(f"{file}: its rows have no column `prompt`")
        yield from next(parquet.iter_batches(SEARCHED_ROWS, columns=columns)).to_pylist()
    except (OSError, pa.ArrowException, StopIteration) as error:
        reason = str(error).splitlines()[0] if str(error) else "it has no rows"
        raise SleuthError(f"{file}: no parquet file that could be read: {reason}") from None
