"""The figures of agents that search, and the recall of a retriever."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from sleuth.answers.failures import evidence_shown
from sleuth.evaluation.figures import Figure, Record, is_kind, response_tokens, tokens_of
from sleuth.evaluation.intervals import Measured, bootstrap_mean, share
from sleuth.types import Passage, StepFigure, Task


def recall(found: Iterable[tuple[Task, Sequence[Passage]]]) -> Measured:
    """The share of tasks for which a gold passage is among those that were found. Tasks without gold passages are left
    out."""
    with_gold = [(task, passages) for task, passages in found if task.gold_passages]
    return share([any(one.id in task.gold_passages for one in passages) for task, passages in with_gold])


def _searches(record: Record) -> float | None:
    """Missing if the retriever failed: the policy might have searched more often."""
    return None if record.get("stop") == "failed" else record.get("searches")


def _searched(record: Record) -> float | None:
    searches = _searches(record)
    return None if searches is None else float(searches > 0)


def _has_gold(record: Record) -> bool:
    return bool(record.get("gold_passages"))


def _first_search_found_gold(record: Record) -> float | None:
    """0 for an episode without a search."""
    if record.get("stop") == "failed":
        return None
    first = next((action for action in record.get("actions", ()) if action["kind"] == "search"), {"passages": ()})
    return float(any(passage["id"] in record["gold_passages"] for passage in first["passages"]))


def _evidence_shown(record: Record) -> float | None:
    shown = None if record.get("stop") == "failed" else evidence_shown(record)
    return None if shown is None else float(shown)


def _results_tokens(record: Record) -> float | None:
    if response_tokens(record) is None:
        return None
    segments = record.get("segments", ())
    first = next((at for at, segment in enumerate(segments) if segment["author"] == "policy"), len(segments))
    return tokens_of(segment for segment in segments[first:] if segment["author"] != "policy")


_mean = partial(Figure, interval=bootstrap_mean)
_cited = partial(Figure, dialects=lambda dialect: dialect.cites, in_steps=True)

FIGURES = (
    Figure("searched", "Searched at least once", "Share of episodes with a search.", short="searched", value=_searched),
    _mean(
        "searches_mean",
        "Searches",
        "Searches in an episode.",
        unit="searches",
        short="searches",
        heading="searches",
        value=_searches,
    ),
    _mean(
        "searches_two_hop",
        "Searches on two-hop questions",
        "The same over questions of two hops.",
        unit="searches",
        value=_searches,
        of=is_kind("two_hop"),
    ),
    Figure(
        "query_recall",
        "First query finds a gold passage",
        "Share of episodes whose first search finds a gold passage, of questions that name one; 0 without a search.",
        value=_first_search_found_gold,
        of=_has_gold,
    ),
    Figure(
        "query_recall_searched",
        "The same, among those that searched",
        "The same, of episodes with a search.",
        value=lambda record: _first_search_found_gold(record) if record.get("searches") else None,
        of=_has_gold,
        used="files",
    ),
    Figure(
        "evidence_shown",
        "Evidence among the results",
        "Share of episodes whose results contain a golden answer or all gold passages.",
        value=_evidence_shown,
        used="comparisons",
    ),
    _cited(
        "cites", "Answers that cite a passage shown", "Share of answers whose quotation is in a passage that was shown."
    ),
    _cited(
        "cited_holds_answer",
        "Right answers in what they quote",
        "Share of right answers that their quotation contains.",
        chart=("Answer in its quotation", "share of right answers"),
    ),
    _cited(
        "cited_gold",
        "Right answers that quote the right passage",
        "Share of right answers that quote a gold passage, of questions that name one.",
        chart=("Right passage quoted", "share of right answers"),
    ),
    _mean(
        "results_tokens_mean",
        "Tokens of results it was shown",
        "Tokens by other authors after the policy's first turn.",
        unit="tokens",
        value=_results_tokens,
        used="files",
    ),
)

STEPS = (
    StepFigure(
        "search_gain",
        "How much likelier a search made the words that it found, in nats.",
        "Gain of a search",
        "nats, in right episodes",
        part="Credit",
    ),
    StepFigure(
        "idle_searches",
        "Share of searches that gained no more than the margin.",
        "Idle searches",
        "share of those in right episodes",
        top=1.0,
        part="Credit",
    ),
)
