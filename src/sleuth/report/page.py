"""`write_report`: the page of a run, self-contained and without network access."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sleuth.answers.failures import MODES
from sleuth.evaluation.figures import figure
from sleuth.evaluation.paired import (
    BASE,
    TRAINED,
    Evaluation,
    arms_of,
    figure_rows,
    leading_figures,
    mean_difference,
    measured_of,
    paired_records,
    records_of,
    set_rows,
)
from sleuth.host import disk
from sleuth.host.atomic import write_text
from sleuth.host.escapes import escape
from sleuth.report.comparison import Comparison
from sleuth.report.curves import HEIGHT, WIDTH, charts_of, matched_charts, number, signed, smoothing, stages_of
from sleuth.report.figures import failure_arms, failure_rows, outcome_table, whiskers
from sleuth.report.rollouts_shown import (
    TextPool,
    opened_at,
    questions_played,
    questions_shown,
    rollouts_shown,
    step_of,
)
from sleuth.report.run_files import RunFiles, read_run
from sleuth.report.summary import NAMES, duration, run_facts, run_name, stage_lines, stage_times
from sleuth.runs.eval_file import COLUMNS
from sleuth.runs.manifest import flat

SCRIPTS = ("elements.js", "transcript.js", "rollouts.js", "questions.js", "curves.js", "start.js")


def write_report(run: Path, *, warn: Callable[[str], object] = lambda line: None) -> Path:
    """Writes `RUN/report.html` and returns its path. Calls `warn` first with a line about files that are not as the run
    wrote them.

    The page names the parts that the run does not have yet. Raises SleuthError if the folder is not a run or one of its
    files is invalid.
    """
    files = read_run(run)
    if files.warning:
        warn(files.warning)
    report = run / "report.html"
    write_page(report, render(files))
    return report


def render(run: RunFiles) -> str:
    """The page of a run as HTML. All text of models and corpora is escaped, in text and in data."""
    pool = TextPool()
    values = _values(run, pool)
    shown = rollouts_shown(run.rollouts, pool)
    data = _data(values, pool) | {"rollouts": shown, "opened": opened_at(shown)}
    return fill("report.html", SCRIPTS, **values, live=False, data=data)


def live_body(run: RunFiles) -> dict[str, Any]:
    """`{"html", "data"}`: the body of the same page while it is served, and the data of its script. The episodes of a
    step are loaded when it is chosen, from `rollouts/STEP`."""
    pool = TextPool()
    values = _values(run, pool)
    steps = map(step_of, run.rollouts)
    rollouts = [{"step": step, "of": None, "groups": [], "file": f"rollouts/{step}"} for step in steps]
    data = _data(values, pool) | {"rollouts": rollouts, "opened": (max(0, len(rollouts) - 1), None)}
    template = environment().get_template("body.html")
    html = template.render(values, data=data, live=True, chart_size=(WIDTH, HEIGHT))
    return {"html": without_surrogates(html), "data": data}


def _values(run: RunFiles, pool: TextPool) -> dict[str, Any]:
    """What the page shows; the texts of its questions are in the pool."""
    rows_of = stages_of(run.metrics)
    answered = failure_arms(run.evaluations)
    both = paired_records(*(records_of(run.evaluations, name) for name in (BASE, TRAINED)))
    return {
        "run": run,
        "name": run_name(run),
        "facts": run_facts(run),
        "stage_lines": stage_lines(run.recipe),
        "manifest": list(flat(run.manifest)),
        "stages": {stage: charts_of(rows) for stage, rows in rows_of.items()},
        "compared": False,
        "windows": {stage: smoothing(len(rows)) for stage, rows in rows_of.items()},
        "judge_columns": COLUMNS,
        "times": stage_times(run.manifest, rows_of),
        "purposes": NAMES,
        "verdict": verdict(run.evaluations),
        "overlap": overlap(run.evaluations, questions_played(run.rollouts)),
        "arms": arms_of(run.evaluations),
        "figures": [(figure(row.key).label, row) for row in figure_rows(run.evaluations)],
        "sets": set_rows(run.evaluations),
        "outcomes": outcome_table(run.evaluations),
        "failures": failure_rows(answered),
        "failure_arms": answered,
        "questions": questions_shown((BASE, TRAINED), both, pool),
    }


def _data(values: Mapping[str, Any], pool: TextPool) -> dict[str, Any]:
    charts = [chart.read_out() for of_stage in values["stages"].values() for chart in of_stage]
    return {"charts": charts, "questions": values["questions"], "texts": pool.texts}


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


# -- a comparison ------------------------------------------------------------------------------------------------------


COMPARISON_SCRIPTS = ("elements.js", "transcript.js", "questions.js", "curves.js", "start.js")


def write_comparison(comparison: Comparison, file: Path) -> None:
    """Writes the page, and its folder if needed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_page(file, render_comparison(comparison))


def render_comparison(comparison: Comparison) -> str:
    """The page as HTML. All text of models and corpora is escaped, in text and in data."""
    pool = TextPool()
    stages = matched_charts(comparison.curves)
    data = {
        "charts": [chart.read_out() for charts in stages.values() for chart in charts],
        "questions": questions_shown(comparison.names, comparison.matched.paired(comparison.names), pool),
        "texts": pool.texts,
    }
    return fill(
        "compare.html",
        COMPARISON_SCRIPTS,
        comparison=comparison,
        names=comparison.names,
        pairs=list(comparison.became),
        figure_rows=[(figure(key).label, key, key, found) for key, found in comparison.figures.items()],
        set_rows={
            key: [(name or comparison.mean, "", key, found) for name, found in comparison.compared[key].items()]
            for key in dict.fromkeys([*comparison.leading, *comparison.compared])
            if comparison.mean
        },
        modes={mode: words for mode, words in MODES.items() if any(one[mode] for one in comparison.modes.values())},
        totals={name: sum(counts.values()) for name, counts in comparison.modes.items()},
        stages=stages,
        compared=True,
        several=any(len(runs) > 1 for runs in comparison.curves.values()),
        data=data,
    )
