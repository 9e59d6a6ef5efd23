"""Mechanics mode: rules in place of a judge. They let everything run without a model that judges, and order a text
before the same text spoiled; what they say of the quality of sound texts is nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from statistics import fmean

from sleuth.rewards.preference.candidate import written
from sleuth.types import Group, Score

WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
NAME = re.compile(r"(?<=[\w,;] )[A-Z][^\W\d_]+|\d+(?:[.,]\d+)*")
"""A capitalised word behind another word, so that it does not begin a sentence; or a number."""
REPEATED, COPIED = 3, 8
"""Words in a row that are looked for a second time in the continuation, and in the prefix."""
BROKEN = "\ufffd"


def repetition(text: str, prefix: str) -> float:
    """1 where no three words in a row come twice; 0 where all do."""
    runs = _runs(text, REPEATED)
    return len(set(runs)) / len(runs) if runs else float(bool(WORD.search(text)))


def copying(text: str, prefix: str) -> float:
    """1 where no eight words in a row stand in the prefix."""
    runs, there = _runs(text, COPIED), set(_runs(prefix, COPIED))
    return 1 - fmean(run in there for run in runs) if runs else 1.0


def known_names(text: str, prefix: str) -> float:
    """The share of names and numbers that the prefix holds: what is spoken of goes on being spoken of."""
    found, there = NAME.findall(text), set(WORD.findall(prefix)) | set(NAME.findall(prefix))
    return fmean(name in there for name in found) if found else 0.5


def common_words(text: str, prefix: str) -> float:
    """The share of long words that the prefix holds too."""
    long = [word.lower() for word in WORD.findall(text) if len(word) > 4]
    there = {word.lower() for word in WORD.findall(prefix)}
    return fmean(word in there for word in long) if long else 0.0


def whole_characters(text: str, prefix: str) -> float:
    """The share of characters that are some."""
    return 1 - text.count(BROKEN) / len(text) if text else 0.0


SOUND = {"repetition": repetition, "copying": copying, "whole_characters": whole_characters}
"""By the part of a score that each becomes: (continuation, prefix) -> from 0 to 1. Nothing makes up for these."""
IN_PLACE = {"known_names": known_names, "common_words": common_words}
"""Likewise; whether it belongs to the prefix at all."""
RULES = SOUND | IN_PLACE


class MechanicsReward:
    """How far a candidate is in place, times how sound it is in each respect; every rule is a part."""

    async def __call__(self, group: Group) -> list[Score]:
        return [self.judge(written(episode).text, group.task.question) for episode in group.episodes]

    def judge(self, text: str, prefix: str) -> Score:
        """The score of one continuation of a prefix."""
        parts = {name: rule(text, prefix) for name, rule in RULES.items()}
        value = prod(parts[name] for name in SOUND) * fmean(parts[name] for name in IN_PLACE)
        return Score(value=value, parts=parts)


def _runs(text: str, length: int) -> Sequence[tuple[str, ...]]:
    words = [word.lower() for word in WORD.findall(text)]
    return [tuple(words[at : at + length]) for at in range(len(words) - length + 1)]
