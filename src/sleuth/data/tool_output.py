"""The output of a search tool: snippets with ids in a text, `<snippet id=a1>text</snippet>` or `<webpage id=b2>`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sleuth.types import Passage

SNIPPET = re.compile(
    r"<(?P<tag>snippet|webpage)\b(?P<attributes>[^<>]*)>(?P<text>.*?)(?=</(?P=tag)>|<(?:snippet|webpage)\b|\Z)",
    re.DOTALL | re.IGNORECASE,
)
ID = re.compile(r"\bid\s*=\s*[\"']?([^\s\"']+)")
MARKS = re.compile(r"</?(?:snippet|webpage|tool_output)\b[^<>]*>", re.IGNORECASE)


def snippets_of(output: str) -> tuple[Passage, ...]:
    """The snippets of a tool output, in order; of one that was cut off, what is left. What stands twice under one id is
    one snippet, both texts in it; one without an id cannot be cited, and is none."""
    found: dict[str, list[str]] = {}
    for match in SNIPPET.finditer(output):
        id_ = ID.search(match["attributes"])
        if id_ is not None and match["text"].strip():
            found.setdefault(id_[1], []).append(match["text"].strip())
    return tuple(Passage(id=id_, title="", text="\n".join(texts)) for id_, texts in found.items())


def tool_output_of(snippets: Sequence[Passage]) -> str:
    """Passages as a tool output, `<snippet id=a1> Title | text</snippet>`: `snippets_of` gives them back, each with its
    title before its text. What would read as a mark of ours is taken out of them."""
    return "\n".join(f"<snippet id={snippet.id}> {_told(snippet)}</snippet>" for snippet in snippets)


def _told(snippet: Passage) -> str:
    parts = (MARKS.sub("", part).strip() for part in (snippet.title, snippet.text))
    return " | ".join(part for part in parts if part)
