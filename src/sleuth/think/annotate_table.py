"""`kind = "annotate"`: a stage that lets a teacher make the data of later stages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from sleuth.recipe.judges import TeacherRecipe
from sleuth.recipe.stage import StageFields
from sleuth.recipe.strict import FilePath, Name, combination
from sleuth.recipe.text import DocumentsRecipe


class AnnotateRecipe(DocumentsRecipe, StageFields):
    """Lets a teacher insert thoughts into texts, as `sleuth annotate thoughts` does, if the file of them does not
    exist. Later stages may read that file: it is looked for when they begin. A run stops here with the reason if the
    teacher is not there; its answers are kept, and the same command goes on."""

    kind: Literal["annotate"]
    name: Name
    """Name of the stage, such as "thoughts"."""
    out: FilePath
    """The rows to write, a .parquet file. Runs that name the same file share it; an existing one is left as it is."""
    tokens: Annotated[int, Field(ge=8)] = 512
    """Tokens of each document that the teacher reads, from its beginning."""
    limit: Annotated[int, Field(ge=1)] = 8_192
    """Annotate only the first `limit` documents."""
    teacher: TeacherRecipe
    """The model that writes the thoughts."""
    gated: bool = True
    """Whether to leave out sources whose thoughts do not help the model that the stage starts from."""
    max_missing_fraction: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Largest share of texts that may stay without thoughts, because the teacher failed or answered in no valid form.
    With more the run stops, and the same command asks for those again."""

    def makes(self) -> tuple[Path, ...]:
        """The file of thoughts."""
        return (self.out,)

    @combination
    def _out_is_written(self) -> Iterator[str]:
        if self.out.suffix != ".parquet":
            yield f'out = "{self.out}": should end in .parquet'
        if self.out == self.texts:
            yield f'out = "{self.out}" is the file of the texts; name another one'
