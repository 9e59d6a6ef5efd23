"""Texts with endings that are wrong half of the time: the noisy pretraining data of the tiny experiments.

A text states one fact about each of a few subjects, and its last sentence repeats one of these facts: in half of the
texts rightly, in the other half with the value of another subject. A model that imitates such texts is right half of
the time. The right answer is known for each text, so that a preference for right endings can be judged exactly. (The
texts of `chained`, whose endings need inferences, are never wrong.)
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from sleuth.world import names
from sleuth.world.names import Split
from sleuth.world.text import SmallWorlds
from sleuth.world.wording import subject_first_passages

SUBJECTS = 3
"""Subjects of a text."""
RIGHT = 0.5
"""Share of endings that are right."""
FORMS = {"birthplace": "life", "birth_year": "life", "profession": "career"}
"""Relation -> the form of passage that states it."""
WORDINGS = {relation: subject_first_passages(form, "person", relation) for relation, form in FORMS.items()}
"""Relation -> wordings of a sentence that states it."""
ENDINGS: dict[str, tuple[str, ...]] = {
    "birthplace": (" The birthplace of {subject} is", " {subject} was from the town of"),
    "birth_year": (" The birth year of {subject} is", " The year that {subject} was born in is"),
    "profession": (" The profession of {subject} is", " {subject} made a living as a"),
}
"""Relation -> wordings of the last sentence, up to the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarelessText:
    """A text; `answer` is the value in a right ending.

    `CarelessText(beginning=" Ada Fenwick was born in Tamton in 1874. ... The birthplace of Ada Fenwick is",
    ending=" Osmark.", answer="Tamton", relation="birthplace")`.
    """

    beginning: str
    ending: str
    answer: str
    relation: str

    @property
    def text(self) -> str:
        """The whole text."""
        return self.beginning + self.ending


class CarelessTexts:
    """Texts about names of one split of a world of `people` people, each a function of (key, index) alone."""

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
        target, *others = rng.sample(range(SUBJECTS), SUBJECTS)
        named = target if rng.random() < RIGHT else rng.choice(others)
        last = rng.choice(ENDINGS[relation]).format(subject=subjects[target])
        return CarelessText(
            beginning="".join(sentences) + last, ending=f" {values[named]}.", answer=values[target], relation=relation
        )

    def _sentence(self, rng: random.Random, relation: str, subject: str, value: str) -> str:
        """A sentence that states the fact and random other ones."""
        slots = {other: rng.choice(values) for other, values in self._values.items()} | {relation: value}
        employer = rng.choice(self.worlds.firms)
        return f" {rng.choice(WORDINGS[relation]).format(**slots, person=subject, employer=employer)}"
