"""Texts by somebody who does not always read what stands above: what the web is to a pretraining run.

A text tells one fact of each of a few subjects, and its last sentence tells one of these facts again: in half of the
texts rightly, in the other half with what was said of another subject. Whoever imitates such texts to the letter is
right in half of the cases. What a right ending names is known of each, so that a preference for right ones can be
judged exactly. (The texts of `chained`, whose endings take inferences, are never wrong.)
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from sleuth.world import names
from sleuth.world.names import Split
from sleuth.world.text import SmallWorlds
from sleuth.world.wording import who_then_what

SUBJECTS = 3
"""In a text."""
RIGHT = 0.5
"""The share of endings that are right."""
FORMS = {"birthplace": "life", "birth_year": "life", "profession": "career"}
"""The passage that tells a relation."""
WORDINGS = {relation: who_then_what(form, "person", relation) for relation, form in FORMS.items()}
"""How a text tells a fact."""
ENDINGS: dict[str, tuple[str, ...]] = {
    "birthplace": (" The birthplace of {subject} is", " {subject} was from the town of"),
    "birth_year": (" The birth year of {subject} is", " The year that {subject} was born in is"),
    "profession": (" The profession of {subject} is", " {subject} made a living as a"),
}
"""The last sentence, up to what is told again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarelessText:
    """`beginning` and `ending` make the text; `answer` is what a right ending names.

    `CarelessText(beginning=" Ada Fenwick was born in Tamton in 1874. ... The birthplace of Ada Fenwick is",
    ending=" Osmark.", answer="Tamton", relation="birthplace")`.
    """

    beginning: str
    ending: str
    answer: str
    relation: str

    @property
    def text(self) -> str:
        """All of it."""
        return self.beginning + self.ending


class CarelessTexts:
    """Texts about the names of one split of a world of `people` people, each a function of (key, index) alone."""

    def __init__(self, people: int, split: Split, key: tuple[object, ...]) -> None:
        self.worlds = SmallWorlds(people, split)
        self.split: Split = split
        self.key = key
        self._values = {
            "birthplace": self.worlds.words.places,
            "birth_year": [str(year) for year in names.YEARS],
            "profession": names.PROFESSIONS,
        }

    def text(self, index: int) -> CarelessText:
        """Text number `index`."""
        rng = random.Random(f"careless {self.split} {self.key} {index}")
        relation = rng.choice([*ENDINGS])
        subjects = [*self.worlds.draw_twins(rng, SUBJECTS).people]
        values = rng.sample(self._values[relation], SUBJECTS)
        sentences = [self._sentence(rng, relation, *fact) for fact in zip(subjects, values, strict=True)]
        asked, *others = rng.sample(range(SUBJECTS), SUBJECTS)
        named = asked if rng.random() < RIGHT else rng.choice(others)
        last = rng.choice(ENDINGS[relation]).format(subject=subjects[asked])
        return CarelessText(
            beginning="".join(sentences) + last, ending=f" {values[named]}.", answer=values[asked], relation=relation
        )

    def _sentence(self, rng: random.Random, relation: str, subject: str, value: str) -> str:
        """A passage that tells the fact, and something else beside it."""
        slots = {of: rng.choice(values) for of, values in self._values.items()} | {relation: value}
        employer = rng.choice(self.worlds.firms)
        return f" {rng.choice(WORDINGS[relation]).format(**slots, person=subject, employer=employer)}"
