"""A certificate: what it is of, and figures that need both models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sleuth.evaluation.certificate import Certificate

QUESTIONS = 80


def record(number: int, given: str | None, em: float | None = 0.0) -> dict[str, Any]:
    """An answer to an answerable question."""
    silent = None if em is None else float(given is None)
    named = {"id": f"q{number}", "kind": "cloze", "golden_answers": ["Tarn"], "note": "wrong", "searches": 1}
    return named | {"em": em, "given": given, "silent": silent, "shown": silent and 1 - silent, "supported": None}


def certificate(**changed: Any) -> Certificate:
    """The base names Ulm, the trained model puts `in` before the town: both are wrong for exact match. Every tenth
    question has no answer of the base, and every eighth the same of both."""
    base = [record(n, None if n % 10 == 0 else "Ulm") for n in range(QUESTIONS)]
    trained = [record(n, "Ulm" if n % 8 == 0 else "in Tarn") for n in range(QUESTIONS)]
    facts = {"model": "m", "model_sha256": "1"}
    return Certificate(facts=facts, arms={"base": base, "trained": trained}, **changed)


def test_its_id_changes_with_the_digests_of_what_was_asked_and_not_with_a_path() -> None:
    bare = certificate()
    other = replace(bare, facts={"model": "m", "model_sha256": "2"})
    moved = replace(bare, facts={"model": "elsewhere/m", "model_sha256": "1"})
    assert bare.id == moved.id != other.id


def test_a_missing_verdict_is_left_out_of_both_sides() -> None:
    bare = certificate()
    trained = [*bare.arms["trained"][:-1], record(QUESTIONS - 1, None, None)]
    missing = replace(bare, arms={**bare.arms, "trained": trained})
    [figures] = [figures for row, figures in missing.figures() if row.name == "silent"]
    assert [figures[name].n for name in ("base", "trained", "difference")] == [QUESTIONS, QUESTIONS - 1, QUESTIONS - 1]
    assert figures["base"].value == 0.1
