"""`sleuth learn`: a folder of documents becomes questions, a model trained on them, a certificate and a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from sleuth.terminal.options import NoCode, Overrides, Quiet
from sleuth.terminal.tables import print_notes
from sleuth.types import SleuthError

RECIPE = Path("tiny/folder")
QUESTIONS, TRAINED, FILE = Path("questions"), Path("training"), Path("model.gguf")
BY_RULE = (
    "no --teacher: questions are made by rule, clozes most of them; what a model gains on such questions says little "
    "about those that people ask, on which training by rule has made the reader that ships a little worse"
)
LEAST_TEST = 20
"""Questions to test with, fewer of which certify nothing."""


def learn(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A folder of documents.", show_default=False)],
    home: Annotated[
        Path | None, Option("--run", metavar="DIR", help="Holds all of it. [default: runs/NAME of FOLDER]")
    ] = None,
    recipe: Annotated[
        Path, Option(metavar="RECIPE", help="What is trained; folder_0.6b_single_gpu for a card.")
    ] = RECIPE,
    teacher: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="A file with a [teacher] table: the model that writes questions.", show_default=False
        ),
    ] = None,
    anyway: Annotated[
        bool, Option("--anyway", help="Hand over a model without a clear gain; its card says so.")
    ] = False,
    overrides: Overrides = None,
    no_code: NoCode = False,
    quiet: Quiet = False,
) -> None:
    """Make a model of your own from a folder of documents.

    Indexes them, makes questions and holds out those about a tenth of the documents, trains a model on the others,
    compares it with the model that it began as, and writes the file to take away. Each step is a verb of its own:
    ask, annotate questions, train, certify, export. The same command goes on after a stop.
    """
    from sleuth.read.verbs import questions
    from sleuth.recipe import load_recipe
    from sleuth.retrieval.folder import update_folder

    home = home or Path("runs") / folder.resolve().name
    settings = [*settings_of(recipe, home), *(overrides or ())]
    base = load_recipe(recipe, settings).model  # a wrong --set ends it here
    update_folder(folder, home, lambda line: print_notes([] if quiet else [line]))
    print_notes([] if teacher else [BY_RULE])
    questions(home, home / QUESTIONS, teacher=teacher)
    card = json.loads((home / QUESTIONS / "card.json").read_bytes())
    if card["rows"]["test"] < LEAST_TEST:
        raise SleuthError(
            f"{folder}: {card['rows']['test']} questions to test with, and fewer than {LEAST_TEST} certify nothing: "
            "add documents, or let a --teacher write questions"
        )

    from sleuth.cli.certify import certify
    from sleuth.cli.train import train
    from sleuth.runs.checkpoints import latest_checkpoint

    train(recipe, settings, home / TRAINED, quiet=quiet)
    trained = latest_checkpoint(home / TRAINED / "checkpoints")
    assert trained is not None  # a run that ends has one
    test = home / QUESTIONS / "test.jsonl"
    certify(str(trained), test, base=base, index=home / "index", home=home, anyway=anyway)
    typer.echo(f"Ask it:        sleuth ask {folder} --run {home}")
    if find_spec("gguf") is None:
        typer.echo(
            'To take away:  pip install "sleuth[gguf]", then ' + f"sleuth export {trained} --gguf --out {home / FILE}"
        )
        return

    from sleuth.cli.convert import export

    export(trained, gguf=True, out=home / FILE)


def settings_of(recipe: Path, home: Path) -> list[str]:
    """The overrides that put a home in the place of `runs/folder`."""
    from sleuth.recipe import load_recipe
    from sleuth.recipe.shipped import HOME

    table = load_recipe(recipe).model_dump(mode="json", exclude={"resolved_from"})
    return [f"{key}={json.dumps(str(home / place))}" for key, place in _places(table, "", f"{HOME}/")]


def _places(value: Any, key: str, begins: str) -> Iterator[tuple[str, str]]:
    """The keys whose values are in the home of a recipe for a folder, and where there."""
    if isinstance(value, str) and value.startswith(begins):
        yield key, value.removeprefix(begins)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from _places(inner, f"{key}.{name}".removeprefix("."), begins)
