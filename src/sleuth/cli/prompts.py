"""`sleuth prompts`: lists the prompts that a recipe can name, and imports published ones."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.terminal.options import AsJson

if TYPE_CHECKING:
    from sleuth.episodes.library import ListedPrompt

FIRST_LINE = 33
"""Characters of a prompt's first line to show, so that a row has 80."""
prompts = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@prompts.callback()
def show(context: typer.Context, as_json: AsJson = False) -> None:
    """List or import the prompts that a recipe can name.

    Ours come with Sleuth; of a published one, the user brings the text.
    """
    from sleuth.episodes.library import list_prompts

    if context.invoked_subcommand is not None:
        return
    found = list_prompts()
    if as_json:
        typer.echo(json.dumps({"prompts": [_row(prompt) for prompt in found]}))
    else:
        _print_table(found)


@prompts.command("import")
def import_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A published prompt, as `sleuth prompts` lists it.")],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The file that contains it: a text, a Python source or a .parquet of rows."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Import a published prompt from a file that you have.

    Its sha256 must be the known one.
    """
    from sleuth.episodes.library import PUBLISHED, import_prompt, stored_file

    text = import_prompt(name, file)
    prompt = PUBLISHED[name]
    stored = stored_file(prompt)
    if as_json:
        kept = {"name": name, "file": str(stored), "sha256": prompt.sha256, "role": prompt.role}
        typer.echo(json.dumps({**kept, "found": str(file)}))
        return
    key = f'hint = "{name}"' if prompt.role == "hint" else f'prompt = "{name}", prompt_role = "{prompt.role}"'
    typer.echo(
        f"{stored}: {len(text.encode())} bytes, sha256 {prompt.sha256[:12]}\nIn a recipe: env = {{ {key}, ... }}"
    )


def _row(prompt: ListedPrompt) -> dict[str, object]:
    from sleuth.episodes.library import sha256_of

    published = prompt.published
    return {
        "name": prompt.name,
        "origin": "published" if published else "ours",
        "role": published.role if published else None,
        "there": prompt.text is not None,
        "bytes": len(prompt.text.encode()) if prompt.text is not None else None,
        "sha256": published.sha256 if published else sha256_of((prompt.text or "").encode()),
        "source": published.source if published else None,
        "ours": published.ours if published else None,
    }


def _print_table(found: list[ListedPrompt]) -> None:
    """Prints the names, where their texts are, and how to get the missing ones."""
    for prompt in found:
        row = _row(prompt)
        size = f"{row['bytes']:>5,} bytes" if row["there"] else "not imported"
        first = (prompt.text or "").strip().split("\n")[0]
        kind = f"published, {row['role']}" if prompt.published else shorten(first, FIRST_LINE, placeholder=" ...")
        typer.echo(f"{prompt.name:<18} {size:>12}  {str(row['sha256'])[:12]}  {kind}")
    for prompt in found:
        if prompt.published is not None and prompt.text is None:
            alternative = f" (our own words for it: {prompt.published.ours})" if prompt.published.ours else ""
            typer.echo(f"\n{prompt.name}: published as {prompt.published.source}{alternative}")
    if any(prompt.text is None for prompt in found):
        typer.echo("\nGet the file and run: sleuth prompts import NAME FILE")
