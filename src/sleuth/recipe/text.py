"""Texts to read, to continue and to think about: `[stage.data]` of kind "text" or "thoughts"."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, PositiveInt, ValidationError

from sleuth.recipe.strict import FilePath, StrictModel, combination
from sleuth.types import SleuthError

Part = Literal["sft", "rl", "held_out"]
"""What a document is for; which, its origin alone decides."""


class DocumentsRecipe(StrictModel):
    """Which documents to read."""

    texts: FilePath
    """A .txt, .jsonl, .jsonl.gz or .parquet file, or a folder of them, here or on the hub: hf://OWNER/NAME/FILE."""
    part: Part | None = None
    """Only documents of this part: of a thousand origins about 500 are "sft", 438 "rl" and 62 "held_out", and none is
    in two. Absent: all of them, for files that were divided before."""
    limit: PositiveInt = 32_768
    """Take only so many, the first ones."""


class TextRecipe(DocumentsRecipe):
    """Documents, cut into prefixes and the suffixes that follow them."""

    kind: Literal["text"]
    prefix_tokens: PositiveInt = 384
    """Tokens of a prefix; where the data says where to cut, at most so many, the last ones."""
    suffix_tokens: PositiveInt = 128
    """Tokens of a suffix; where the data says where to cut, at most so many, the first ones."""
    least_tokens: PositiveInt | None = None
    """Shorter documents are left out; absent: those that do not fill a prefix and a suffix."""
    windows: PositiveInt = 1
    """How many prefixes with their suffixes to take of a document at most, one behind the other."""

    @combination
    def _long_enough(self) -> Iterator[str]:
        window = self.prefix_tokens + self.suffix_tokens
        if self.least_tokens is not None and self.least_tokens < window:
            yield (f"least_tokens = {self.least_tokens} is less than prefix_tokens + suffix_tokens = {window}")


def text_recipe(texts: Path, *, tokens: int, part: str | None, limit: int) -> TextRecipe:
    """The first `tokens` tokens of each document, as the command line asks for them. Raises SleuthError for a part that
    there is not."""
    prefix = tokens - max(1, tokens // 4)
    asked = {"kind": "text", "texts": texts, "limit": limit, "prefix_tokens": prefix, "suffix_tokens": tokens - prefix}
    try:
        return TextRecipe.model_validate(asked | ({"part": part} if part is not None else {}))
    except ValidationError:
        raise SleuthError(f"--part {part}: should be {', '.join(get_args(Part))}") from None


class ThoughtTextRecipe(DocumentsRecipe):
    """Documents with the thoughts of somebody who read them, between the tags of a thought (arXiv:2601.21343)."""

    kind: Literal["thoughts"]
    row_tokens: PositiveInt = 768
    """Longer rows end here; a thought that does not fit whole is left out with all behind it."""
    empty: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """In this share of the rows nothing stands between the tags: the tags are not taught there, what is behind them is.
    A gain is measured from an empty thought, and a model that never saw one is at a loss behind it."""


class PlacesRecipe(DocumentsRecipe):
    """The places of documents at which somebody thought: what stands before one, other thoughts there included, and the
    text behind it, without any. Of each document the first place that has enough on both sides."""

    kind: Literal["places"]
    prefix_tokens: PositiveInt = 384
    """Tokens before a place, at most so many, the last ones."""
    suffix_tokens: PositiveInt = 128
    """Tokens behind it, at most so many, the first ones."""
    least_before: PositiveInt = 1
    """A place with fewer tokens of text before it is passed over."""
    least_behind: PositiveInt = 1
    """Likewise, behind it."""


class HeldOutThoughtsRecipe(DocumentsRecipe):
    """Documents with thoughts that are never trained: `[stage.held_out]`."""

    limit: PositiveInt = 512
    """Take only so many, the first ones."""
    row_tokens: PositiveInt = 768
    """Longer rows end here."""
    suffix_tokens: PositiveInt = 128
    """Tokens behind a thought that it may make likelier, at most so many."""
