"""Texts whose ending follows from their beginning by one or two inferences, with the thought that leads to it.

A text states a few chains of facts in shuffled sentences: who worked for which firm, which firm is in which town, which
town is in which region. Its last sentence asks for the end of one chain: in which region a person worked. All chains of
a text have the same relations and share no entity, and each is asked about equally often. So the entropy of the ending
is known exactly:

- 0 with the facts of the chain put together;
- ln(chains) nats with all values of the text, but not whose they are.

Every text has facts of its own, so that nothing can be known without reading it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sleuth.think.world_endings import ENDINGS, THOUGHTS, Path
from sleuth.world import names
from sleuth.world.names import Split
from sleuth.world.questions import Hop
from sleuth.world.text import SmallWorlds
from sleuth.world.wording import subject_first_passages

CHAINS = 3
"""Chains of a text."""
INFERENCES = {1: "one_inference", 2: "two_inferences"}
"""Number of inferences -> kind of text."""
FORMS = {
    "birthplace": ("life", "person"),
    "employer": ("career", "person"),
    "author": ("work", "work"),
    "seat": ("firm", "firm"),
    "region": ("town", "town"),
}
"""Relation -> the form of passage that states it, and the slot of its subject; the slot of its value is named after the
relation."""
WORDINGS = {relation: subject_first_passages(form, about, relation) for relation, (form, about) in FORMS.items()}
"""Relation -> wordings of a sentence that states it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainedText:
    """A text. `hops` are the facts from which the ending follows, `thought` is their wording, `others` are the other
    chains of the text.

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
        """The whole text, without the thought."""
        return self.beginning + self.ending

    @property
    def answer(self) -> str:
        """The value in the right ending."""
        return self.hops[-1].value

    @property
    def kind(self) -> str:
        """The number of inferences in words, such as "one_inference"."""
        return INFERENCES[len(self.hops) - 1]


def thought_of(rng: random.Random, hops: Sequence[Hop]) -> str:
    """A thought that states the facts, in random wordings."""
    return " and".join(rng.choice(THOUGHTS[hop.relation]).format(subject=hop.subject, value=hop.value) for hop in hops)


def ending_of(hops: Sequence[Hop]) -> str:
    """The end of a text: the last value of a chain."""
    return f" {hops[-1].value}."


def entropies(inferences: int) -> Mapping[str, float]:
    """Entropies of texts of this kind, in nats a text: of the ending with the inferences and with the candidates alone,
    and of the thought, which is that of its wording, because its facts follow from the text."""
    facts = inferences + 1
    return {
        "ending_inferred": 0.0,
        "ending_not_inferred": math.log(CHAINS),
        "thought": facts * math.log(len(THOUGHTS["region"])),
    }


class ChainedTexts:
    """Texts about names of one split of a world of `people` people, in wordings of that split, each a function of
    (key, index) alone."""

    def __init__(self, people: int, split: Split, key: tuple[object, ...]) -> None:
        self.worlds = SmallWorlds(people, split)
        self.split: Split = split
        self.key = key

    def text(self, index: int) -> ChainedText:
        """Text number `index`; texts with one and with two inferences alternate."""
        rng = random.Random(f"chained {self.split} {self.key} {index}")
        path = rng.choice([path for path in ENDINGS[self.split] if len(path) == 2 + index % 2])
        people = [*self.worlds.draw_twins(rng, 2 * CHAINS).people]
        chains = list(self._chains(rng, path, people[:CHAINS]))
        sentences = [_sentence(rng, hop, rng.choice(people[CHAINS:])) for chain in chains for hop in chain]
        rng.shuffle(sentences)
        target, *others = rng.sample(chains, CHAINS)
        last = rng.choice(ENDINGS[self.split][path]).format(subject=target[0].subject)
        return ChainedText(
            beginning="".join(sentences) + last,
            ending=ending_of(target),
            thought=thought_of(rng, target),
            hops=target,
            others=tuple(others),
        )

    def _chains(self, rng: random.Random, path: Path, people: Sequence[str]) -> Iterator[tuple[Hop, ...]]:
        """Yields chains that share no entity."""
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
    """A sentence that states a fact, and other facts that belong to no chain, such as the name of a `stranger`."""
    subject, value, year = hop.subject, hop.value, str(rng.choice(names.YEARS))
    slots = {
        "birthplace": {"person": subject, "birthplace": value, "birth_year": year},
        "employer": {"person": subject, "employer": value, "profession": rng.choice(names.PROFESSIONS)},
        "author": {"work": subject, "author": value, "kind": rng.choice(names.KINDS), "year": year},
        "seat": {"firm": subject, "seat": value, "founder": stranger},
        "region": {"town": subject, "region": value},
    }[hop.relation]
    return f" {rng.choice(WORDINGS[hop.relation]).format(**slots)}"
