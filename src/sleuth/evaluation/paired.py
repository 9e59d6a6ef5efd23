"""Paired comparison of evaluation files: the value of a figure for each record, matched by question."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from sleuth.answers.answer import SCORE
from sleuth.answers.failures import evidence_shown
from sleuth.cite.figures import FIGURES as CITATION_FIGURES
from sleuth.evaluation.arms import Difference, Runs
from sleuth.evaluation.arms import difference as arm_difference
from sleuth.evaluation.intervals import Measured, Stratum, bootstrap_mean, mean_of_means
from sleuth.evaluation.metrics import CITING, REFINED, is_score, refined_share

Evaluation = Mapping[str, Any]
"""The contents of an `eval/NAME.json`."""

Record = Mapping[str, Any]
"""One answered question of an evaluation."""

FIGURES = (
    "em",
    "em_one_hop",
    "em_two_hop",
    "sub_match",
    "f1",
    "searched",
    "searches_mean",
    "searches_two_hop",
    "query_recall",
    "evidence_shown",
    "response_tokens_mean",
    *CITING,
    *CITATION_FIGURES,
    *REFINED,
    "missing",
)
"""The figures of `question_value`, in the order of tables."""

_MEANS = {"f1", "searches_mean", "searches_two_hop", "response_tokens_mean", *REFINED} | {
    name for name, measured in CITATION_FIGURES.items() if measured is bootstrap_mean
}


def is_share(key: str) -> bool:
    """Whether a figure is a share of episodes rather than a mean."""
    return key not in _MEANS and not is_score(key)


def question_value(key: str, record: Record) -> float | None:
    """The value of a figure for one record; None if it has none (another kind, missing, no gold passage).

    The same rules as `sleuth.evaluation.metrics.episode_figures`, applied to an evaluation file. `evidence_shown` is
    that of `sleuth.answers.failures`, with 0 for an episode without a search.
    """
    em, kind = record.get("em"), record.get("kind")
    finished = record.get("stop") != "failed"
    searches = record.get("searches") if finished else None
    match key:
        case "em":
            return em
        case "em_one_hop" | "em_two_hop":
            return em if kind == key.removeprefix("em_") else None
        case "sub_match" | "f1":
            return record.get(key)
        case "searched":
            return None if searches is None else float(searches > 0)
        case "searches_mean":
            return searches
        case "searches_two_hop":
            return searches if kind == "two_hop" else None
        case "query_recall":
            return _first_query_recall(record) if finished else None
        case "evidence_shown":
            shown = evidence_shown(record) if finished else None
            return None if shown is None else float(shown)
        case "response_tokens_mean":
            return _response_tokens(record) if finished else None
        case "missing":
            known = record.get(SCORE) if record.get("verdict") == SCORE else em
            return float(known is None and "citation_f1" not in record)
    if key in REFINED:
        return refined_share(key, [one for action in record.get("actions", ()) for one in action.get("refined", ())])
    return record.get(key) if is_score(key) or key in (*CITING, *CITATION_FIGURES) else None


def by_question(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The samples of each question by its id, in their order."""
    grouped: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        grouped[record["id"]].append(record)
    return dict(grouped)


def question_means(key: str, questions: Sequence[str], runs: Sequence[Mapping[str, Sequence[Record]]]) -> Runs:
    """The table `[run][question]` of a figure: the mean over the question's samples, None if none has a value. Each run
    is its records `by_question`."""
    return [[_mean([question_value(key, record) for record in run[name]]) for name in questions] for run in runs]


def difference(key: str, ours: Iterable[Record], theirs: Iterable[Record]) -> Difference | None:
    """Ours minus theirs over the questions that both were asked; None if none has the figure on both sides."""
    one, other = by_question(ours), by_question(theirs)
    common = [name for name in one if name in other]
    tables = (question_means(key, common, [run]) for run in (one, other))
    return arm_difference(*tables, is_share=is_share(key))


def mean_difference(key: str, ours: Sequence[Record], theirs: Sequence[Record]) -> Measured | None:
    """The measured part of `difference`; for a suite, whose records name their set, the mean over its sets."""
    if not any("set" in record for record in ours):
        result = difference(key, ours, theirs)
        return result and result.measured
    sets: defaultdict[str, tuple[list[Record], list[Record]]] = defaultdict(lambda: ([], []))
    for side, records in enumerate((ours, theirs)):
        for record in records:
            sets[record.get("set", "")][side].append(record)
    measured = mean_of_means([_differences(key, *sides) for sides in sets.values() if all(sides)])
    return measured if measured.n else None


def _differences(key: str, ours: Sequence[Record], theirs: Sequence[Record]) -> Stratum:
    """Ours minus theirs for each question."""
    one, other = by_question(ours), by_question(theirs)
    common = [name for name in one if name in other]
    [a], [b] = (question_means(key, common, [run]) for run in (one, other))
    pairs = zip(a, b, strict=True)
    return Stratum(values=[None if left is None or right is None else left - right for left, right in pairs])


def records_of(evaluations: Mapping[str, Evaluation], name: str) -> list[Record]:
    """The records of an evaluation. Those of a suite come from the files of its sets, with the name of the set
    added."""
    evaluation = evaluations.get(name, {})
    sets = {set_name: evaluations.get(f"{name}@{set_name}", {}) for set_name in evaluation.get("sets", ())}
    suite = [{**record, "set": set_name} for set_name, one in sets.items() for record in one.get("records", ())]
    return [*evaluation.get("records", ()), *suite]


def paired_records(*runs: Iterable[Record]) -> list[tuple[Record, ...]]:
    """The records of the questions that all runs share, in the order of the first; n-th samples are paired."""
    numbered = [_numbered(records) for records in runs]
    return [tuple(run[key] for run in numbered) for key in numbered[0] if all(key in run for run in numbered)]


def side_of_zero(measured: Measured | None) -> int:
    """1 or -1 if the whole interval lies on that side of zero, otherwise 0."""
    if measured is None or measured.low is None or measured.high is None:
        return 0
    return (measured.low > 0) - (measured.high < 0)


def _numbered(records: Iterable[Record]) -> dict[tuple[str, int], Record]:
    """The records by question and sample: `("q7", 2)` is the second answer to q7."""
    counts: Counter[str] = Counter()
    numbered = {}
    for record in records:
        counts[record["id"]] += 1
        numbered[record["id"], counts[record["id"]]] = record
    return numbered


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None


def _first_query_recall(record: Record) -> float | None:
    gold = set(record.get("gold_passages", ()))
    if not gold:
        return None
    first = next((action for action in record.get("actions", ()) if action["kind"] == "search"), None)
    return float(first is not None and any(passage["id"] in gold for passage in first["passages"]))


def _response_tokens(record: Record) -> float | None:
    """The number of tokens that the policy wrote; None if the file does not say."""
    counts = [segment.get("tokens") for segment in record.get("segments", ()) if segment["author"] == "policy"]
    return None if None in counts else float(sum(counts))
