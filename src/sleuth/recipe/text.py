"""Documents to train on, to continue and to think about: `[stage.data]` of kind "text", "thoughts" or "places"."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from pydantic import PositiveInt, ValidationError

from sleuth import family
from sleuth.recipe.data import DataFields, Fed, Lengths
from sleuth.recipe.strict import FilePath, StrictModel, combination
from sleuth.types import SleuthError, Task

Part = Literal["sft", "rl", "held_out"]
"""The split of a document, decided by its origin alone."""


class DocumentsRecipe(StrictModel):
    """Documents of a file or folder."""

    named: ClassVar[Mapping[str, str]] = {"texts": "texts"}
    texts: FilePath
    """A .txt, .jsonl, .jsonl.gz or .parquet file, or a folder of them, here or on the hub: hf://OWNER/NAME/FILE."""
    part: Part | None = None
    """Use only documents of this split. Of a thousand origins about 500 are "sft", 438 "rl" and 62 "held_out"; each
    origin is in one split. Absent: all documents, for files that are already split."""
    limit: PositiveInt = 32_768
    """Use only the first `limit` documents."""


class ThoughtPlaces(DocumentsRecipe, DataFields):
    """Documents in which the policy thinks."""

    if TYPE_CHECKING:
        prefix_tokens: Any
        suffix_tokens: Any
        """Set by each class."""

    def tasks(self, tokenizer: Any) -> list[Task]:
        if tokenizer is None:
            next(family.load_named("sleuth.data.documents:read_documents")(self.texts), None)
            return []
        return self.cut(tokenizer)

    @abstractmethod
    def cut(self, tokenizer: Any) -> list[Task]:
        """The texts as tasks of continuing them."""


class TextRecipe(ThoughtPlaces):
    """Documents, cut into prefixes and their suffixes."""

    feeds: ClassVar[Fed] = ("rows", "episodes", "thoughts")
    kind: Literal["text"]
    prefix_tokens: PositiveInt = 384
    """Tokens of a prefix. Where the data gives the place to cut: the last tokens before it, at most this number."""
    suffix_tokens: PositiveInt = 128
    """Tokens of a suffix. Where the data gives the place to cut: the first tokens after it, at most this number."""
    least_tokens: PositiveInt | None = None
    """Minimum length of a document in tokens; absent: prefix_tokens + suffix_tokens."""
    windows: PositiveInt = 1
    """Maximum number of consecutive prefixes, each with its suffix, of one document."""

    def row_lengths(self, recipe: Any, index: int) -> Lengths:
        return Lengths.of_text(0, self.prefix_tokens + self.suffix_tokens)

    def cut(self, tokenizer: Any) -> list[Task]:
        return family.load_named("sleuth.data.excerpts:excerpts_of")(self, tokenizer).tasks

    @combination
    def _long_enough(self) -> Iterator[str]:
        window = self.prefix_tokens + self.suffix_tokens
        if self.least_tokens is not None and self.least_tokens < window:
            yield f"least_tokens = {self.least_tokens} is less than prefix_tokens + suffix_tokens = {window}"


def text_recipe(texts: Path, *, tokens: int, part: str | None, limit: int) -> TextRecipe:
    """The table for the first `tokens` tokens of each document. Raises SleuthError for an unknown `part`."""
    prefix = tokens - max(1, tokens // 4)
    table = {"kind": "text", "texts": texts, "limit": limit, "prefix_tokens": prefix, "suffix_tokens": tokens - prefix}
    try:
        return TextRecipe.model_validate(table | ({"part": part} if part is not None else {}))
    except ValidationError:
        raise SleuthError(f"--part {part}: should be {', '.join(get_args(Part))}") from None
