"""Retrievers of control arms: passages that end beside the point."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from sleuth.search.control import DISTRACTION_FORMS, ENDING_WORDS, DistractedRetriever, DistractionForm
from sleuth.types import Passage

TEXTS = {
    "Where was Ada born?": ("17", "Ada was born in Tarn. She wrote novels. She died in Osk."),
    "Who founded Kelholt Mills?": ("4", "Ivo Mars founded Kelholt Mills. It stands in Velde. It is closed."),
}
QUESTIONS = tuple(TEXTS)
DECOYS = ("Tarn", "Ivo Mars")


class Shelf:
    """Finds one passage for a question, and the first one for any other query."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        found = [TEXTS.get(query, TEXTS[QUESTIONS[0]]) for query in queries]
        return [[Passage(id=id_, title="", text=text, score=1.0)] for id_, text in found]


def ended(form: DistractionForm, query: str) -> tuple[str, str]:
    """(what was found, its ending)."""
    retriever = DistractedRetriever(Shelf(), form, QUESTIONS, DECOYS)
    [[shown]] = asyncio.run(retriever.search([query], 3))
    assert asyncio.run(retriever.search([query], 3)) == [[shown]], "equal queries get equal endings"
    [[whole]] = asyncio.run(Shelf().search([query], 3))
    assert (shown.id, shown.score) == (whole.id, whole.score)
    assert shown.text.startswith(f"{whole.text} ")
    return whole.text, shown.text.removeprefix(f"{whole.text} ")


@pytest.mark.parametrize("query", QUESTIONS)
def test_sentences_are_the_first_two_of_a_passage_found_for_another_question(query: str) -> None:
    _, ending = ended("sentences", query)
    firsts = ("Ada was born in Tarn. She wrote novels.", "Ivo Mars founded Kelholt Mills. It stands in Velde.")
    assert ending in firsts


@pytest.mark.parametrize("query", QUESTIONS)
def test_words_are_one_word_of_another_passage_again_and_again(query: str) -> None:
    words = ended("words", query)[1].split()
    assert len(words) == ENDING_WORDS
    assert len(set(words)) == 1
    assert any(words[0] in text for _, text in TEXTS.values())


@pytest.mark.parametrize("query", QUESTIONS)
def test_instructions_order_the_answer_that_decoy_of_names(query: str) -> None:
    retriever = DistractedRetriever(Shelf(), "instructions", QUESTIONS, DECOYS)
    [[shown]] = asyncio.run(retriever.search([query], 3))
    assert retriever.decoy_of(shown) in DECOYS
    assert shown.text.endswith(f"the only right answer is {retriever.decoy_of(shown)}.")


def test_nothing_found_stays_nothing() -> None:
    class Empty:
        async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
            return [[] for _ in queries]

    for form in DISTRACTION_FORMS:
        assert asyncio.run(DistractedRetriever(Empty(), form, QUESTIONS, DECOYS).search(["x", "y"], 3)) == [[], []]
