"""`sleuth learn`: a folder of documents becomes questions, a model trained on them, a certificate and a file."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from sleuth.cli.app import FAILED
from sleuth.cli.ask import note_of_language
from sleuth.host.atomic import write_text
from sleuth.host.checksums import file_sha256
from sleuth.terminal.inputs import read_folder
from sleuth.terminal.options import AsJson, NoCode, Overrides, Quiet
from sleuth.terminal.tables import count_of, print_notes, show
from sleuth.types import SleuthError

RECIPE = Path("tiny/folder")
LEARNING = {
    "documents": "Read the documents",
    "questions": "Make questions of them",
    "training": "Train a model on most of the questions",
    "certificate": "Compare it with its base on the others",
    "file": "Write the file to take away",
}
"""The steps, in their order."""
BY_RULE = (
    "no --teacher, so questions are made by rule, most of them sentences with a gap; what a model gains on these says "
    "little about the questions that people ask"
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
    as_json: AsJson = False,
) -> None:
    """Make a model of your own from a folder of documents.

    Indexes them, makes questions and holds out those about a tenth of the documents, trains a model on the others,
    compares it with the model that it began as, and writes the file to take away. Each step is a verb of its own:
    ask, annotate questions, train, certify, export. The same command goes on after a stop, and `sleuth watch` shows how
    far it is.
    """
    from sleuth.data.rows import read_rows
    from sleuth.host.model_path import read_object
    from sleuth.read.verbs import questions
    from sleuth.recipe import load_recipe
    from sleuth.recipe.shipped import CERTIFICATE, GGUF, INDEX, QUESTIONS, TRAINING, home_of

    if not folder.is_dir():
        raise SleuthError(f"{folder}: no such folder")
    home = home or home_of(folder)
    if not (places := settings_of(recipe, home)):
        raise SleuthError(f"--recipe {recipe}: reads no folder's questions; tiny/folder and folder_0.6b_single_gpu do")
    settings = [*places, *(overrides or ())]
    base = load_recipe(recipe, settings).model  # a wrong --set ends it here
    steps = _Steps(home, quiet=quiet, as_json=as_json)
    with steps("documents"):
        documents = read_folder(folder, home, quiet=quiet).documents.values()
        read = [one.passages for one in documents if one.passages]
        note_of_language(home, base)
        typer.echo(f"{home / INDEX}: {count_of(sum(read), 'passage')} of {count_of(len(read), 'document')}")
    with steps("questions"):
        if teacher is None and not quiet:
            print_notes([BY_RULE])
        questions(home, home / QUESTIONS, teacher=teacher)
    files = {part: home / QUESTIONS / f"{part}.jsonl" for part in ("train", "test")}
    made = {part: Counter(row["type"] for _, row in read_rows(file)) for part, file in files.items()}
    if made["test"].total() < LEAST_TEST:
        raise SleuthError(
            f"{folder}: {made['test'].total()} questions to test with, and fewer than {LEAST_TEST} certify nothing: "
            "add documents, or let a --teacher write questions"
        )
    steps.require_same(home / TRAINING, files["train"])

    from sleuth.cli.certify import certify
    from sleuth.cli.convert import export
    from sleuth.cli.train import train
    from sleuth.runs.checkpoints import latest_checkpoint

    with steps("training"):
        train(recipe, settings, home / TRAINING, quiet=quiet)
    trained, file, passed = latest_checkpoint(home / TRAINING / "checkpoints"), home / GGUF, True
    assert trained is not None  # a run that ends has one
    with steps("certificate"):
        try:
            certify(str(trained), files["test"], base=base, index=home / INDEX, home=home, anyway=anyway)
        except typer.Exit:  # it has said why
            passed = False
    if passed:
        with steps("file"):
            if find_spec("gguf") is not None:
                for ending in (".gguf", ".protocol.json", ".md"):  # an earlier command's, which export does not replace
                    file.with_suffix(ending).unlink(missing_ok=True)
                export(trained, gguf=True, out=file)
            else:
                typer.echo(f'pip install "sleuth[gguf]", then sleuth export {trained} --gguf --out {file}')
    certificate = read_object(home / CERTIFICATE)
    record = {
        **{"home": str(home), "questions": made, "model": str(trained), "handed_over": passed},
        "certificate": {key: certificate[key] for key in ("certificate", "passes", "verdict", "gain")},
        "file": str(file) if passed and file.is_file() else None,
    }
    steps.write(**record)
    model = "it" if passed else "the reader that ships"
    named = f" --model {trained}" if passed and not certificate["passes"] else ""  # which would not be asked by itself
    show(as_json, record | {"seconds": steps.seconds}, f"Ask {model}:  sleuth ask {folder} --run {home}{named}")
    if not passed:
        raise typer.Exit(FAILED)


class _Steps:
    """The steps under their headings, with their `seconds`; in the home too, for `sleuth watch`."""

    def __init__(self, home: Path, *, quiet: bool, as_json: bool) -> None:
        from sleuth.host.model_path import read_object
        from sleuth.recipe.shipped import STEPS

        self.seconds: dict[str, float] = {}
        self._home, self._file, self._quiet, self._as_json = home, home / STEPS, quiet, as_json
        self._trained_on = read_object(self._file).get("trained_on") if self._file.is_file() else None

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """One step, which no other process takes in this home at the same time. What it prints is no result if there
        is JSON to come, and with `quiet` only the certificate is one."""
        from sleuth.runs.progress import quiet
        from sleuth.runs.run_folder import RunLock

        began, silent = time.monotonic(), self._quiet and (self._as_json or name != "certificate")
        number = [*LEARNING].index(name) + 1
        out = StringIO() if silent else sys.stderr if self._as_json else sys.stdout
        with quiet(self._quiet), redirect_stdout(out):
            if not self._quiet:
                typer.echo(f"\n{number} of {len(LEARNING)}. {LEARNING[name]}", err=True)
            lock = None
            if number > 1:  # before, the home has to be empty
                lock = RunLock(self._home)
                self.write(now=name)
            try:
                yield
            finally:
                if lock is not None:
                    lock.release()
        self.seconds[name] = round(time.monotonic() - began, 1)

    def require_same(self, training: Path, questions: Path) -> None:
        """Raises SleuthError for a training that began with other questions, some of which may be in the test now."""
        digest = file_sha256(questions)
        if training.is_dir() and self._trained_on not in (None, digest):
            raise SleuthError(
                f"{training}: trained on other questions than {questions} has now, since documents or the teacher have "
                "changed; remove that folder to train anew, or name another home with --run"
            )
        self._trained_on = digest

    def write(self, **more: Any) -> None:
        """Writes how far it is."""
        steps = [{"name": name, "about": about, "seconds": self.seconds.get(name)} for name, about in LEARNING.items()]
        record = {"steps": steps, "trained_on": self._trained_on, **more}
        write_text(self._file, json.dumps(record, indent=1) + "\n")


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
