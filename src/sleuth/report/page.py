"""`write_report`: the one page of a run. It carries all it needs and asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sleuth.metrics.paired import paired_records, records_of
from sleuth.report.axes import number, signed
from sleuth.report.curves import HEIGHT, WIDTH, charts_of, smoothing, stages_of
from sleuth.report.figures import arms_of, figure_rows, outcome_table
from sleuth.report.questions_shown import questions_shown
from sleuth.report.rollouts_shown import questions_played, rollouts_shown
from sleuth.report.run_files import BASE, TRAINED, RunFiles, read_run
from sleuth.report.summary import flat, run_facts, run_name, stage_lines
from sleuth.report.transcripts import TextPool, read_tokenizer
from sleuth.report.verdict import overlap, verdict
from sleuth.runs.atomic import write_text

SCRIPTS = ("elements.js", "transcript.js", "rollouts.js", "questions.js", "curves.js", "start.js")


def write_report(run: Path) -> Path:
    """Read the run folder and write `RUN/report.html`; returns its path.

    A part that the run does not have yet is named on the page in place of its section. Raises `SleuthError` if the
    folder is no run or a file in it cannot be understood.
    """
    page = render(read_run(run))
    report = run / "report.html"
    write_page(report, page)
    return report


def render(run: RunFiles) -> str:
    """The page of a run, as HTML. Everything that a model or a corpus wrote is escaped, in text and in data."""
    pool = TextPool()
    tokenizer = read_tokenizer(run.folder) if run.rollouts else None
    stages = {stage: charts_of(rows) for stage, rows in stages_of(run.metrics).items()}
    both = paired_records(*(records_of(run.evaluations, name) for name in (BASE, TRAINED)))
    data = {
        "charts": [chart.read_out() for charts in stages.values() for chart in charts],
        "rollouts": rollouts_shown(run.rollouts, pool, tokenizer),
        "questions": questions_shown((BASE, TRAINED), both, pool),
        "texts": pool.texts,
    }
    return fill(
        "report.html",
        SCRIPTS,
        run=run,
        name=run_name(run),
        facts=run_facts(run),
        stage_lines=stage_lines(run.recipe),
        manifest=flat(run.manifest),
        verdict=verdict(run.evaluations),
        overlap=overlap(run.evaluations, questions_played(run.rollouts)),
        arms=arms_of(run.evaluations),
        figures=figure_rows(run.evaluations),
        outcomes=outcome_table(run.evaluations),
        stages=stages,
        windows={stage: smoothing(len(rows)) for stage, rows in stages_of(run.metrics).items()},
        token_detail=tokenizer is not None,
        data=data,
    )


def fill(template: str, scripts: Sequence[str], **shown: Any) -> str:
    """A page with all that it needs inside: the style, and the scripts, which alone may run."""
    script = "\n".join(map(_asset, scripts))
    return (
        _environment()
        .get_template(template)
        .render(
            shown,
            chart_size=(WIDTH, HEIGHT),
            style=Markup(_asset("report.css")),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def write_page(file: Path, page: str) -> None:
    """The page whole, or not at all. A model can write half a surrogate pair, which no file can hold."""
    write_text(file, page.encode("utf-8", "replace").decode("utf-8"))


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("sleuth.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {"number": number, "signed": signed}
    return environment


def _asset(name: str) -> str:
    return files("sleuth.report").joinpath("templates", name).read_text(encoding="utf-8")
