"""`sleuth init`: a folder with data, an index and a recipe that trains at once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from sleuth.terminal.inputs import naming, read_folder
from sleuth.terminal.tables import print_notes
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.episodes.protocol import ProtocolCard
    from sleuth.recipe.starter import Taught

OF_QUESTIONS = {"question": "question", "answer": "golden_answers"}
OF_CORPUS = {"text": "text", "title": "title"}
"""What `--column` may name, and what it is called in our layout."""
CORPUS = "corpus.jsonl"


def init(
    folder: Annotated[Path, Argument(metavar="DIR", help="The folder to write: new, or empty.")],
    corpus: Annotated[
        Path,
        Option(
            metavar="FILE",
            help="Passages: .jsonl, .parquet, .csv, .tsv, .json, a folder of documents, or hf://OWNER/NAME/FILE.",
            show_default=False,
        ),
    ],
    questions: Annotated[
        Path,
        Option(
            metavar="FILE",
            help="Questions with answers: .jsonl, .parquet, .csv, .tsv or .json, or hf://OWNER/NAME/FILE.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str | None, Option(metavar="MODEL", help="A model folder or a hub id. [default: a tiny model that ships]")
    ] = None,
    columns: Annotated[
        list[str] | None,
        Option("--column", metavar="NAME=COLUMN", help="What a column is called in FILE: question=prompt."),
    ] = None,
    seed: Annotated[int, Option(help="Another seed holds out other rows.")] = 0,
) -> None:
    """Write a recipe that trains a model to search your corpus.

    Converts what it is given, holds out a tenth of the questions as a test set, builds a search index, checks all of it
    and prints the next command. Recipes that refine or think, to be changed: `sleuth recipes`.
    """
    from sleuth.host.model_path import require_model
    from sleuth.recipe.shipped import find_model
    from sleuth.recipe.starter import READER, starter_recipe

    _require_new(folder)
    names = _columns(columns or [])
    if model is not None:
        require_model(find_model(model))
    begins = model or READER
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".sleuth-init-", dir=folder.parent) as place:
        work = Path(place) / "whole"
        work.mkdir()
        lines = _write_data(work, corpus, questions, names, seed)
        taught = _taught(find_model(begins), folder, work)
        (work / "recipe.toml").write_text(starter_recipe(folder, begins, taught), encoding="utf-8")
        os.replace(work, folder)
    for line in lines:
        typer.echo(f"{folder}/{line}")
    typer.echo(f"{folder}/{_check(folder)}")
    typer.echo(
        f"Next: sleuth train {quote(str(folder / 'recipe.toml'))} --run {quote(f'runs/{folder.resolve().name}')}"
    )


def _require_new(folder: Path) -> None:
    if folder.resolve() == Path.cwd():
        raise SleuthError(f"{folder}: is the current folder; name a new one in it")
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if not is_empty and (folder.exists() or folder.is_symlink()):
        raise SleuthError(f"{folder}: exists and is not empty; name a new folder (nothing was changed)")


def _columns(given: list[str]) -> dict[str, str]:
    """`{"question": "prompt"}` of `question=prompt`."""
    names: dict[str, str] = {}
    for text in given:
        name, _, column = text.partition("=")
        if name not in (*OF_QUESTIONS, *OF_CORPUS) or not column:
            known = ", ".join((*OF_QUESTIONS, *OF_CORPUS))
            raise SleuthError(f"--column {text}: should be NAME=COLUMN, such as question=prompt; names are {known}")
        names[name] = column
    return names


def _write_data(work: Path, corpus: Path, questions: Path, names: Mapping[str, str], seed: int) -> list[str]:
    """Writes `train.jsonl`, `test.jsonl`, `corpus.jsonl` and `index` into `work`. Returns a line for each."""
    from sleuth.data.held_out import row_of, split_questions, write_rows
    from sleuth.data.questions import load_questions
    from sleuth.retrieval.bm25 import build_index
    from sleuth.retrieval.corpus import corpus_file, write_corpus
    from sleuth.runs.progress import row_counter

    in_corpus = {OF_CORPUS[name]: column for name, column in names.items() if name in OF_CORPUS}
    in_questions = {OF_QUESTIONS[name]: column for name, column in names.items() if name in OF_QUESTIONS}
    tasks = load_questions(questions, names=in_questions)
    with naming(questions):
        parts = split_questions(tasks, seed)
    if (file := corpus_file(corpus)).is_dir():  # before the rows: a folder's record wants an empty home
        read_folder(file, work, names=in_corpus, indexed=False)
    else:
        write_corpus(file, work / CORPUS, in_corpus, row_counter("corpus"))
    lines = []
    for name, part in zip(("train.jsonl", "test.jsonl"), parts, strict=True):
        write_rows(work / name, map(row_of, part))
        lines.append(f"{name}: {len(part):,} questions")
    card = build_index(work / CORPUS, work / "index", row_counter("index"))
    return [*lines, f"index: {card.count:,} passages of {CORPUS}, {card.kind}"]


def _taught(model: str, folder: Path, work: Path) -> Taught:
    """What the config of a model and the `protocol.json` of its folder say of how to train it further."""
    from sleuth.answers.scorers.scorer import STRICT
    from sleuth.dialect import DIALECTS
    from sleuth.episodes.protocol import FILE, ProtocolCard
    from sleuth.plan.shapes import max_positions
    from sleuth.recipe.starter import PLAIN_REWARDS, Taught

    place, files = Path(model), Taught(positions=max_positions(model))
    if not place.is_dir():
        return files
    weights = sum(file.stat().st_size for file in place.glob("*.safetensors")) or None
    files = replace(files, weights=weights, template=_chat_template(place))
    card = ProtocolCard.read(place)
    if card is None:
        return files
    if card.dialect.name not in DIALECTS or card.env is not None:
        print_notes([f"{place / FILE}: does not search; the recipe asks in another protocol"])
        return files
    scorer = card.scorer if card.scorer != STRICT.name else None
    paid = {part.kind: part.weight for part in card.reward.parts} if card.reward else {}
    rewards = paid if "answer" in paid and {"answer", *PLAIN_REWARDS} >= paid.keys() else {}
    return replace(files, env=_env_of(card, folder, work), context=card.context, scorer=scorer, rewards=rewards)


def _chat_template(model: Path) -> str:
    """The chat template in the folder of a model; empty without one."""
    with suppress(OSError):
        return (model / "chat_template.jinja").read_text(encoding="utf-8")
    with suppress(OSError, ValueError, AttributeError):
        settings = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
        return str(settings.get("chat_template") or "")
    return ""


def _env_of(card: ProtocolCard, folder: Path, work: Path) -> dict[str, Any]:
    """The keys of an environment with the protocol of a card. Texts that do not ship are written into `work`, which
    becomes `folder`."""
    from sleuth.dialect import BUDGETS, DIALECTS
    from sleuth.episodes.library import read_prompt

    def name_of(key: str, name: str, text: str) -> str:
        with suppress(SleuthError):
            if read_prompt(name) == text:
                return name
        (work / f"{key}.txt").write_bytes(text.encode())
        return (folder / f"{key}.txt").as_posix()

    dialect = card.dialect
    env: dict[str, Any] = {"dialect": dialect.name, "prompt": name_of("prompt", card.prompt, card.prompt_text)}
    if card.prompt_role != "raw":
        env |= {"prompt_role": card.prompt_role, "template_flags": card.template_flags}
    ships, shown = DIALECTS[dialect.name], ("turn_tokens", "searches", "top_k")
    changed = [key for key in BUDGETS if key not in shown and getattr(dialect, key) != getattr(ships, key)]
    env |= {key: value for key in (*shown, *changed) if (value := getattr(dialect, key)) is not None}
    if dialect.hint != ships.hint:
        env["hint"] = name_of("hint", "hint", dialect.hint)
    if card.forced_search:
        env["forced_search"] = True
    return env


def _check(folder: Path) -> str:
    """Reads all that the recipe needs, as `sleuth check recipe` does; a line about it. If that fails, nothing stays."""
    from sleuth.recipe import load_recipe
    from sleuth.terminal.recipe_inputs import missing_inputs

    try:
        recipe = load_recipe(folder / "recipe.toml", look=missing_inputs)
        import_heavy()
        from sleuth.cli.pipeline import require_inputs

        asked = require_inputs(recipe)
    except SleuthError as error:
        shutil.rmtree(folder)
        raise SleuthError(*error.args, f"{folder}: its recipe would not run, so nothing was written") from None
    trained = next(len(asked[at]) for at, stage in enumerate(recipe.stage) if stage.trains)
    return f"recipe.toml: ok: {recipe.steps} steps on {trained:,} prompts"
