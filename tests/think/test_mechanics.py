"""Rules in place of a judge: what each of them sees, and that a sound text stands before the same text spoiled."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from itertools import islice, pairwise
from pathlib import Path

import pytest
from test_pairwise_reward import pool

from sleuth.think import preference_rewards as mechanics
from sleuth.think.preference_rewards import RULES, MechanicsReward

REAL_TEXT = Path(__file__).parents[3] / "shared" / "data" / "midtrain_text.jsonl.gz"


@pytest.mark.parametrize(
    ("rule", "text", "prefix", "value"),
    [
        ("repetition", " one two three four five", "", 1.0),
        ("repetition", " one two three one two three", "", 3 / 4),
        ("repetition", "", "", 0.0),
        ("repetition", " Tarn.", "", 1.0),
        ("copying", " a b c d e f g h", "z a b c d e f g h", 0.0),
        ("copying", " a b c d e f g x", "z a b c d e f g h", 1.0),
        ("known_names", " In the town Ada met Bo.", "Ada lived alone.", 1 / 2),
        ("known_names", " In 1874 it rained.", "In 1874 it was dry.", 1.0),
        ("known_names", " It rained.", "Ada.", 0.5),
        ("common_words", " the painter painted bridges", "a painter of bridges", 2 / 3),
        ("common_words", " it is so", "it is so", 0.0),
        ("whole_characters", "ab\ufffd\ufffd", "", 0.5),
    ],
)
def test_a_rule_by_hand(rule: str, text: str, prefix: str, value: float):
    assert RULES[rule](text, prefix) == pytest.approx(value)


def test_nothing_makes_up_for_a_text_that_is_not_sound():
    [score] = asyncio.run(MechanicsReward()(pool(" So Ada was born in the town")))
    assert score.parts == {
        "repetition": 1.0,
        "copying": 1.0,
        "whole_characters": 1.0,
        "known_names": 1.0,
        "common_words": 0.0,
    }
    assert score.value == 0.5
    [broken] = asyncio.run(MechanicsReward()(pool(" So Ada was born in the town \ufffd")))
    assert broken.value is not None
    assert broken.value < 0.5


def spoiled(suffix: str, prefix: str, other: str, rng: random.Random) -> dict[str, str]:
    words = suffix.split()
    return {
        "repeated": " " + " ".join(words[:12] * (1 + len(words) // 12)),
        "copied": prefix[-len(suffix) :],
        "another": other,
        "names": mechanics.NAME.sub(lambda found: "".join(rng.sample(found[0], len(found[0]))).title(), suffix),
    }


@pytest.mark.skipif(not REAL_TEXT.exists(), reason="the shared data is not there")
def test_real_suffixes_mostly_stand_before_their_spoiled_selves():
    with gzip.open(REAL_TEXT, "rt") as lines:
        texts = [json.loads(line)["text"] for line in islice(lines, 300)]
    cut = [(text[:1600], text[1600:2200]) for text in texts if len(text) >= 2200]
    rng, ahead = random.Random(0), {}

    def score(text: str, prefix: str) -> float:
        value = MechanicsReward().judge(text, prefix).value
        assert value is not None
        return value

    for (prefix, suffix), (_, other) in pairwise(cut):
        for kind, text in spoiled(suffix, prefix, other, rng).items():
            if text != suffix:
                ahead.setdefault(kind, []).append(score(suffix, prefix) > score(text, prefix))
    shares = {kind: sum(won) / len(won) for kind, won in ahead.items()}
    assert len(cut) > 30
    assert shares["repeated"] > 0.9, shares
    assert shares["copied"] > 0.9, shares
    assert shares["another"] > 0.8, shares
    assert shares["names"] > 0.6, shares
