"""`sleuth certify`: what a model gained over its base on held-out questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from sleuth.cli.app import FAILED
from sleuth.host.atomic import write_text
from sleuth.terminal import options
from sleuth.terminal.inputs import prepare_out_file, require_engine, require_inputs, require_url
from sleuth.terminal.tables import print_measured
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.evaluation.certificate import Certificate


def certify(
    model: options.Model,
    questions: options.Questions,
    base: Annotated[str, Option(metavar="MODEL", help="The model that MODEL was trained from.", show_default=False)],
    index: Annotated[Path, Option(metavar="DIR", help="The index of the documents.", show_default=False)],
    home: Annotated[
        Path | None,
        Option("--run", metavar="DIR", help="Where the certificate goes. [default: the folder that holds the index]"),
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

    Both answer the same held-out questions, and so do control arms. Writes certificate.json, and
    certificate.html. Ends with status 1 if the interval of the gain is not above zero.
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
        engine=engine,
        served_as=served_as,
        base_engine=base_engine,
    )
    facts = arms.facts  # wrong input ends it here
    if Path(model).is_dir():
        arms.calibrate(calibration)
    certificate = Certificate(facts=facts, arms=arms.both(), controls=arms.controls())
    contents = certificate.as_json()
    write_text(home / CERTIFICATE, json.dumps(contents, ensure_ascii=False, indent=1) + "\n")
    _write_page(certificate, page)
    if as_json:
        typer.echo(json.dumps(contents))
    else:
        _print(certificate, page)
    if anyway:
        note_on_card(Path(model), f"Handed over with `sleuth certify --anyway`: {certificate.verdict}.")
    elif not certificate.passes:
        typer.echo(f"{model} is not handed over: {certificate.verdict}; --anyway hands it over", err=True)
        raise typer.Exit(FAILED)


def _write_page(certificate: Certificate, file: Path) -> None:
    """Writes the certificate as a page that opens offline."""
    from sleuth.evaluation.certificate import FIGURES
    from sleuth.report.figures import failure_rows
    from sleuth.report.page import fill, write_page

    answered = certificate.answerable()
    html = fill(
        "certificate.html",
        (),
        certificate=certificate,
        by_label={row.label: figures for row, figures in certificate.figures()},
        meanings={row.label: row.meaning for row in FIGURES},
        failures=failure_rows(answered),
        failure_arms=answered,
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
    typer.echo(f"{certificate.verdict[:1].upper()}{certificate.verdict[1:]}.")
    typer.echo(page)
