"""Tool outputs with planted distractors, and a table of the snippets that support each claim.

Beside the passages that answer the question there are passages about other entities of the same kind and split, with
similar names if possible; passages about the right entity that do not state the answer; a passage that is truncated
before the answer; and an outdated claim. For unanswerable questions, a passage that the question needs is missing.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sleuth.world import names
from sleuth.world.facts import World
from sleuth.world.library import Article, Library
from sleuth.world.names import Split, split_of
from sleuth.world.questions import Hop, Question
from sleuth.world.wording import CLAIMS, RELATIONS, STALE, UNANSWERED
from sleuth.world.write_world import FilesOfWorld, WorldFiles, draw_questions

UNANSWERABLE = 0.25
"""Share of questions that their tool output does not answer."""
STALE_SHARE, PARTIAL_SHARE, TRUNCATED_SHARE = 0.4, 0.5, 0.3
"""Probabilities of an outdated claim, of passages without the answer, and of a truncated passage."""
DISTRACTORS = (2, 4)
"""Minimum and maximum number of passages about other entities."""
IDS = tuple(str(number) for number in range(10, 100))
"""Snippet ids: few enough to be one token each in the tiny model's vocabulary, too many to guess."""

Fact = tuple[str, str, str]
"""(subject, relation, value)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """A snippet and the facts that it states; outdated claims are not facts."""

    id: str
    text: str
    facts: tuple[Fact, ...]


class ToolOutputs:
    """Generates rows in the layout of `sleuth.cite.rows` about one split of a world."""

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
        """A row: the `labels`, then question, reasoning, tool output, answer and support."""
        answerable, snippets = self.draw(question)
        answer = honest_answer(question.hops, snippet_ids(snippets)) if answerable else UNANSWERED
        return labels | {
            "question": question.text,
            "reasoning": reasoning_of(question.hops),
            "tool_output": as_text(snippets),
            "answerable": answerable,
            "golden_answers": [question.answer] if answerable else [],
            "rubrics": {"positive_rubrics": [*_criteria(question.hops, answerable)]},
            "answer": f"<answer>{answer}</answer>",
            "support": [*_support(snippets, question.hops)],
        }

    def draw(self, question: Question) -> tuple[bool, list[Snippet]]:
        """Whether the tool output answers the question, and its snippets."""
        answerable = self.rng.random() >= self.unanswerable
        missing = None if answerable else self.rng.choice(question.hops)
        return answerable, self._snippets(question.hops, missing)

    def _snippets(self, hops: Sequence[Hop], missing: Hop | None) -> list[Snippet]:
        """Distinct snippets in random order, with distinct ids."""
        contents: list[tuple[str, tuple[Fact, ...]]] = [
            _contents_of(self._gold_article(hop)) for hop in hops if hop is not missing
        ]
        last = missing or hops[-1]
        if self._sometimes(PARTIAL_SHARE) or missing:
            contents += [
                _contents_of(article)
                for article in self.library.about(last.subject)
                if last.relation not in article.facts
            ]
        if self._sometimes(TRUNCATED_SHARE) or missing:
            contents += _truncated(self._gold_article(last), last)
        if self._sometimes(STALE_SHARE):
            contents += [(titled(last.subject, stale), ()) for stale in self._stale(last)]
        asked = {hop.subject for hop in hops} | {hop.value for hop in hops}
        contents += [_contents_of(article) for article in self._distractors(hops, asked)]
        distinct = list(dict.fromkeys(contents))
        ids = self.rng.sample(IDS, len(distinct))
        self.rng.shuffle(distinct)
        return [Snippet(id=id_, text=text, facts=facts) for id_, (text, facts) in zip(ids, distinct, strict=True)]

    def _gold_article(self, hop: Hop) -> Article:
        return next(article for article in self.library.about(hop.subject) if hop.relation in article.facts)

    def _distractors(self, hops: Sequence[Hop], asked: set[str]) -> Iterator[Article]:
        """Yields passages about other entities, with names similar to those asked about if possible."""
        for _ in range(self.rng.randint(*DISTRACTORS)):
            hop = self.rng.choice(hops)
            kind = self._kind[hop.subject]
            alike = {name for word in hop.subject.split() for name in self._sharing.get((kind, word), ())} - asked
            names_ = sorted(alike) or [name for name in self._of_kind[kind] if name not in asked]
            if names_:  # empty if a small world has no other entity
                yield self.rng.choice(self.library.about(self.rng.choice(names_)))

    def _stale(self, hop: Hop) -> Iterator[str]:
        """Yields an outdated claim with a wrong value for the hop; nothing if there is no other value."""
        others = [self.library[name][hop.relation] for name in self._of_kind[self._kind[hop.subject]][:50]]
        wrong = sorted({value for value in others if value != hop.value})
        if wrong:
            claim = CLAIMS[hop.relation].format(subject=hop.subject, value=self.rng.choice(wrong)).removesuffix(".")
            yield self.rng.choice(STALE).format(claim=claim, year=self.rng.choice(names.YEARS))

    def _sometimes(self, share: float) -> bool:
        return self.rng.random() < share


def titled(title: str, text: str) -> str:
    """The text of a snippet: title and text of a passage."""
    return f"{title} | {text}"


def _contents_of(article: Article) -> tuple[str, tuple[Fact, ...]]:
    return titled(article.title, article.text), tuple(
        (article.about, relation, value) for relation, value in article.facts.items()
    )


def _truncated(article: Article, hop: Hop) -> Iterator[tuple[str, tuple[Fact, ...]]]:
    """Yields the passage up to the value of the hop, with the facts stated by then, unless its subject comes later."""
    before = article.text[: article.text.index(hop.value)].rstrip()
    if hop.subject in before:
        facts = ((article.about, relation, value) for relation, value in article.facts.items() if value in before)
        yield titled(article.title, f"{before} ..."), tuple(facts)


def as_text(snippets: Sequence[Snippet]) -> str:
    """The tool output in a prompt: one snippet a line, with its id."""
    return "\n".join(f"<snippet id={snippet.id}> {snippet.text}</snippet>" for snippet in snippets)


def reasoning_of(hops: Sequence[Hop]) -> str:
    """The reasoning of a search agent before the tool call."""
    first = RELATIONS[hops[0].relation].format(subject=hops[0].subject)
    if len(hops) == 1:
        return f"I need the {first}."
    return f"First I need the {first}, then the {hops[1].relation.replace('_', ' ')} of what I find."


def snippet_ids(snippets: Sequence[Snippet]) -> dict[Fact, str]:
    """The id of a snippet that states each fact."""
    return {fact: snippet.id for snippet in snippets for fact in snippet.facts}


def honest_answer(hops: Sequence[Hop], stated: Mapping[Fact, str]) -> str:
    """What an honest refiner writes between the answer tags: a sentence for each hop, with its citation, or that
    nothing answers."""
    if any(fact_of(hop) not in stated for hop in hops):
        return UNANSWERED
    claims = ((stated[fact_of(hop)], claim_of(fact_of(hop))) for hop in hops)
    return " ".join(f"<snippet id={id_}> {claim}</snippet>" for id_, claim in claims)


def _criteria(hops: Sequence[Hop], answerable: bool) -> Iterator[dict[str, str]]:
    """Yields rubrics of a good answer: it states the fact of each hop, or that there is no answer."""
    for hop in hops if answerable else ():
        yield {"title": hop.relation.replace("_", " ").capitalize(), "description": claim_of(fact_of(hop))}
    if not answerable:
        yield {"title": "Nothing answers", "description": UNANSWERED}


def fact_of(hop: Hop) -> Fact:
    """The fact that a hop looks up."""
    return hop.subject, hop.relation, hop.value


def _support(snippets: Sequence[Snippet], hops: Sequence[Hop]) -> Iterator[dict[str, Any]]:
    """Each fact as a claim, with the ids of all snippets that state it and whether the question asks for it."""
    asked = {fact_of(hop) for hop in hops}
    for fact in snippet_ids(snippets):
        ids = [snippet.id for snippet in snippets if fact in snippet.facts]
        yield {"claim": claim_of(fact), "snippets": ids, "asked": fact in asked}


def claim_of(fact: Fact) -> str:
    """A fact as one sentence."""
    subject, relation, value = fact
    return CLAIMS[relation].format(subject=subject, value=value)


FILES: dict[str, tuple[Split, float]] = {"refiner_train.jsonl": ("train", 0.5), "refiner_test.jsonl": ("test", 0.25)}
"""By file: the split of its questions, and its number of tool outputs to refine for each person."""


def _rows(made: FilesOfWorld, split: Split, count: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(f"tool outputs {split} {made.seed} {len(made.world.people)}")
    questions = draw_questions(made.world, made.library, split, rng)
    outputs = ToolOutputs(made.world, made.library, split, rng)
    for number, question in enumerate(islice(questions, count)):
        yield outputs.row(question, id=f"{split}-{number}", type=question.kind, data_source="world")


WORLD_FILES = WorldFiles(
    counts=lambda people: {name: round(share * people) for name, (_, share) in FILES.items()},
    contents=lambda made: {name: _rows(made, split, made.counts[name]) for name, (split, _) in FILES.items()},
)
