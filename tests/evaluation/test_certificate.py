"""A certificate: whose ratings count, what they decide, and figures that need both models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sleuth.evaluation.certificate import MOST, Certificate, apart
from sleuth.types import SleuthError

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


def rated(bare: Certificate, questions: int) -> Mapping[str, bool]:
    return {key: answer == "in Tarn" for keys in bare.queue[:questions] for key, answer in keys.items()}


def test_ratings_find_a_gain_that_exact_match_does_not_see() -> None:
    """Both answer 8 of the 80 alike. Of the first 40, two of three differ until those 8 have come: 32 of 72, and all
    but one gained. With four more ratings (+1, -1, 0, 0) that is 31/36, with a variance of (33 - 31²/36) / 35 / 36,
    of a share of 76/84, whose own variance is what is between 31/36 and the 0 of the others."""
    bare = certificate()
    assert (bare.passes, bare.gain.value) == (False, 0.0)
    by_person = replace(bare, ratings=rated(bare, 40))
    by_person.require_ratings(bare.id)
    assert [*map(apart, bare.pairs[:40])].count(True) == 32
    assert [*map(apart, bare.pairs[:6])] == [True, True, False] * 2
    share, mean = 76 / 84, 31 / 36
    within, between = (33 - 31**2 / 36) / 35 / 36, share * (1 - share) * mean**2 / 84
    half = 1.959963984540054 * math.sqrt(share**2 * within + between)
    gain = by_person.gain
    assert (gain.value, gain.n) == (pytest.approx(0.9 * 31 / 32), 32)
    assert (gain.low, gain.high) == (pytest.approx(share * mean - half), pytest.approx(share * mean + half))
    assert by_person.passes
    right = by_person.by_person()
    assert (right["trained"].value, right["base"].value, right["trained"].n) == (pytest.approx(0.9 * 31 / 32), 0.0, 40)


def test_models_that_answer_alike_have_gained_nothing_however_they_are_rated() -> None:
    bare = certificate()
    alike = replace(bare, arms={"base": bare.arms["base"], "trained": bare.arms["base"]})
    gain = replace(alike, ratings={key: True for keys in alike.queue for key in keys}).gain
    assert (gain.value, gain.n) == (0.0, 0)
    low, high = gain.low or 0.0, gain.high or 0.0
    assert 0.02 < -low == high < 0.05


def test_a_question_of_which_one_answer_is_rated_does_not_count_yet() -> None:
    bare = certificate()
    at = next(at for at, keys in enumerate(bare.queue) if at >= 20 and len(keys) == 2)
    half = {**rated(bare, at), next(iter(bare.queue[at])): True}
    assert replace(bare, ratings=half).by_person()["trained"].n == at


def test_the_page_shows_each_answer_once_in_an_order_of_no_model() -> None:
    queue = certificate().queue
    assert MOST - 1 <= sum(map(len, queue)) <= MOST
    firsts = [next(iter(keys.values())) for keys in queue if len(keys) == 2]
    assert 0.2 < firsts.count("Ulm") / len(firsts) < 0.8
    one_answer = [trained["given"] for base, trained in certificate().pairs if base["given"] == trained["given"]]
    assert one_answer == ["Ulm"] * len(one_answer)
    assert len({key for keys in queue for key in keys}) == sum(map(len, queue))


def test_ratings_are_of_this_certificate_and_of_all_that_is_shown() -> None:
    bare = certificate()
    other = replace(bare, facts={"model": "m", "model_sha256": "2"})
    moved = replace(bare, facts={"model": "elsewhere/m", "model_sha256": "1"})
    assert bare.id == moved.id != other.id
    ratings = rated(bare, 40)
    replace(moved, ratings=ratings).require_ratings(bare.id)
    for wrong, certificate_id, line in (
        (ratings, other.id, "of the certificate"),
        (rated(other, 40), bare.id, "ratings are of no answer of this certificate"),
        (dict([*ratings.items()][:29]), bare.id, "29 answers are rated, and 30 are needed"),
        (dict([*ratings.items()][1:]), bare.id, "rate them in the order of the page"),
    ):
        with pytest.raises(SleuthError, match=line):
            replace(bare, ratings=wrong).require_ratings(certificate_id)


def test_a_missing_verdict_is_left_out_of_both_sides() -> None:
    bare = certificate()
    trained = [*bare.arms["trained"][:-1], record(QUESTIONS - 1, None, None)]
    missing = replace(bare, arms={**bare.arms, "trained": trained})
    assert len(missing.pairs) == QUESTIONS - 1
    [figures] = [figures for row, figures in missing.figures() if row.name == "silent"]
    assert [figures[name].n for name in ("base", "trained", "difference")] == [QUESTIONS, QUESTIONS - 1, QUESTIONS - 1]
    assert figures["base"].value == 0.1
