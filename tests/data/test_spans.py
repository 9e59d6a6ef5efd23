"""Spans that could answer a question, and questions made by leaving them out."""

from __future__ import annotations

import random

from sleuth.data.spans import answer_spans, best_sentences, cloze, sentences
from sleuth.types import Passage

TEXT = (
    "Ada Voss was born on 3 May 1912 in Tarn. She paid $40 million for the old lighthouse, and 12% of Kolm. "
    '"The Sea" came third.'
)


def test_sentences_end_at_a_full_stop_before_a_capital_or_a_quotation_mark():
    assert [TEXT[begin:stop] for begin, stop in sentences(TEXT)] == [
        "Ada Voss was born on 3 May 1912 in Tarn.",
        "She paid $40 million for the old lighthouse, and 12% of Kolm.",
        '"The Sea" came third.',
    ]


def test_the_best_sentences_share_most_words_with_a_query_and_those_of_earlier_passages_come_first():
    one = Passage(id="1", title="Mill", text="It rained. Ada invented a mill. Nobody came.")
    two = Passage(id="2", title="Bo", text="Ada slept. The invention of Ada was a mill in Kolm.")
    found = best_sentences("the inventor of a mill in Kolm", [one, two], 4)
    # shared, less 0.3 for the second passage: its last 3 - 0.3; of the first 2, and 1 by the title alone, twice
    assert [(passage.id, passage.title, passage.text) for passage in found] == [
        ("2", "Bo", "The invention of Ada was a mill in Kolm."),
        ("1", "Mill", "Ada invented a mill."),
        ("1", "Mill", "It rained."),
        ("1", "Mill", "Nobody came."),
    ]
    assert [passage.text for passage in best_sentences("Who?", [two, one], 3)] == [
        *("Ada slept.", "The invention of Ada was a mill in Kolm.", "It rained.")
    ]
    assert best_sentences("Ada", [], 3) == []


def test_spans_are_dates_numbers_names_and_noun_phrases_that_do_not_overlap():
    found = {TEXT[span.start : span.end]: span.kind for bound in sentences(TEXT) for span in answer_spans(TEXT, *bound)}
    assert found == {
        "3 May 1912": "date",  # and not the year 1912, nor the number 3
        "Ada Voss": "name",
        "Tarn": "name",
        "$40 million": "money",
        "12%": "percent",
        "old lighthouse": "noun",
        "Kolm": "name",  # while "She" is only the first word of a sentence
        "The Sea": "name",
    }


def test_a_cloze_asks_for_a_span_with_the_words_beside_it():
    rng = random.Random(0)
    for _ in range(200):
        made = cloze(TEXT, rng)
        if made is None:
            continue
        answer = TEXT[made.start : made.end]
        begin, stop = next(bound for bound in sentences(TEXT) if bound[0] <= made.start < bound[1])
        assert answer not in made.question
        assert made.question.endswith("?")
        asking = {"Who", "What", "Which", "Whose", "Where", "In", "When", "On", "How", "much", "kind", "type", "of"}
        asking |= {"date", "year", "percentage", "percent", "many", "in", "what"}
        for word in made.question.rstrip("?").split():
            assert word in asking or word in TEXT[begin:stop]
