"""Texts whose ending follows from their beginning by one or two inferences, with the thought that leads there.

A text tells of a few chains of facts, their sentences shuffled: who worked for which firm, which firm is in which town,
which town is in which region. Its last sentence asks where one chain ends: in which region somebody worked. All chains
of a text have the same relations and nothing in common, and each is asked about equally often; so what can be known
of the ending is known exactly:

- whoever puts the facts of a chain together is sure of it: an entropy of 0;
- whoever knows all values that stand in the text, and not which belongs to whom, is left with ln(chains) nats.

Every text has facts of its own, which no other text shares: nothing can be known without reading.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sleuth.world import names
from sleuth.world.endings import ENDINGS, THOUGHTS, Path
from sleuth.world.names import Split
from sleuth.world.questions import Hop
from sleuth.world.text import SmallWorlds
from sleuth.world.wording import who_then_what

CHAINS = 3
"""In a text."""
INFERENCES = {1: "one_inference", 2: "two_inferences"}
"""How texts are called whose ending follows by so many."""
FORMS = {
    "birthplace": ("life", "person"),
    "employer": ("career", "person"),
    "author": ("work", "work"),
    "seat": ("firm", "firm"),
    "region": ("town", "town"),
}
"""The passage that tells a relation, and the slot in it of whom it is about; that of the value is called as the
relation is."""
WORDINGS = {relation: who_then_what(form, about, relation) for relation, (form, about) in FORMS.items()}
"""How a text tells a fact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainedText:
    """`beginning` and `ending` make the text; `hops` are the facts that lead from one to the other, `thought` puts them
    in words, `others` are the chains that the text tells of beside them.

    `ChainedText(beginning=" Ada Fenwick was born in Tamton in 1874. ... Ada Fenwick was born in the region of",
    ending=" Osmark.", thought=" birthplace of Ada Fenwick is Tamton and the region of Tamton is Osmark",
    hops=(Hop(relation="birthplace", ...), ...), others=(...))`.
    """

    beginning: str
    ending: str
    thought: str
    hops: tuple[Hop, ...]
    others: tuple[tuple[Hop, ...], ...]

    @property
    def text(self) -> str:
        """All of it, without the thought."""
        return self.beginning + self.ending

    @property
    def answer(self) -> str:
        """What a right ending names."""
        return self.hops[-1].value

    @property
    def kind(self) -> str:
        """By how many inferences the ending follows."""
        return INFERENCES[len(self.hops) - 1]


def thought_of(rng: random.Random, hops: Sequence[Hop]) -> str:
    """Facts in words that are drawn."""
    return " and".join(rng.choice(THOUGHTS[hop.relation]).format(subject=hop.subject, value=hop.value) for hop in hops)


def ending_of(hops: Sequence[Hop]) -> str:
    """Where a chain ends, as the end of a text."""
    return f" {hops[-1].value}."


def entropies(inferences: int) -> Mapping[str, float]:
    """What is known of texts of this kind, in nats a text: the entropy of the ending for whoever makes the inferences
    and for whoever knows the candidates alone; and that of the thought, which is the choice of its words, because all
    else in it follows from the text."""
    facts = inferences + 1
    return {
        "ending_inferred": 0.0,
        "ending_not_inferred": math.log(CHAINS),
        "thought": facts * math.log(len(THOUGHTS["region"])),
    }


class ChainedTexts:
    """Texts about the names of one split of a world of `people` people, in wordings of that split, each a function of
    (key, index) alone."""

    def __init__(self, people: int, split: Split, key: tuple[object, ...]) -> None:
        self.worlds = SmallWorlds(people, split)
        self.split: Split = split
        self.key = key

    def text(self, index: int) -> ChainedText:
        """Text number `index`; those of one and of two inferences take turns."""
        rng = random.Random(f"chained {self.split} {self.key} {index}")
        path = rng.choice([path for path in ENDINGS[self.split] if len(path) == 2 + index % 2])
        people = [*self.worlds.draw_twins(rng, 2 * CHAINS).people]
        chains = list(self._chains(rng, path, people[:CHAINS]))
        sentences = [_sentence(rng, hop, rng.choice(people[CHAINS:])) for chain in chains for hop in chain]
        rng.shuffle(sentences)
        asked, *others = rng.sample(chains, CHAINS)
        last = rng.choice(ENDINGS[self.split][path]).format(subject=asked[0].subject)
        return ChainedText(
            beginning="".join(sentences) + last,
            ending=ending_of(asked),
            thought=thought_of(rng, asked),
            hops=asked,
            others=tuple(others),
        )

    def _chains(self, rng: random.Random, path: Path, people: Sequence[str]) -> Iterator[tuple[Hop, ...]]:
        """Chains that have nothing in common."""
        pools = {
            "birthplace": iter(rng.sample(self.worlds.words.places, CHAINS)),
            "employer": iter(rng.sample(self.worlds.firms, CHAINS)),
            "author": iter(people),
            "seat": iter(rng.sample(self.worlds.words.places, CHAINS)),
            "region": iter(rng.sample(names.REGIONS, CHAINS)),
        }
        for subject in rng.sample(self.worlds.works, CHAINS) if path[0] == "author" else people:
            hops: list[Hop] = []
            for relation in path:
                about = hops[-1].value if hops else subject
                hops.append(Hop(relation=relation, subject=about, value=next(pools[relation])))
            yield tuple(hops)


def _sentence(rng: random.Random, hop: Hop, stranger: str) -> str:
    """A passage that tells a fact, and beside it things that have no part in any chain, such as a `stranger`."""
    subject, value, year = hop.subject, hop.value, str(rng.choice(names.YEARS))
    slots = {
        "birthplace": {"person": subject, "birthplace": value, "birth_year": year},
        "employer": {"person": subject, "employer": value, "profession": rng.choice(names.PROFESSIONS)},
        "author": {"work": subject, "author": value, "kind": rng.choice(names.KINDS), "year": year},
        "seat": {"firm": subject, "seat": value, "founder": stranger},
        "region": {"town": subject, "region": value},
    }[hop.relation]
    return f" {rng.choice(WORDINGS[hop.relation]).format(**slots)}"
