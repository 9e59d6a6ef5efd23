"""One-hop and two-hop questions about a world, with golden answers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sleuth.world.names import Split
from sleuth.world.wording import DESCRIPTIONS, QUESTIONS, SECOND_HOPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One look-up: `Hop(relation="author", subject="The Silent Harbor", value="Celia Fenwick")`."""

    relation: str
    subject: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, and the one or two look-ups that answer it; the value of the last hop is the answer."""

    text: str
    hops: tuple[Hop, ...]

    @property
    def answer(self) -> str:
        return self.hops[-1].value

    @property
    def kind(self) -> str:
        return "one_hop" if len(self.hops) == 1 else "two_hop"


Facts = Mapping[str, Mapping[str, str]]
"""Entity -> relation -> value."""


def ask(hops: tuple[Hop, ...], split: Split, rng: random.Random) -> Question:
    """A question for one or two hops, in a random wording of the split."""
    subject = hops[0].subject
    if len(hops) == 2:
        subject = rng.choice(DESCRIPTIONS[split][hops[0].relation]).format(subject=subject)
    text = rng.choice(QUESTIONS[split][hops[-1].relation]).format(subject=subject)
    return Question(text=text[0].upper() + text[1:], hops=hops)


def one_hops(facts: Facts, subject: str) -> Iterator[tuple[Hop, ...]]:
    """Yields the look-ups of each relation of `subject`."""
    for relation, value in facts[subject].items():
        yield (Hop(relation=relation, subject=subject, value=value),)


def two_hops(facts: Facts, subject: str) -> Iterator[tuple[Hop, ...]]:
    """Yields the pairs of look-ups that start at `subject` and continue at the entity found there."""
    for (first,) in one_hops(facts, subject):
        for relation in SECOND_HOPS.get(first.relation, ()):
            known = facts.get(first.value, {})
            if relation in known:
                yield first, Hop(relation=relation, subject=first.value, value=known[relation])
