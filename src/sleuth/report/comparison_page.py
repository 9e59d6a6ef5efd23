"""`write_comparison`: the page of a comparison, self-contained and without network access."""

from __future__ import annotations

from pathlib import Path

from sleuth.answers.failures import MODES
from sleuth.report.comparison import Comparison
from sleuth.report.curves import Arms, matched_charts
from sleuth.report.page import fill, write_page
from sleuth.report.rollouts_shown import questions_shown
from sleuth.report.transcripts import TextPool

SCRIPTS = ("elements.js", "transcript.js", "questions.js", "curves.js", "compare_start.js")


def write_comparison(comparison: Comparison, file: Path) -> None:
    """Writes the page, and its folder if needed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_page(file, render_comparison(comparison))


def render_comparison(comparison: Comparison) -> str:
    """The page as HTML. All text of models and corpora is escaped, in text and in data."""
    pool = TextPool()
    curves = _curves(comparison)
    stages = matched_charts(curves)
    data = {
        "charts": [chart.read_out() for charts in stages.values() for chart in charts],
        "questions": questions_shown(comparison.names, comparison.matched.paired(comparison.names), pool),
        "texts": pool.texts,
    }
    return fill(
        "compare.html",
        SCRIPTS,
        comparison=comparison,
        names=comparison.names,
        pairs=list(comparison.became),
        modes={mode: words for mode, words in MODES.items() if any(one[mode] for one in comparison.modes.values())},
        totals={name: sum(counts.values()) for name, counts in comparison.modes.items()},
        stages=stages,
        several=any(len(runs) > 1 for runs in curves.values()),
        data=data,
    )


def _curves(comparison: Comparison) -> Arms:
    """The metrics rows of each arm's runs; empty unless every arm has runs and they are not all the same run."""
    runs = {arm.name: [member.run for member in arm.members if member.run] for arm in comparison.arms}
    folders = {run.folder.resolve() for of_arm in runs.values() for run in of_arm}
    if len(folders) < 2 or not all(runs.values()):
        return {}
    return {name: [run.metrics for run in of_arm] for name, of_arm in runs.items()}
