"""What a tool may return for a question, with everything planted in it that misleads a refiner, and a table that says
exactly which claim is supported by which snippet.

Beside the passages that answer the question stand passages about other entities of the same kind and split, which
share a name with it where any do; one that speaks of the right entity and not of what was asked; one that breaks off
before it tells; and one that tells what no longer holds. Where the question is not to be answered, a passage that it
needs is left out.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sleuth.world import names
from sleuth.world.facts import World
from sleuth.world.library import Article, Library
from sleuth.world.names import Split, split_of
from sleuth.world.questions import Hop, Question
from sleuth.world.wording import CLAIMS, RELATIONS, STALE, UNANSWERED

UNANSWERABLE = 0.25
"""Share of the questions that their tool output does not answer."""
STALE_SHARE, PARTIAL_SHARE, BROKEN_SHARE = 0.4, 0.5, 0.3
"""How often a tool output holds what no longer holds, a passage beside the point, and one that breaks off."""
OTHERS = (2, 4)
"""The fewest and the most passages about other entities."""
IDS = tuple(str(number) for number in range(10, 100))
"""Of snippets: few enough to be a token each in the tiny model's vocabulary, and many enough to be guessed in vain."""

Fact = tuple[str, str, str]
"""(subject, relation, value)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """A piece of a tool output, and the facts that it states; what no longer holds is none."""

    id: str
    text: str
    facts: tuple[Fact, ...]


class ToolOutputs:
    """Makes rows in the layout of `sleuth.data.refiner` about one split of a world."""

    def __init__(
        self,
        world: World,
        library: Library,
        split: Split,
        rng: random.Random,
        *,
        unanswerable: float = UNANSWERABLE,
    ) -> None:
        self.library = library
        self.unanswerable = unanswerable
        self.rng = rng
        kinds = (world.people, world.works, world.firms, world.towns)
        self._kind = {name: at for at, kind in enumerate(kinds) for name in kind}
        self._of_kind = [[name for name in kind if name in world.towns or split_of(name) == split] for kind in kinds]
        self._sharing: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
        for at, entities in enumerate(self._of_kind):
            for name in entities:
                for word in set(name.split()) - {"The", "of"}:
                    self._sharing[at, word].append(name)

    def row(self, question: Question, **labels: Any) -> dict[str, Any]:
        """One row, with the `labels` that its place in a file gives it."""
        answerable, snippets = self.returned(question)
        return labels | {
            "question": question.text,
            "reasoning": reasoning_of(question.hops),
            "tool_output": as_text(snippets),
            "answerable": answerable,
            "golden_answers": [question.answer] if answerable else [],
            "rubrics": {"positive_rubrics": [*_criteria(question.hops, answerable)]},
            "answer": f"<answer>{_answer(question.hops, snippets) if answerable else UNANSWERED}</answer>",
            "support": [
                {"claim": claim, "snippets": list(ids), "asked": asked}
                for claim, ids, asked in _support(snippets, question.hops)
            ],
        }

    def returned(self, question: Question) -> tuple[bool, list[Snippet]]:
        """Whether the question can be answered from what came back, and that."""
        answerable = self.rng.random() >= self.unanswerable
        missing = None if answerable else self.rng.choice(question.hops)
        return answerable, self._snippets(question.hops, missing)

    def _snippets(self, hops: Sequence[Hop], missing: Hop | None) -> list[Snippet]:
        """In any order, and no two with one id."""
        told: list[tuple[str, tuple[Fact, ...]]] = [_told(self._gold(hop)) for hop in hops if hop is not missing]
        last = missing or hops[-1]
        if self._sometimes(PARTIAL_SHARE) or missing:
            told += [
                _told(article) for article in self.library.about(last.subject) if last.relation not in article.facts
            ]
        if self._sometimes(BROKEN_SHARE) or missing:
            told += _broken_off(self._gold(last), last)
        if self._sometimes(STALE_SHARE):
            told += [(titled(last.subject, stale), ()) for stale in self._stale(last)]
        asked = {hop.subject for hop in hops} | {hop.value for hop in hops}
        told += [_told(article) for article in self._others(hops, asked)]
        unlike = list(dict.fromkeys(told))
        ids = self.rng.sample(IDS, len(unlike))
        self.rng.shuffle(unlike)
        return [Snippet(id=id_, text=text, facts=facts) for id_, (text, facts) in zip(ids, unlike, strict=True)]

    def _gold(self, hop: Hop) -> Article:
        return next(article for article in self.library.about(hop.subject) if hop.relation in article.facts)

    def _others(self, hops: Sequence[Hop], asked: set[str]) -> Iterator[Article]:
        """Passages about entities that a search engine would confuse with those asked about; never about these."""
        for _ in range(self.rng.randint(*OTHERS)):
            hop = self.rng.choice(hops)
            kind = self._kind[hop.subject]
            alike = {name for word in hop.subject.split() for name in self._sharing.get((kind, word), ())} - asked
            names_ = sorted(alike) or [name for name in self._of_kind[kind] if name not in asked]
            if names_:  # a small world may have nobody else
                yield self.rng.choice(self.library.about(self.rng.choice(names_)))

    def _stale(self, hop: Hop) -> Iterator[str]:
        """Another value for the hop, told as what does not hold; none where the world has no other."""
        others = [self.library[name][hop.relation] for name in self._of_kind[self._kind[hop.subject]][:50]]
        wrong = sorted({value for value in others if value != hop.value})
        if wrong:
            claim = CLAIMS[hop.relation].format(subject=hop.subject, value=self.rng.choice(wrong)).removesuffix(".")
            yield self.rng.choice(STALE).format(claim=claim, year=self.rng.choice(names.YEARS))

    def _sometimes(self, share: float) -> bool:
        return self.rng.random() < share


def titled(title: str, text: str) -> str:
    """A passage as a snippet tells it: what it is about, then its text."""
    return f"{title} | {text}"


def _told(article: Article) -> tuple[str, tuple[Fact, ...]]:
    return titled(article.title, article.text), tuple(
        (article.about, relation, value) for relation, value in article.facts.items()
    )


def _broken_off(article: Article, hop: Hop) -> Iterator[tuple[str, tuple[Fact, ...]]]:
    """The passage up to the value that was asked for, where that leaves its subject; with what it has told by then."""
    before = article.text[: article.text.index(hop.value)].rstrip()
    if hop.subject in before:
        facts = ((article.about, relation, value) for relation, value in article.facts.items() if value in before)
        yield titled(article.title, f"{before} ..."), tuple(facts)


def as_text(snippets: Sequence[Snippet]) -> str:
    """What the tool returned, as it stands in a prompt: a snippet a line, with its id."""
    return "\n".join(f"<snippet id={snippet.id}> {snippet.text}</snippet>" for snippet in snippets)


def reasoning_of(hops: Sequence[Hop]) -> str:
    wanted = RELATIONS[hops[0].relation].format(subject=hops[0].subject)
    if len(hops) == 1:
        return f"I need the {wanted}."
    return f"First I need the {wanted}, then the {hops[1].relation.replace('_', ' ')} of what I find."


def _answer(hops: Sequence[Hop], snippets: Sequence[Snippet]) -> str:
    """Every hop in a sentence, with the snippet that states it."""
    stated: Mapping[Fact, str] = {fact: snippet.id for snippet in snippets for fact in snippet.facts}
    return " ".join(cited(stated[fact_of(hop)], claim_of(fact_of(hop))) for hop in hops)


def _criteria(hops: Sequence[Hop], answerable: bool) -> Iterator[dict[str, str]]:
    """What a good answer says: every hop, or that nothing answers."""
    for hop in hops if answerable else ():
        yield {"title": hop.relation.replace("_", " ").capitalize(), "description": claim_of(fact_of(hop))}
    if not answerable:
        yield {"title": "Nothing answers", "description": UNANSWERED}


def cited(id_: str, claim: str) -> str:
    """A claim as a refiner writes it."""
    return f"<snippet id={id_}> {claim}</snippet>"


def fact_of(hop: Hop) -> Fact:
    """What a hop looks up."""
    return hop.subject, hop.relation, hop.value


def _support(snippets: Sequence[Snippet], hops: Sequence[Hop]) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """(claim, the ids of all snippets that state it, whether the question asks for it), for every fact."""
    asked = {fact_of(hop) for hop in hops}
    for fact in dict.fromkeys(fact for snippet in snippets for fact in snippet.facts):
        yield claim_of(fact), tuple(snippet.id for snippet in snippets if fact in snippet.facts), fact in asked


def claim_of(fact: Fact) -> str:
    """A fact in a sentence of its own."""
    subject, relation, value = fact
    return CLAIMS[relation].format(subject=subject, value=value)
