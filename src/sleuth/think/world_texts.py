"""Texts of a generated world to think about, and the files that hold them.

- `ChainedTexts`: the ending follows from the beginning by one or two inferences, and the thought leads to it. A text
  states a few chains of facts in shuffled sentences: who worked for which firm, which firm is in which town, which town
  is in which region. Its last sentence asks for the end of one chain: in which region a person worked. All chains of a
  text have the same relations and share no entity, and each is asked about equally often, so that the entropy of the
  ending is known exactly: 0 with the facts of the chain put together, ln(chains) nats without.
- `HastyTexts`: the same with thoughts that are right half of the time.
- `CarelessTexts`: a text states one fact about each of a few subjects, and its last sentence repeats one of these, half
  of the time with the value of another subject. A model that imitates such texts is right half of the time.

Every text has facts of its own, so that nothing can be known without reading it; the right answer of each is known.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sleuth.think.world_wording import CARELESS_ENDINGS, ENDINGS, GENERIC_THOUGHTS, THOUGHTS, WORDINGS, Path
from sleuth.world import names
from sleuth.world.names import Split
from sleuth.world.questions import Hop
from sleuth.world.text import SmallWorlds
from sleuth.world.write_world import FilesOfWorld, Rows, WorldFiles

CHAINS = 3
"""Chains of a chained text, and subjects of a careless one."""
INFERENCES = {1: "one_inference", 2: "two_inferences"}
"""Number of inferences -> kind of text."""
YEARS = [str(year) for year in names.YEARS]
RIGHT, MISTAKEN = 0.5, 0.25
"""Shares of careless endings and of hasty thoughts that are right, and of hasty ones that mistake one subject for
another; the rest are generic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedText:
    """A text that ends after its `beginning`; `answer` is the value in the right ending, `kind` the number of
    inferences in words or the relation that is asked about. A chained one has the `thought` that states the `hops` from
    which the ending follows, and the `others`, the other chains of the text.

    `EndedText(beginning=" Ada Fenwick was born in Tamton in 1874. ... Ada Fenwick was born in the region of",
    ending=" Osmark.", answer="Osmark", kind="one_inference", thought=" birthplace of Ada Fenwick is Tamton and the
    region of Tamton is Osmark", hops=(Hop(relation="birthplace", ...), ...), others=(...))`.
    """

    beginning: str
    ending: str
    answer: str
    kind: str
    thought: str = ""
    hops: tuple[Hop, ...] = ()
    others: tuple[tuple[Hop, ...], ...] = ()

    @property
    def text(self) -> str:
        """The whole text, without the thought."""
        return self.beginning + self.ending


class WorldTexts(ABC):
    """Texts about names of one split of a world of `people` people, in wordings of that split, each a function of
    (key, index) alone."""

    def __init__(self, people: int, split: Split, key: tuple[object, ...]) -> None:
        self.worlds = SmallWorlds(people, split)
        self.split: Split = split
        self.key = key

    @abstractmethod
    def text(self, index: int) -> EndedText:
        """Text number `index`."""


class ChainedTexts(WorldTexts):
    """Texts whose ending follows by inference; those with one and with two inferences alternate."""

    def text(self, index: int) -> EndedText:
        rng = random.Random(f"chained {self.split} {self.key} {index}")
        path = rng.choice([path for path in ENDINGS[self.split] if len(path) == 2 + index % 2])
        people = [*self.worlds.draw_twins(rng, 2 * CHAINS).people]
        chains = list(self._chains(rng, path, people[:CHAINS]))
        sentences = [_sentence(rng, hop, rng.choice(people[CHAINS:])) for chain in chains for hop in chain]
        rng.shuffle(sentences)
        target, *others = rng.sample(chains, CHAINS)
        last = rng.choice(ENDINGS[self.split][path]).format(subject=target[0].subject)
        return EndedText(
            beginning="".join(sentences) + last,
            ending=_ending(target),
            answer=target[-1].value,
            kind=INFERENCES[len(target) - 1],
            thought=_thought(rng, target),
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


class HastyTexts(ChainedTexts):
    """Chained texts with thoughts that are right half of the time, so that reinforcement learning can improve on
    imitation: a quarter start from the fact of another subject, a quarter fit any text, and the ending follows from the
    thought. `hops` and `answer` are the right ones."""

    def __init__(self, people: int, split: Split, key: tuple[object, ...]) -> None:
        super().__init__(people, split, ("hasty", *key))
        self.own_key = key

    def text(self, index: int) -> EndedText:
        text, rng = super().text(index), random.Random(f"hasty {self.split} {self.own_key} {index}")
        kind = rng.random()
        if kind < RIGHT:
            return text
        if kind < RIGHT + MISTAKEN:
            other, *rest = rng.choice(text.others)
            mistaken = (replace(text.hops[0], value=other.value), *rest)
            return replace(text, thought=_thought(rng, mistaken), ending=_ending(mistaken))
        thought = rng.choice(GENERIC_THOUGHTS)
        return replace(text, thought=thought, ending=_ending(rng.choice([text.hops, *text.others])))


class CarelessTexts(WorldTexts):
    """Texts with endings that are wrong half of the time."""

    def text(self, index: int) -> EndedText:
        rng = random.Random(f"careless {self.split} {self.key} {index}")
        values = {
            "birthplace": self.worlds.words.places,
            "birth_year": YEARS,
            "profession": names.PROFESSIONS,
        }
        relation = rng.choice([*CARELESS_ENDINGS])
        subjects = [*self.worlds.draw_twins(rng, CHAINS).people]
        stated = rng.sample(values[relation], CHAINS)
        sentences = []
        for subject, value in zip(subjects, stated, strict=True):
            slots = {other: rng.choice(some) for other, some in values.items()} | {relation: value}
            slots |= {"person": subject, "employer": rng.choice(self.worlds.firms)}
            sentences.append(f" {rng.choice(WORDINGS[relation]).format(**slots)}")
        target, *others = rng.sample(range(CHAINS), CHAINS)
        named = target if rng.random() < RIGHT else rng.choice(others)
        last = rng.choice(CARELESS_ENDINGS[relation]).format(subject=subjects[target])
        return EndedText(
            beginning="".join(sentences) + last, ending=f" {stated[named]}.", answer=stated[target], kind=relation
        )


def _thought(rng: random.Random, hops: Sequence[Hop]) -> str:
    """A thought that states the facts, in random wordings."""
    return " and".join(rng.choice(THOUGHTS[hop.relation]).format(subject=hop.subject, value=hop.value) for hop in hops)


def _ending(hops: Sequence[Hop]) -> str:
    """The end of a text: the last value of a chain."""
    return f" {hops[-1].value}."


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


def entropies(inferences: int) -> Mapping[str, float]:
    """Entropies of chained texts of this kind, in nats a text: of the ending with the inferences and with the
    candidates alone, and of the thought, which is that of its wording, because its facts follow from the text."""
    facts = inferences + 1
    return {
        "ending_inferred": 0.0,
        "ending_not_inferred": math.log(CHAINS),
        "thought": facts * math.log(len(THOUGHTS["region"])),
    }


# -- the files of a world ----------------------------------------------------------------------------------------------

TEXTS: dict[Split, str] = {"train": "text_train.jsonl", "test": "text_test.jsonl"}
CARELESS: dict[Split, str] = {"train": "careless_train.jsonl", "test": "careless_test.jsonl"}
HASTY = "hasty_train.jsonl"
ARITHMETIC = "arithmetic_test.jsonl"
TEXTS_PER_PERSON: dict[Split, float] = {"train": 4.0, "test": 0.5}
"""Chained, and careless, texts for each person; there are as many hasty ones to train on."""
PROBLEMS_PER_PERSON = 0.05
"""Problems of arithmetic for each person."""
LARGEST = 20
"""The largest number in a problem; no answer is negative."""


def arithmetic_rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """`count` problems in the layout of MATH-500, such as `{"unique_id": "arithmetic-0", "problem": "What is 3 + 14?",
    "answer": "17", "subject": "addition"}`; some may be equal."""
    rng = random.Random(f"arithmetic {seed}")
    for number in range(count):
        less, more = sorted(rng.choices(range(LARGEST + 1), k=2))
        adds = rng.random() < 0.5
        yield {
            "unique_id": f"arithmetic-{number}",
            "problem": f"What is {less} + {more}?" if adds else f"What is {more} - {less}?",
            "answer": str(less + more if adds else more - less),
            "subject": "addition" if adds else "subtraction",
        }


def _text_rows(texts: WorldTexts, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        text = texts.text(number)
        row = {
            "id": f"{texts.split}-{number}",
            "text": text.text,
            "cut": len(text.beginning),
            "golden_answers": [text.answer],
            "type": text.kind,
            "data_source": "world",
        }
        yield row | ({"thoughts": [{"at": len(text.beginning), "text": text.thought}]} if text.thought else {})


def _counts(people: int) -> dict[str, int]:
    counts = {files[split]: round(TEXTS_PER_PERSON[split] * people) for files in (TEXTS, CARELESS) for split in TEXTS}
    return counts | {HASTY: counts[TEXTS["train"]], ARITHMETIC: round(PROBLEMS_PER_PERSON * people)}


def _contents(made: FilesOfWorld) -> dict[str, Rows]:
    people, key, counts = len(made.world.people), (made.seed,), made.counts
    contents: dict[str, Rows] = {}
    for kind, files in ((ChainedTexts, TEXTS), (CarelessTexts, CARELESS)):
        contents |= {file: _text_rows(kind(people, split, key), counts[file]) for split, file in files.items()}
    contents[ARITHMETIC] = arithmetic_rows(counts[ARITHMETIC], made.seed)
    contents[HASTY] = _text_rows(HastyTexts(people, "train", key), counts[HASTY])
    return contents


WORLD_FILES = WorldFiles(
    counts=_counts,
    contents=_contents,
    nats={kind: entropies(inferences) for inferences, kind in INFERENCES.items()},
)
