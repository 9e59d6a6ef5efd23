"""Texts to think about: endings that follow from their sentences, hasty thoughts, endings that are often wrong."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from sleuth.data.documents import read_documents
from sleuth.think.world_texts import (
    CHAINS,
    INFERENCES,
    TEXTS,
    CarelessTexts,
    ChainedTexts,
    EndedText,
    HastyTexts,
    WorldTexts,
    entropies,
)
from sleuth.think.world_wording import CARELESS_ENDINGS, ENDINGS, GENERIC_THOUGHTS, THOUGHTS
from sleuth.world.names import SPLITS, Split, split_of
from sleuth.world.wording import PASSAGES
from sleuth.world.write_world import CARD, write_world

FORMS = {
    "life": ("person", "birthplace", "birthplace"),
    "career": ("person", "employer", "employer"),
    "work": ("work", "author", "author"),
    "firm": ("firm", "seat", "seat"),
    "town": ("town", "region", "region"),
}
"""Form of passage -> the slot of its subject, its relation and the slot of its value."""
SLOT = r"(?P<{}>[A-Z0-9][\w]*(?: (?:of )?[A-Z]\w*)*|[a-z]+)"


def texts(split: Split, count: int = 300) -> list[EndedText]:
    drawn = ChainedTexts(2000, split, (0,))
    return [drawn.text(index) for index in range(count)]


def facts_in(beginning: str) -> dict[tuple[str, str], str]:
    """(subject, relation) -> value of every sentence, parsed with the wordings of passages."""
    facts = {}
    for form, (about, says, relation) in FORMS.items():
        for wording in PASSAGES[form]:
            pattern = re.sub(r"\\{(\w+)\\}", lambda slot: SLOT.format(slot[1]), re.escape(wording))
            for sentence in re.findall(r" [^.]+\.", beginning):
                if (found := re.fullmatch(pattern, sentence[1:])) is not None:
                    facts[found[about], relation] = found[says]
    return facts


@pytest.mark.parametrize("split", SPLITS)
def test_the_ending_follows_from_the_sentences_alone_and_from_no_single_one(split: Split) -> None:
    for text in texts(split):
        facts = facts_in(text.beginning)
        assert len(facts) == CHAINS * len(text.hops)
        about = text.hops[0].subject
        for hop in text.hops:
            assert hop.subject == about
            about = facts[about, hop.relation]
        assert (text.ending, text.answer) == (f" {about}.", about)
        *sentences, last = re.findall(r" [^.]+\.| [^.]+$", text.beginning)
        subject = text.hops[0].subject
        assert subject in last
        assert not [sentence for sentence in sentences if subject in sentence and text.answer in sentence]


def test_without_inference_all_candidates_are_equally_likely_in_any_order() -> None:
    places: Counter[int] = Counter()
    drawn = texts("train", 1500)
    for text in drawn:
        relation = text.hops[-1].relation
        stated = {value for (_, of), value in facts_in(text.beginning).items() if of == relation}
        assert len(stated) == CHAINS
        places[sorted(stated, key=text.beginning.index).index(text.answer)] += 1
    for place in range(CHAINS):
        assert places[place] / len(drawn) == pytest.approx(1 / CHAINS, abs=0.05)
    assert entropies(1)["ending_not_inferred"] == pytest.approx(math.log(3))


def test_a_thought_states_the_facts_in_order_in_random_wordings() -> None:
    for text in texts("train", 1000):
        rest = text.thought
        for number, hop in enumerate(text.hops):
            rest = rest.removeprefix(" and") if number else rest
            ways = [way.format(subject=hop.subject, value=hop.value) for way in THOUGHTS[hop.relation]]
            [way] = [words for words in ways if rest.startswith(words)]
            rest = rest.removeprefix(way)
        assert rest == ""
    assert entropies(2)["thought"] == pytest.approx(3 * math.log(4))
    assert all(len(set(ways)) == 4 for ways in THOUGHTS.values())


def test_the_splits_share_no_name_and_no_wording() -> None:
    for split in SPLITS:
        for text in texts(split):
            named = {text.hops[0].subject, *(hop.value for hop in text.hops if hop.relation in ("employer", "author"))}
            assert {split_of(name) for name in named} == {split}
    assert all(
        set(ENDINGS["train"][path]).isdisjoint(ENDINGS["test"][path]) and ENDINGS["test"][path]
        for path in ENDINGS["train"]
    )


@pytest.mark.parametrize("kind", [ChainedTexts, HastyTexts, CarelessTexts])
def test_a_text_depends_only_on_key_and_index(kind: type[WorldTexts]) -> None:
    one, same, other = (kind(2000, "train", key) for key in ((1,), (1,), (2,)))
    forwards = [one.text(index) for index in range(12)]
    assert [same.text(index) for index in reversed(range(12))][::-1] == forwards
    assert all(mine != theirs for mine, theirs in zip(forwards, map(other.text, range(12)), strict=True))
    assert all(before.text != behind.text for before, behind in pairwise(forwards))


def test_a_world_contains_chained_texts_and_its_card_has_their_entropies(tmp_path: Path) -> None:
    write_world(tmp_path, seed=0, people=200)
    for split, count in zip(SPLITS, (800, 100), strict=True):
        documents = list(read_documents(tmp_path / TEXTS[split]))
        assert len(documents) == count
        for document in documents:
            [thought] = document.thoughts
            assert document.text[document.cut :] == f" {document.golden_answers[0]}."
            assert thought.at == document.cut
    card = json.loads((tmp_path / CARD).read_text())
    assert card["nats"] == {kind: dict(entropies(inferences)) for inferences, kind in INFERENCES.items()}
    assert card["rows"]["text_train.jsonl"] == 800


# -- hasty thoughts ----------------------------------------------------------------------------------------------------

COUNT = 1200


@pytest.fixture(scope="module")
def hasty() -> list[EndedText]:
    drawn = HastyTexts(2000, "train", (0,))
    return [drawn.text(index) for index in range(COUNT)]


def first_fact(thought: str, relation: str) -> dict[str, str]:
    """Subject -> value of the first fact of a thought, if it is of this relation."""
    first = thought.split(" and")[0]
    for wording in THOUGHTS[relation]:
        begins = wording.split("{subject}")[0]
        if first.startswith(begins) and " is " in first:
            subject, value = first.removeprefix(begins).split(" is ")
            return {subject.removeprefix("the town of "): value}
    return {}


def kind_of(text: EndedText) -> str:
    if text.thought in GENERIC_THOUGHTS:
        return "vain"
    [(subject, value)] = first_fact(text.thought, text.hops[0].relation).items()
    assert subject == text.hops[0].subject
    return "right" if value == text.hops[0].value else "mistaken"


def test_an_ending_follows_from_its_thought_and_is_a_guess_after_a_generic_one(hasty: list[EndedText]) -> None:
    guesses: Counter[bool] = Counter()
    for text in hasty:
        ends = {chain[-1].value for chain in text.others}
        kind, named = kind_of(text), text.ending[1:-1]
        assert (named == text.answer) if kind == "right" else named in ends | {text.answer}
        if kind == "mistaken":
            [mistaken] = [chain for chain in text.others if chain[-1].value == named]
            assert all(hop.value in text.thought for hop in mistaken)
            assert all(hop.value not in text.thought for hop in text.hops)
        if kind == "vain":
            guesses[named == text.answer] += 1
    assert guesses[True] / guesses.total() == pytest.approx(1 / CHAINS, abs=0.08)


# -- careless endings --------------------------------------------------------------------------------------------------


def test_texts_are_of_one_split_with_all_relations_alike_and_the_answer_beside_the_person_asked_about():
    drawn = CarelessTexts(200, "test", (0,))
    texts, people = [*map(drawn.text, range(300))], drawn.worlds.people
    assert min(Counter(text.kind for text in texts)[relation] for relation in CARELESS_ENDINGS) > 70
    assert all(split_of(name) == "test" for name in people)
    for text in texts:
        assert text.beginning.count(".") == CHAINS
        *sentences, last = text.beginning.split(". ")
        [asked] = [name for name in people if name in last]
        [about] = [said for said in sentences if asked in said]
        assert text.answer in about
