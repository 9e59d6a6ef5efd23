"""`sleuth merge`: converts the shards of another trainer, or a Hugging Face folder, into a Hugging Face folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sleuth.terminal import options
from sleuth.terminal.inputs import require_unset
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.recipe import Recipe


def merge(
    shards: Annotated[
        Path,
        typer.Argument(metavar="SHARDS", help="A verl FSDP actor folder, a Hugging Face folder, or a .pt state dict."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The Hugging Face folder; it must be new or empty.")],
    config: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with config.json and tokenizer, where SHARDS has none.")
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, typer.Option(help="Cast the weights. [default: as saved]")
    ] = None,
    untie: Annotated[
        bool, typer.Option("--untie", help="Write output weights that the model ties to its input, for vLLM on a CPU.")
    ] = False,
    max_shard_size: Annotated[str, typer.Option(metavar="SIZE", help="Largest file to write: 500MB, 4GB.")] = "2GB",
    like: Annotated[
        Path | None,
        typer.Option(metavar="RECIPE", help="Write the protocol of this recipe, and a model card, into OUT."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="With --like: change one value.")
    ] = None,
    dialect: Annotated[
        str | None, typer.Option(metavar="NAME", help="Without --like: the search protocol; needs --prompt.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="NAME", help="Without --like: a prompt's name, or a file; needs --dialect.")
    ] = None,
    prompt_role: Annotated[
        Literal["raw", "user", "system"] | None,
        typer.Option(help="Without --like: the prompt as it is, or as a chat message. [default: raw]"),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Without --like: the longest episode in tokens. [default: at most 4096]")
    ] = None,
    scorer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Without --like: the scorer of answers. [default: strict]")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Convert FSDP shards to a Hugging Face folder.

    SHARDS may be such a folder too, to cast or untie it. Names and shapes are checked against the model's config.json
    before anything is written. With a protocol, `sleuth eval` and `sleuth serve` ask the model as it was trained: the
    one that --like or --dialect gives, or else that of SHARDS, whose card is kept too.
    """
    from sleuth.convert.sources import files_of_weights

    files_of_weights(shards)
    named = {
        "--dialect": dialect,
        "--prompt": prompt,
        "--prompt-role": prompt_role,
        "--context": context,
        "--scorer": scorer,
    }
    recipe = _recipe_like(like, overrides or [], named)

    import torch

    from sleuth.cite.dialect import refines
    from sleuth.convert.merge import config_folder, merge_shards
    from sleuth.convert.protocol import protocol_of_names, protocol_of_recipe
    from sleuth.episodes.protocol import ProtocolCard
    from sleuth.host.cards import prepare_card
    from sleuth.host.disk import shown
    from sleuth.host.memory import parse_size
    from sleuth.learn.models import load_outline
    from sleuth.runs.checkpoints import CARD
    from sleuth.runs.model_card import converted_card
    from sleuth.terminal.progress import progress_bar

    home = config_folder(shards, config)
    protocol, card = None, None
    if recipe is not None:
        protocol = protocol_of_recipe(recipe, load_outline(str(home)))
        prepare_card(recipe.model)
    elif dialect is not None and prompt is not None:
        protocol = protocol_of_names(
            load_outline(str(home)),
            dialect=dialect,
            prompt=prompt,
            prompt_role=prompt_role or "raw",
            context=context,
            scorer=scorer or "strict",
        )
    elif config is None and (protocol := ProtocolCard.read(home)) is not None and (home / CARD).is_file():
        card = (home / CARD).read_text(encoding="utf-8")
    if protocol is not None and card is None:
        card = converted_card(out, source=shards, protocol=protocol, recipe=recipe)
    with progress_bar("merge") as progress:
        merged = merge_shards(
            shards,
            out,
            config=config,
            dtype=getattr(torch, dtype) if dtype else None,
            untie=untie,
            max_file_bytes=parse_size(max_shard_size),
            protocol=protocol,
            card=card,
            progress=progress,
        )
    if as_json:
        carried = {"protocol": protocol.hash} if protocol else {}
        typer.echo(json.dumps({"folder": str(out), **asdict(merged), **carried}))
        return
    files = "1 file" if merged.files == 1 else f"{merged.files} files"
    counts = f"{merged.tensors:,} tensors, {merged.parameters:,} parameters"
    typer.echo(f"{out}: {counts}, {merged.dtype}, {shown(merged.bytes)} in {files}")
    if protocol is not None:
        typer.echo(f"protocol {protocol.hash[:12]}: dialect {protocol.dialect.name}, prompt {protocol.prompt}")
    index = "" if protocol is None or refines(protocol.dialect) else " --index DIR"
    typer.echo(f"Next: sleuth eval {quote(str(out))} --questions FILE{index}")


def _recipe_like(like: Path | None, overrides: list[str], named: dict[str, object]) -> Recipe | None:
    """The recipe whose protocol is written. Raises SleuthError where the options contradict or lack each other."""
    if like is not None:
        from sleuth.recipe import load_recipe

        require_unset(named, "and --like are both given: change the recipe's own value with --set")
        return load_recipe(like, overrides)
    if overrides:
        raise SleuthError(f"--set {overrides[0]}: changes the recipe of --like RECIPE; name that too")
    missing = [option for option in ("--dialect", "--prompt") if named[option] is None]
    given = [option for option, value in named.items() if value is not None]
    if given and missing:
        raise SleuthError(f"{', '.join(given)}: a protocol needs {' and '.join(missing)} too, or --like RECIPE")
    return None
