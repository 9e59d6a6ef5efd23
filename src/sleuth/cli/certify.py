"""`sleuth certify`: what a model gained over its base on held-out questions, and a page on which a person rates it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from sleuth.cli.app import FAILED
from sleuth.host.atomic import write_text
from sleuth.terminal import options
from sleuth.terminal.inputs import naming, prepare_out_file, require_engine, require_inputs, require_url
from sleuth.terminal.tables import print_measured
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.evaluation.certificate import Certificate

SCRIPTS = ("elements.js", "certificate.js")
LARGEST = 1_000_000
"""Bytes that are read of a file of ratings; those of 100 answers are 3,000."""


def certify(
    model: options.Model,
    questions: options.Questions,
    base: Annotated[str, Option(metavar="MODEL", help="The model that MODEL was trained from.", show_default=False)],
    index: Annotated[Path, Option(metavar="DIR", help="The index of the documents.", show_default=False)],
    home: Annotated[
        Path | None,
        Option("--run", metavar="DIR", help="Where the certificate goes. [default: the folder that holds the index]"),
    ] = None,
    ratings: Annotated[
        Path | None, Option(metavar="FILE.json", help="What the page saved: a person's ratings of its answers.")
    ] = None,
    calibration: Annotated[
        Path | None,
        Option(metavar="FILE", help="Other questions, by which MODEL learns when not to answer.", show_default=False),
    ] = None,
    judge: Annotated[
        Path | None, Option(metavar="FILE", help="A file with a [judge] table, who also finds answers equal.")
    ] = None,
    engine: options.Engine = None,
    served_as: options.ServedAs = None,
    base_engine: Annotated[
        str | None, Option(metavar="URL", help="A server of the base, under the base's own name.")
    ] = None,
    anyway: Annotated[
        bool, Option("--anyway", help="Hand over a model without a clear gain; its card says so.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Certify what a model gained over its base, or refuse it.

    Both answer the same held-out questions, and so do control arms. Writes certificate.json, and certificate.html, on
    which 30 to 100 answers can be rated. Ends with status 1 if the interval of the gain is not above zero.
    """
    from sleuth.recipe.load import load_judge
    from sleuth.recipe.shipped import CERTIFICATE, find_model
    from sleuth.terminal.recipe_inputs import missing_inputs

    if anyway and not Path(model).is_dir():
        raise SleuthError(f"--anyway writes on the card of a model's folder, and {model} is none; download it first")
    require_engine(engine, served_as, {})
    if base_engine is not None:
        require_url("--base-engine", base_engine)
    base, home = find_model(base), home or index.resolve().parent
    require_inputs([model, base], questions=questions, index=index)
    if calibration is not None and not (Path(model).is_dir() and calibration.is_file()):
        raise SleuthError(f"--calibration {calibration}: needs a file of questions, and a MODEL whose folder is here")
    rated = {} if ratings is None else _read_ratings(ratings)
    judging = None if judge is None else load_judge(judge, missing_inputs)
    prepare_out_file(home / CERTIFICATE, option="--run")

    import_heavy()
    from sleuth.cli.certified_arms import CertifiedArms, equality_judge
    from sleuth.evaluation.certificate import Certificate
    from sleuth.runs.model_card import note_on_card

    equal = None if judge is None or judging is None else equality_judge(judging, judge)
    folder, page = (home / CERTIFICATE.with_suffix(ending) for ending in ("", ".html"))
    arms = CertifiedArms(
        model=model,
        base=base,
        questions=questions,
        index=index,
        folder=folder,
        judge=equal,
        stored=bool(rated),
        engine=engine,
        served_as=served_as,
        base_engine=base_engine,
    )
    facts = arms.facts  # wrong input ends it here
    if not rated and Path(model).is_dir():
        arms.calibrate(calibration)
    certificate = Certificate(facts=facts, arms=arms.both(), controls=arms.controls(), ratings=rated.get("ratings", {}))
    if rated:
        with naming(f"--ratings {ratings}"):
            certificate.require_ratings(rated["certificate"])
    contents = certificate.as_json()
    write_text(home / CERTIFICATE, json.dumps(contents, ensure_ascii=False, indent=1) + "\n")
    _write_page(certificate, page, arms.passages())
    if as_json:
        typer.echo(json.dumps(contents))
    else:
        _print(certificate, page)
    if anyway:
        note_on_card(Path(model), f"Handed over with `sleuth certify --anyway`: {certificate.verdict}.")
    elif not certificate.passes:
        typer.echo(f"{model} is not handed over: {certificate.verdict}; --anyway hands it over", err=True)
        raise typer.Exit(FAILED)


def _read_ratings(file: Path) -> dict[str, Any]:
    """`{"certificate": ID, "ratings": {KEY: true}}`. Raises SleuthError for another file."""
    try:
        with file.open("rb") as opened:
            contents = json.loads(opened.read(LARGEST))
        if isinstance(contents["certificate"], str) and {*map(type, contents["ratings"].values())} <= {bool}:
            return contents
    except FileNotFoundError:
        raise SleuthError(f"--ratings {file}: no such file; the page certificate.html saves one") from None
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        pass
    raise SleuthError(f"--ratings {file}: holds no ratings; expected what the page certificate.html saves")


def _write_page(certificate: Certificate, file: Path, passages: Mapping[str, Sequence[str]]) -> None:
    """Writes the page on which a person rates answers beside the `passages` that answer a question. It opens offline
    and keeps the ratings in the browser."""
    from sleuth.evaluation.certificate import FIGURES, LEAST
    from sleuth.evaluation.paired import TRAINED
    from sleuth.report.figures import failure_rows
    from sleuth.report.page import fill, write_page

    questions = {one["id"]: one["question"] for one in certificate.arms[TRAINED]}
    to_rate = [
        {"key": key, "answer": answer, "question": questions[base["id"]], "passages": passages.get(base["id"], ())}
        for (base, _), keyed in zip(certificate.pairs, certificate.queue, strict=False)
        for key, answer in keyed.items()
    ]
    answered = certificate.answerable()
    html = fill(
        "certificate.html",
        SCRIPTS,
        certificate=certificate,
        by_label={row.label: figures for row, figures in certificate.figures()},
        meanings={row.label: row.meaning for row in FIGURES},
        by_person={"Right answers": certificate.by_person()} if certificate.ratings else {},
        failures=failure_rows(answered),
        failure_arms=answered,
        least=LEAST,
        data={"certificate": certificate.id, "least": LEAST, "to_rate": to_rate},
    )
    write_page(file, html)


def _print(certificate: Certificate, page: Path) -> None:
    """The figures in 80 columns."""
    arms = {name: name for name in ("base", "trained", "difference")}
    on_all = {row.label: figures for row, figures in certificate.figures()}
    print_measured("on the same questions", on_all, arms)
    print_measured("by kind of question", certificate.kinds(), arms)
    against = {name: name for name in ("em", "difference")}
    print_measured("control arms: exact match, and trained minus it", certificate.against_controls(), against)
    if certificate.ratings:
        print_measured("right answers by the ratings", {"right": certificate.by_person()}, arms)
    typer.echo(f"{certificate.verdict[:1].upper()}{certificate.verdict[1:]}.")
    typer.echo(page)
