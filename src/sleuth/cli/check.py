"""`sleuth check`: all that can be known before a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.cli.check_arms import check_arms
from sleuth.cli.check_data import check_data, is_data
from sleuth.cli.check_judge import check_judge
from sleuth.cli.check_recipe import check_recipe
from sleuth.cli.check_scorer import check_scorer
from sleuth.cli.check_text import check_text
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.runs.protocol import ProtocolCard

SCORER = "scorer"
"""The first word that asks for scorers to be tried."""
JUDGE = "judge"
"""The first word that asks for a judge to be examined."""


def check(
    what: Annotated[
        Path,
        typer.Argument(
            metavar="WHAT",
            help="A recipe or arms (.toml), questions or texts, a checkpoint, or the word scorer or judge.",
            show_default=False,
        ),
    ],
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="[OTHER]",
            help="A checkpoint to compare with; after scorer, a file of cases; after judge, one that says who judges.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="DATA", help="Of questions or texts: which of them are here too.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, or one a case.")] = False,
    weights: Annotated[
        bool, typer.Option("--weights", help="Of a recipe with a pool: give its servers the model's weights too.")
    ] = False,
) -> None:
    """Check a recipe or questions before a run, tell how two checkpoints' protocols and rewards differ, try every
    scorer, or examine a judge.

    Of a recipe, reads all that its stages will need and starts nothing; where servers write its episodes, asks each
    what it can do. Questions are a file of them or a folder of test sets: malformed rows, repeated ids and questions,
    answers that nothing can match; texts likewise, a file of them or a folder of such files. `sleuth check scorer
    CASES` scores rows of id, prompt, response and golden_answers by every scorer, and tells where the score depends on
    which is asked. `sleuth check judge JUDGE.toml` asks a judge, the [judge] table of the file, questions with known
    answers, and tells what it gets wrong and what sways it.
    """
    if str(what) == SCORER and (other is None or not other.is_dir()):  # two folders are two checkpoints
        if other is None:
            raise SleuthError("check scorer: no cases; give a file of them: sleuth check scorer CASES.jsonl")
        check_scorer(other, as_json)
    elif str(what) == JUDGE and (other is None or not other.is_dir()):
        if other is None:
            raise SleuthError("check judge: no judge; give a file with a [judge] table: sleuth check judge JUDGE.toml")
        check_judge(other, as_json)
    elif other is not None:
        _compare(what, other, as_json)
    elif what.suffix == ".toml" and against is None:  # before data, which takes more to tell
        _check_recipe(what, as_json, weights=weights)
    elif _holds_text(what):
        check_text(what, against, as_json)
    elif is_data(what):
        check_data(what, against, as_json)
    elif against is not None:
        raise SleuthError(
            f"--against {against} is for questions and texts; {what} is no file of them and no folder of such files"
        )
    elif what.is_dir():
        raise SleuthError(f"{what}: a checkpoint is compared with another: sleuth check {what} OTHER")
    else:
        raise SleuthError(
            f"{what}: is no recipe (.toml), no questions (.jsonl, .jsonl.gz, .parquet) and no texts (these, or .txt); "
            "give one of them, or two checkpoints: sleuth check A B"
        )


def _holds_text(what: Path) -> bool:
    from sleuth.evaluation.text_check import holds_text

    return holds_text(what)


def _check_recipe(what: Path, as_json: bool, *, weights: bool) -> None:
    from sleuth.recipe.arms import has_arms

    if has_arms(what):
        check_arms(what, as_json)
    else:
        check_recipe(what, as_json, weights=weights)


def _compare(a: Path, b: Path, as_json: bool) -> None:
    from sleuth.runs.protocol_differences import differences

    found = differences(_card(a), _card(b))
    if as_json:
        typer.echo(json.dumps({"same": not found, "differences": found}))
    elif found:
        typer.echo("\n".join([f"A is {a}", f"B is {b}", *found]))
    else:
        typer.echo("the protocols are the same")


def _card(checkpoint: Path) -> ProtocolCard:
    from sleuth.runs.checkpoints import latest_checkpoint
    from sleuth.runs.protocol import FILE, ProtocolCard

    card = ProtocolCard.read(checkpoint)
    if card is not None:
        return card
    last = latest_checkpoint(checkpoint / "checkpoints")
    example = f"this run's last one is {last}" if last else "give one that Sleuth saved, RUN/checkpoints/step-000100"
    raise SleuthError(f"{checkpoint}: is no checkpoint with a protocol: there is no {FILE}; {example}")
