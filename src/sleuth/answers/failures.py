"""Failure modes: whether a record of an evaluation file is right, or the first thing that went wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sleuth import family
from sleuth.answers.match import normalise

Mode = str
MODES: dict[Mode, str] = {
    "right": "Right",
    "scored": "Scored by the stage's own reward",
    "wrong_reading": "Wrong reading: the evidence was found",
    "wrong_evidence": "Wrong evidence: searched, not found",
    "malformed": "Malformed: no valid answer",
    "never_searches": "Never searches, and is wrong",
    "echoes_prompt": "Echoes the prompt",
    "wrong_untold": "Wrong; the question names no evidence",
    "missing": "No verdict",
}
"""What became of an answer: the label of each mode, from best to worst."""

ECHO_WORDS = 10
"""The number of consecutive words of the instructions that make an echo. A shorter template cannot be echoed."""

NO_EVIDENCE = {"yes", "no", ""}
"""Normalised answers that occur in any text: only a gold passage is evidence for them."""

Record = Mapping[str, Any]


def failure_mode(record: Record) -> Mode:
    """The first mode that applies: `missing` (no verdict), `scored` (the verdict is the stage's own score, which is
    neither right nor wrong), `right`, then for a wrong answer `echoes_prompt`, `never_searches`, `malformed` (no valid
    answer), `wrong_untold` (the question names no evidence), `wrong_evidence` or `wrong_reading`.

    A family whose records have an entry of their own says itself what became of an answer (`Family.outcomes`).

    An echo comes first because it explains the others: a repeated prompt holds tags that are taken for a search or an
    answer.
    """
    if own := [entry for entry in family.kinds("outcomes") if entry in record]:
        return family.table("outcomes", own[0])(record)
    if record.get("verdict") == "score":
        return "missing" if record["score"] is None else "scored"
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


def echoes_prompt(record: Record) -> bool:
    """Whether the policy repeated `ECHO_WORDS` consecutive words of the prompt's template. Words of the question do not
    count, nor do tags and punctuation."""
    segments = record.get("segments", ())
    template: set[tuple[str, ...]] = set()
    for segment in segments:
        if segment["author"] == "template":
            template |= set(_ngrams(segment["text"]))
    return bool(template) and any(
        ngram in template for segment in segments if segment["author"] == "policy" for ngram in _ngrams(segment["text"])
    )


def evidence_shown(record: Record) -> bool | None:
    """Whether the search results suffice: a golden answer occurs in the part that the policy was shown, as whole words,
    or all gold passages are among the results. None if the question has neither gold passages nor a searchable answer;
    False for an episode without a search."""
    gold = set(record.get("gold_passages") or ())
    answers = {normalise(answer) for answer in record.get("golden_answers", ())} - NO_EVIDENCE
    if not gold and not answers:
        return None
    retrieved = {passage["id"] for action in record.get("actions", ()) for passage in action.get("passages", ())}
    if gold and gold <= retrieved:
        return True
    return any(f" {answer} " in text for text in _observations(record) for answer in answers)


def mode_counts(records: Iterable[Record]) -> dict[Mode, int]:
    """The number of records in each mode, including modes with none."""
    counts = Counter(map(failure_mode, records))
    return {mode: counts[mode] for mode in MODES}


def transitions(pairs: Sequence[Sequence[Record]]) -> dict[Mode, dict[Mode, int]]:
    """`table[before][after]`: the number of questions by their modes before and after, including zeros."""
    counts = Counter((failure_mode(before), failure_mode(after)) for before, after in pairs)
    return {before: {after: counts[before, after] for after in MODES} for before in MODES}


def _ngrams(text: str) -> list[tuple[str, ...]]:
    """All runs of `ECHO_WORDS` words."""
    words = re.findall(r"\w+", text.lower())
    return [tuple(words[start : start + ECHO_WORDS]) for start in range(len(words) - ECHO_WORDS + 1)]


def _observations(record: Record) -> Iterable[str]:
    """The environment's texts after the policy's first segment, normalised, with a space at either end."""
    policy_started = False
    for segment in record.get("segments", ()):
        policy_started = policy_started or segment["author"] == "policy"
        if policy_started and segment["author"] == "env":
            yield f" {normalise(segment['text'])} "
