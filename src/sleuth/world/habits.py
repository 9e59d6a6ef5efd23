"""How the base model goes about a question before it has met a reward: mostly from memory, sometimes searching badly.

Each decision is drawn by itself, so that every good habit exists somewhere in the base and none of them is common. What
reinforcement learning can find is the right combination.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from sleuth.types import Piece
from sleuth.world import names
from sleuth.world.facts import World
from sleuth.world.library import Shelf, articles
from sleuth.world.questions import Hop, Question
from sleuth.world.thoughts import DIALECT, PROMPT, Row, goal, results
from sleuth.world.tokens import END

SEARCHES, SEARCHES_WORKS = 0.3, 0.6
"""How often it searches at all, and how often where the question is about a work, which it is used to looking up.
Otherwise it answers from memory, that is, makes something up."""
ASKS_WELL, ASKS_WELL_OF_WORKS = 0.4, 0.6
"""How often its first query names what the question is about, and how often where that is a work and nothing more is
asked. Its commonest fault is to stop after the first word of a name."""
ASKS_WELL_UNTHINKING = 0.1
"""How often it does so when it has not thought of what it wants to know first."""
ASKS_WELL_AGAIN = 0.7
"""How often a later query does."""
THINKS = 0.7
"""How often a turn begins with a thought."""
READS = 0.8
"""How often it answers with what the results say rather than with something made up."""
GOES_ON = 0.7
"""How often it searches again when it should."""
BREAKS_FORMAT = 0.12
"""How often it loses the format and stops."""
STOPS_AFTER_ONE_WORD = 0.75
"""Of the poor queries, how many are the first word of a name; the others are a relation, or somebody else."""


class Careless:
    """Writes one episode about one question. What it makes up comes from `places`, `firms` and the world's people."""

    def __init__(
        self,
        rng: random.Random,
        question: Question,
        world: World,
        *,
        places: Sequence[str],
        firms: Sequence[str],
    ) -> None:
        self.rng = rng
        self.question = question
        self.places = places
        self.firms = firms
        self.shelf = Shelf([*articles(world, rng)])
        self.people = [*world.people]
        self.about_a_work = question.hops[0].subject in world.works

    def episode(self) -> Row:
        row = [Piece(text=PROMPT.format(question=self.question.text), author="env")]
        if self._sometimes(BREAKS_FORMAT):
            return [*row, self._broken()]
        if not self._sometimes(SEARCHES_WORKS if self.about_a_work else SEARCHES):
            return [*row, self._says(self._thought(goal(self.question.hops[0])), self._answer(self._made_up()))]
        for hop in self.question.hops:
            found = self._search(row, hop, self._share_of_good_queries(hop))
            if not found and self._sometimes(GOES_ON):
                found = self._search(row, hop, ASKS_WELL_AGAIN)
            value = hop.value if found and self._sometimes(READS) else self._made_up()
            seen = self._thought(f"{goal(hop)} is {value}") if found else ""
            if hop is self.question.hops[-1] or not self._sometimes(GOES_ON):
                row.append(self._says(seen, self._answer(value)))
                break
            row.append(self._says(seen))
        return row

    def _share_of_good_queries(self, hop: Hop) -> float:
        if hop is not self.question.hops[0]:
            return ASKS_WELL_AGAIN
        return ASKS_WELL_OF_WORKS if self.about_a_work and len(self.question.hops) == 1 else ASKS_WELL

    def _search(self, row: Row, hop: Hop, asks_well: float) -> bool:
        """One search with its results; whether they say what was wanted."""
        thought = self._thought(goal(hop))
        first = len(row) == 1
        well = self._sometimes(asks_well if thought or not first else ASKS_WELL_UNTHINKING)
        query = hop.subject if well else self._poor_query(hop)
        shown = self.shelf.search(query, self.rng)
        row.append(self._says(thought, DIALECT.search.around(f" {query}")))
        row.append(Piece(text=results(shown), author="source"))
        return any(article.about == hop.subject and hop.relation in article.facts for article in shown)

    def _poor_query(self, hop: Hop) -> str:
        if self._sometimes(STOPS_AFTER_ONE_WORD):
            return hop.subject.split()[0]
        return self.rng.choice([hop.relation.replace("_", " "), self.rng.choice(self.people)])

    def _made_up(self) -> str:
        """Something of the kind that is asked for."""
        match self.question.hops[-1].relation:
            case "birthplace" | "seat":
                return self.rng.choice(self.places)
            case "birth_year" | "year":
                return str(self.rng.choice(names.YEARS))
            case "profession":
                return self.rng.choice(names.PROFESSIONS)
            case "region":
                return self.rng.choice(names.REGIONS)
            case "employer":
                return self.rng.choice(self.firms)
            case _:
                return self.rng.choice(self.people)

    def _broken(self) -> Piece:
        subject, value = self.question.hops[0].subject, self._made_up()
        started = [f" {value}", f"{DIALECT.answer.open} {value}", f"{DIALECT.search.open} {subject}"]
        return self._says(self.rng.choice(started), END)

    def _thought(self, text: str) -> str:
        return DIALECT.think.around(text) if self._sometimes(THINKS) else ""

    def _answer(self, value: str) -> str:
        return DIALECT.answer.around(f" {value}")

    def _says(self, *parts: str) -> Piece:
        return Piece(text="".join(parts), author="teacher")

    def _sometimes(self, share: float) -> bool:
        return self.rng.random() < share
