"""The README of a data set of texts with thoughts, in markdown, with all figures computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from sleuth import __version__
from sleuth.evaluation.intervals import Measured


def thought_card(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    teacher: str,
    model: str,
    texts: str,
    prompt_sha256: str,
    without: Mapping[str, int],
    gates: Sequence[Mapping[str, Any]],
    gated: bool,
) -> str:
    """The card of the kept `rows`; `gates` hold, for every source, the gain of its thoughts for `model`."""
    lines = [
        *(f"# {name}", ""),
        f"{len(rows):,} texts of `{texts}` with the thoughts of `{teacher}`, made with Sleuth {__version__}. The "
        "teacher was asked for places and thoughts alone; the texts are the sources' own, and without its thoughts "
        "a row is its text again, character by character.",
        *("", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in _facts(rows, without).items())),
        f"| prompt of the teacher, sha256 | `{prompt_sha256}` |",
        *("", "## What the thoughts are good for", "", _explanation(model, gated), "", *_gate_table(gates)),
        *("", "The rows hold text of their sources, under whatever licence these have."),
    ]
    return "\n".join(lines) + "\n"


def _facts(rows: Sequence[Mapping[str, Any]], without: Mapping[str, int]) -> dict[str, str]:
    words = [len(thought["text"].split()) for row in rows for thought in row["thoughts"]]
    splits = Counter(row["split"] for row in rows)
    facts = {
        "thoughts a text": f"{fmean(row['thought_count'] for row in rows):.2f}",
        "words a thought, median": f"{median(words):g}",
        "words a thought, longest": str(max(words)),
        "texts by split": ", ".join(f"{split} {count:,}" for split, count in sorted(splits.items())),
        "tokens of a text": f"{fmean(len(row['raw_token_ids']) for row in rows):.0f}",
        "tokens of a row": f"{fmean(len(row['augmented_token_ids']) for row in rows):.0f}",
    }
    return facts | {f"texts without thoughts: {reason}": f"{count:,}" for reason, count in without.items()}


def _explanation(model: str, gated: bool) -> str:
    kept = "Sources without an interval above 0 in both columns were left out." if gated else "No source was left out."
    return (
        f"The gain in the log-probability of a token under `{model}` after a thought, over an empty thought and over "
        f"sentences that fit any text; nats per token, 95 % intervals over documents. {kept}"
    )


def _gate_table(gates: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| source | documents | over an empty thought | over generic ones | |"
    yield "|---|---|---|---|---|"
    for gate in gates:
        gains = " | ".join(gain.formatted(".4f", unmeasured="unmeasured") for gain in _gains(gate))
        verdict = "passes" if gate["passes"] else "does not pass"
        yield f"| {gate['source'] or '(no source)'} | {gate['documents']:,} | {gains} | {verdict} |"


def _gains(gate: Mapping[str, Any]) -> list[Measured]:
    return [Measured(**gate[key]) for key in ("over_blank", "over_generic")]
