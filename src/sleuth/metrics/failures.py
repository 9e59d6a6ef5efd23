"""What became of a question: right, or the first thing that went wrong, read off its record in an evaluation file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from sleuth.rewards.match import normalise

Mode = Literal[
    "right",
    "wrong_reading",
    "wrong_evidence",
    "malformed",
    "never_searches",
    "echoes_prompt",
    "wrong_untold",
    "missing",
]

MODES: dict[Mode, str] = {
    "right": "Right",
    "wrong_reading": "Wrong reading: the evidence was there",
    "wrong_evidence": "Wrong evidence: searched, not found",
    "malformed": "Malformed: no answer that could be read",
    "never_searches": "Never searches, and is wrong",
    "echoes_prompt": "Echoes the prompt",
    "wrong_untold": "Wrong, and nothing tells what evidence is",
    "missing": "No verdict",
}
"""Each mode in words, from best to worst."""

ECHO_WORDS = 10
"""So many words of the instructions, one after the other, are no coincidence. A shorter template cannot be echoed."""

NO_EVIDENCE = {"yes", "no", ""}
"""Normalised answers that stand in any text: only a gold passage is evidence for them."""

Record = Mapping[str, Any]


def failure_mode(record: Record) -> Mode:
    """The first that applies: `missing` (no verdict), `right`, then for a wrong answer `echoes_prompt`,
    `never_searches`, `malformed` (no answer could be read), `wrong_evidence`, `wrong_reading`; `wrong_untold` where the
    question does not tell what its evidence would be.

    A refiner is right where a supported claim holds the answer, or where it rightly abstains. It is given its evidence,
    so that it never searches and what it gets wrong is read wrong.

    An echo comes first because it explains the others: a prompt that is repeated holds tags, which are taken for a
    search or for an answer.
    """
    if "citation_f1" in record:
        return _refined(record)
    if record.get("em") is None or record.get("stop") == "failed":
        return "missing"
    if record["em"] > 0:
        return "right"
    if echoes_prompt(record):
        return "echoes_prompt"
    if not record.get("searches"):
        return "never_searches"
    if record.get("answer") is None or record.get("note") in ("malformed", "no_answer"):
        return "malformed"
    shown = evidence_shown(record)
    if shown is None:
        return "wrong_untold"
    return "wrong_reading" if shown else "wrong_evidence"


def _refined(record: Record) -> Mode:
    if record["note"] in ("malformed", "no_answer"):
        return "malformed"
    if record["grounded"] is None:
        return "wrong_untold"
    return "right" if record["grounded"] else "wrong_reading"


def echoes_prompt(record: Record) -> bool:
    """Whether the policy wrote `ECHO_WORDS` words in a row that stand in the prompt's template. Words of the question
    do not count, nor do tags and punctuation."""
    segments = record.get("segments", ())
    runs: set[tuple[str, ...]] = set()
    for segment in segments:
        if segment["author"] == "template":
            runs |= set(_runs(segment["text"]))
    return bool(runs) and any(
        run in runs for segment in segments if segment["author"] == "policy" for run in _runs(segment["text"])
    )


def evidence_shown(record: Record) -> bool | None:
    """Whether what the searches brought would have done: a golden answer stands in it, as whole words and as far as the
    policy was shown it, or all gold passages are among the results. None where the question names neither a gold
    passage nor an answer that can be looked for; False for an episode that never searched."""
    gold = set(record.get("gold_passages") or ())
    answers = {normalise(answer) for answer in record.get("golden_answers", ())} - NO_EVIDENCE
    if not gold and not answers:
        return None
    found = {passage["id"] for action in record.get("actions", ()) for passage in action.get("passages", ())}
    if gold and gold <= found:
        return True
    return any(f" {answer} " in text for text in _observations(record) for answer in answers)


def mode_counts(records: Iterable[Record]) -> dict[Mode, int]:
    """How many records ended in each mode, every mode named."""
    counts = Counter(map(failure_mode, records))
    return {mode: counts[mode] for mode in MODES}


def transitions(pairs: Sequence[Sequence[Record]]) -> dict[Mode, dict[Mode, int]]:
    """`table[before][after]`: what became of the questions that ended in each mode; every mode named."""
    counts = Counter((failure_mode(before), failure_mode(after)) for before, after in pairs)
    return {before: {after: counts[before, after] for after in MODES} for before in MODES}


def _runs(text: str) -> list[tuple[str, ...]]:
    """Every `ECHO_WORDS` neighbouring words."""
    words = re.findall(r"\w+", text.lower())
    return [tuple(words[start : start + ECHO_WORDS]) for start in range(len(words) - ECHO_WORDS + 1)]


def _observations(record: Record) -> Iterable[str]:
    """What the environment said after the policy's first words, normalised, with a space at either end."""
    policy_wrote = False
    for segment in record.get("segments", ()):
        policy_wrote = policy_wrote or segment["author"] == "policy"
        if policy_wrote and segment["author"] == "env":
            yield f" {normalise(segment['text'])} "
