"""`write_report`: the page of a run, self-contained and without network access."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sleuth.evaluation.figures import figure
from sleuth.evaluation.paired import (
    Evaluation,
    leading_figures,
    mean_difference,
    paired_records,
    records_of,
)
from sleuth.host import disk
from sleuth.host.atomic import write_text
from sleuth.host.escapes import escape
from sleuth.report.axes import number, signed
from sleuth.report.curves import HEIGHT, WIDTH, charts_of, smoothing, stages_of
from sleuth.report.failure_examples import failure_arms, failure_rows
from sleuth.report.figures import arms_of, figure_rows, measured_of, outcome_table, set_rows, whiskers
from sleuth.report.rollouts_shown import (
    opened_at,
    questions_played,
    questions_shown,
    rollouts_shown,
    with_files,
    write_step_files,
)
from sleuth.report.run_files import BASE, TRAINED, RunFiles, read_run
from sleuth.report.summary import flat, run_facts, run_name, stage_lines
from sleuth.report.time_spent import NAMES, duration, stage_times
from sleuth.report.transcripts import TextPool, read_tokenizer
from sleuth.runs.judge_cards import COLUMNS, mark_rows, read_cards

SCRIPTS = ("elements.js", "transcript.js", "rollouts.js", "questions.js", "curves.js", "start.js")


def write_report(run: Path, *, all_rollouts: bool = False, warn: Callable[[str], object] = lambda line: None) -> Path:
    """Writes `RUN/report.html` and returns its path; with `all_rollouts`, also all stored episodes in files beside it.
    Calls `warn` first with a line about files that are not as the run wrote them.

    The page names the parts that the run does not have yet. Raises SleuthError if the folder is not a run or one of its
    files is invalid.
    """
    files = read_run(run)
    if files.warning:
        warn(files.warning)
    if all_rollouts:
        write_step_files(files.rollouts, run, read_tokenizer(run) if files.rollouts else None)
    page = render(files, all_rollouts=all_rollouts)
    report = run / "report.html"
    write_page(report, page)
    return report


def render(run: RunFiles, *, all_rollouts: bool = False) -> str:
    """The page of a run as HTML. All text of models and corpora is escaped, in text and in data. With `all_rollouts` it
    loads the episodes that it does not hold from the files of `write_step_files`; only scripts with its `nonce` may."""
    pool = TextPool()
    tokenizer = read_tokenizer(run.folder) if run.rollouts else None
    values = run_values(run) | evaluation_values(run, pool)
    shown = rollouts_shown(run.rollouts, pool, tokenizer)
    opened = opened_at(shown)
    held = len(shown)
    if all_rollouts and shown:
        step = shown[opened[0]]["step"]
        shown = with_files(shown, run.rollouts)
        opened = [one["step"] for one in shown].index(step), opened[1]
    nonce = secrets.token_urlsafe(18) if all_rollouts else ""
    data = {
        "charts": [chart.read_out() for charts in values["stages"].values() for chart in charts],
        "rollouts": shown,
        "opened": opened,
        "nonce": nonce,
        "questions": values["questions"],
        "texts": pool.texts,
    }
    return fill(
        "report.html",
        SCRIPTS,
        **values,
        overlap=overlap(run.evaluations, questions_played(run.rollouts)),
        token_detail=tokenizer is not None,
        held=held,
        nonce=nonce,
        live=False,
        data=data,
    )


def run_values(run: RunFiles) -> dict[str, Any]:
    """What the page shows of recipe, manifest and metrics."""
    rows_of = stages_of(run.metrics)
    return {
        "run": run,
        "name": run_name(run),
        "facts": run_facts(run),
        "stage_lines": stage_lines(run.recipe),
        "manifest": flat(run.manifest),
        "stages": {stage: charts_of(rows) for stage, rows in rows_of.items()},
        "windows": {stage: smoothing(len(rows)) for stage, rows in rows_of.items()},
        "judges": mark_rows(read_cards(run.folder).values()),
        "judge_columns": COLUMNS,
        "times": stage_times(run.manifest, rows_of),
        "purposes": NAMES,
    }


def evaluation_values(run: RunFiles, pool: TextPool) -> dict[str, Any]:
    """What the page shows of evaluations; the texts of its questions are in the pool."""
    answered = failure_arms(run.evaluations)
    both = paired_records(*(records_of(run.evaluations, name) for name in (BASE, TRAINED)))
    return {
        "verdict": verdict(run.evaluations),
        "arms": arms_of(run.evaluations),
        "figures": figure_rows(run.evaluations),
        "sets": set_rows(run.evaluations),
        "outcomes": outcome_table(run.evaluations),
        "failures": failure_rows(answered),
        "failure_arms": answered,
        "questions": questions_shown((BASE, TRAINED), both, pool),
    }


def fill(template: str, scripts: Sequence[str], **shown: Any) -> str:
    """A template filled with values, style and scripts; its policy lets no other script run."""
    script = "\n".join(map(_asset, scripts))
    return (
        environment()
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
    """Writes the page atomically."""
    write_text(file, without_surrogates(page))


def without_surrogates(page: str) -> str:
    """The page without lone surrogates, which a model can sample."""
    return page.encode("utf-8", "replace").decode("utf-8")


@cache
def environment() -> Environment:
    """The templates and their filters. What they show is escaped: markup, and what turns the text behind it round."""
    made = Environment(
        loader=PackageLoader("sleuth.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: type(value)(escape(value)) if isinstance(value, str) else value,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    made.globals |= {"figure": figure, "picture": whiskers}
    made.filters |= {"number": number, "signed": signed, "duration": duration, "bytes": disk.shown}
    return made


def _asset(name: str) -> str:
    return files("sleuth.report").joinpath("templates", name).read_text(encoding="utf-8")


def verdict(evaluations: Mapping[str, Evaluation]) -> str:
    """The run in one sentence, from the evaluation files alone."""
    sides = [evaluations[name] for name in (TRAINED, BASE) if name in evaluations]
    keys = leading_figures(*sides, others=["em"]) if sides else ["em"]
    key = next((key for key in keys if all(measured_of(one.get(key)) for one in sides)), keys[0] if keys else "em")
    base, trained = (measured_of(evaluations.get(name, {}).get(key)) for name in (BASE, TRAINED))
    if base is None and trained is None and (certified := _certified(evaluations)):
        return certified
    if base is None or trained is None:
        lacking = [f"eval/{name}.json" for name, one in ((BASE, base), (TRAINED, trained)) if one is None]
        return f"Not measured yet: no {figure(key).label.lower()} in {' and '.join(lacking)}."
    change = mean_difference(key, *(records_of(evaluations, name) for name in (TRAINED, BASE)))
    greedy = evaluations[TRAINED].get("temperature") == 0
    move = {1: "rose", 0: "did not clearly move:", -1: "fell"}[change.side if change else 0]
    sets = len(evaluations[TRAINED].get("sets", ()))
    over = f", as the mean over {sets} sets," if sets else ""
    label = figure(key).label
    return (
        f"{f'Greedy {label.lower()}' if greedy else label} on {trained.n} questions{over} {move} "
        f"from {base.bracketed(bound='.3f')} to {trained.bracketed(bound='.3f')}."
    )


def _certified(evaluations: Mapping[str, Evaluation]) -> str:
    """The verdicts of gates and the claims of thought-probe certificates; empty without one."""
    claims = {
        name: f"{'passed' if one['gate']['passes'] else 'missed'}, {one['gate']['claim']}"
        for name, one in evaluations.items()
        if "gate" in one
    }
    claims |= {name: one["certificate"]["claim"] for name, one in evaluations.items() if "certificate" in one}
    return " ".join(f"{name}: {claim}." for name, claim in claims.items())


def overlap(evaluations: Mapping[str, Evaluation], trained: Set[str]) -> str:
    """A sentence on evaluated questions that are also in the stored rollouts; empty if unknown."""
    asked = {record["question"] for name in (BASE, TRAINED) for record in records_of(evaluations, name)}
    if not asked or not trained:
        return ""
    if seen := len(asked & trained):
        return (
            f"Careful: {seen} of these {len(asked)} questions are also among the {len(trained)} in the stored rollouts."
        )
    return f"None of these {len(asked)} questions is among the {len(trained)} in the stored rollouts."
