"""Options that several verbs have: how a checkpoint is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Questions = Annotated[Path | None, typer.Option(help="Questions: .jsonl, .jsonl.gz or .parquet.")]
Index = Annotated[Path | None, typer.Option(help="The index to search; without one, searches find nothing.")]
Dialect = Annotated[str | None, typer.Option(help="Search protocol, for a model that carries none, or to try another.")]
Prompt = Annotated[str | None, typer.Option(help="A prompt by its name, or a file, likewise.")]
PromptRole = Annotated[
    Literal["raw", "user", "system"] | None,
    typer.Option(help="The prompt as it is, or as a message of the chat template, likewise."),
]
ForcedSearch = Annotated[
    bool | None, typer.Option(help="Open the first search for the model. [default: as it was trained]")
]
ContextTokens = Annotated[
    int | None, typer.Option(min=1, help="Longest episode in tokens. [default: what the model was trained with]")
]
Precision = Annotated[
    Literal["float32", "bfloat16"] | None,
    typer.Option(help="Precision. [default: float32 on a CPU, what the weights are stored in on a GPU]"),
]
FiguresAsJson = Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")]
