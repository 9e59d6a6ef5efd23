"""The lexical judge: what supports what, by names, dates, numbers, words and denials."""

from __future__ import annotations

import pytest

from sleuth.judges.lexical import Sentence, sentences_of, support

VOSS = "Ada Voss\nAda Voss was born in Tarn on 12 March 1874. She was a painter of harbours and sold 1,200 pictures."


def score(claim: str, evidence: str = VOSS) -> float | None:
    return support(claim, evidence).score


@pytest.mark.parametrize(
    "claim",
    [
        "Ada Voss was born in Tarn.",
        "Ada Voss was born in Tarn in March 1874.",
        "Ada Voss was born on March 12, 1874.",
        "Voss was born on 1874-03-12 in Tarn",
        "Ada Voss was a painter of harbours.",
        "Ada Voss sold 1200 pictures.",
        "Ada Voss was born in Tarn. She sold 1,200 pictures.",
    ],
)
def test_what_the_evidence_says_is_supported_however_dates_and_numbers_are_written(claim: str) -> None:
    assert score(claim) == 1.0


@pytest.mark.parametrize(
    ("claim", "missing"),
    [
        ("Ida Voss was born in Tarn.", "ida voss"),
        ("Ada Voss was born in Velde.", "velde"),
        ("Ada Voss was born in 1875.", "1875"),
        ("Ada Voss was born on 13 March 1874.", "1874 3 13"),
        ("Ada Voss was born in April 1874.", "1874 4"),
        ("Ada Voss sold 1,300 pictures.", "1300"),
    ],
)
def test_a_changed_name_number_or_date_is_never_supported_and_the_reason_names_it(claim: str, missing: str) -> None:
    verdict = support(claim, VOSS)
    assert (verdict.score, verdict.reason) == (0.0, f"{missing} is not in the evidence")


def test_a_denial_on_one_side_alone_is_no_support() -> None:
    assert score("Ada Voss was not born in Tarn.") == 0.0
    assert score("Ada Voss was born in Tarn.", "Ada Voss was not born in Tarn.") == 0.0
    assert score("Ada Voss wasn't born in Tarn.", "Ada Voss was never born in Tarn.") == 1.0


BORN = "Ada Voss was born in Tarn"
UNDERCUT = (
    "It is false that {}.",
    "It is wrong that {}.",
    "That {} is untrue.",
    "{}. That is not true.",
    "{}. This was denied.",
    "{}. Not so.",
    "Nobody believes that {}.",
    "It was once thought, wrongly, that {}.",
    "It was once thought that {}.",
    "It is a myth that {}.",
    "Is it true that {}?",
    "If {}, much follows.",
    "Suppose that {}.",
    "No, Ada Voss was not born in Tarn.",
    "Ada Voss was neither born in Tarn nor in Velde.",
)


@pytest.mark.parametrize("form", UNDERCUT)
def test_what_is_denied_framed_asked_or_supposed_is_neither_supported_nor_support(form: str) -> None:
    undercut = form.format(BORN)
    assert score(undercut, f"{BORN}. Ada Voss knew Velde.") == 0.0
    assert score(f"{BORN}.", undercut) == 0.0


@pytest.mark.parametrize(
    "form", ["It is not false that {}.", "Nobody denies that {}.", "There is no doubt that {}.", "No, {}."]
)
def test_a_denied_denial_and_a_no_to_the_question_affirm(form: str) -> None:
    assert score(form.format(BORN)) == 1.0


def test_what_one_side_and_the_other_frame_alike_is_supported() -> None:
    assert score(f"It was believed that {BORN}.", f"In Velde it was believed that {BORN}.") == 1.0
    assert score(f"If {BORN}, she knew the sea.", f"She knew the sea if {BORN}.") == 1.0


def test_other_words_about_the_right_names_are_no_support() -> None:
    assert score("Ada Voss was born in Tarn.", "Ada Voss died in Tarn.") == 0.0
    assert score("Ada Voss was born and raised in Tarn.", "Ada Voss was born in Tarn.") == 0.5


def test_names_that_only_stand_in_one_text_do_not_vouch_for_each_other() -> None:
    apart = "Ada Voss was a potter. Bert Holt was born in Tarn."
    assert score("Ada Voss was born in Tarn.", apart) == 0.0
    met = f"{apart} Ada Voss met Bert Holt."
    assert score("Ada Voss was born in Tarn.", met) == 0.0


def test_a_pronoun_reaches_back_one_sentence_and_never_across_a_snippet() -> None:
    assert score("Ada Voss was born in Tarn.", "Ada Voss was a potter. She was born in Tarn.") == 1.0
    assert score("Ada Voss was born in Tarn.", "Ada Voss was a potter.\n\nShe was born in Tarn.") == 0.0


def test_a_claim_of_two_hops_is_supported_by_both_sentences_and_by_neither_alone() -> None:
    claim = "The author of The Silent Harbor was born in Tarn."
    wrote, born = "The author of The Silent Harbor is Celia Fenwick.", "Celia Fenwick was born in Tarn."
    assert score(claim, f"{wrote}\n\n{born}") == 1.0
    assert (score(claim, wrote), score(claim, born)) == (0.0, 0.0)


def test_forms_of_a_verb_are_one_word() -> None:
    assert score("Celia Fenwick wrote The Silent Harbor.", "The Silent Harbor was written by Celia Fenwick.") == 1.0
    assert score("Celia Fenwick founded Kelholt Mills.", "Kelholt Mills was founded by Celia Fenwick.") == 1.0


def test_a_claim_without_a_name_is_judged_by_its_words() -> None:
    evidence = "Ionic liquids display various levels of toxicity. They can irritate the skin."
    assert score("These liquids show toxicity.", evidence) == 0.5
    assert score("Ionic liquids display toxicity.", evidence) == 1.0
    assert score("Rivers carry sand.", evidence) == 0.0


@pytest.mark.parametrize("claim", ["", ".", "and so on", "It is."])
def test_a_claim_that_says_nothing_is_not_supported(claim: str) -> None:
    assert score(claim) == 0.0


@pytest.mark.parametrize("evidence", ["", "  ", "."])
def test_no_evidence_supports_nothing(evidence: str) -> None:
    assert score("Ada Voss was born in Tarn.", evidence) == 0.0
    assert score("rivers carry sand", evidence) == 0.0


def test_a_claim_of_several_sentences_is_as_good_as_its_worst() -> None:
    assert score("Ada Voss was born in Tarn. She was a dentist in Velde.") == 0.0


# -- what it reads in a sentence --------------------------------------------------------------------------------------


def read(text: str) -> Sentence:
    [sentence] = sentences_of(text)
    return sentence


def test_a_sentence_is_read_as_names_dates_numbers_and_words() -> None:
    sentence = read("In Tarn, Dr. Ada Voss painted two of the harbours on 12 March 1874 for 5% of 1.5 million.")
    assert sentence.anchors == {
        ("name", "tarn"),
        ("name", "ada", "voss"),
        ("date", "1874", "3", "12"),
        ("number", "2"),
        ("number", "5"),
        ("number", "1500000"),
    }
    assert sentence.words == {("word", "paint"), ("word", "harbour"), ("word", "percent"), ("word", "million")}
    assert not sentence.denies


def test_initials_and_abbreviations_end_no_sentence() -> None:
    assert [s.text for s in sentences_of("Dr. A. Voss met Mr. Holt. They left.")] == [
        "Dr. A. Voss met Mr. Holt.",
        "They left.",
    ]


def test_the_first_word_is_a_name_only_where_it_is_one_elsewhere() -> None:
    assert ("name", "tarn") in read("Tarn lies by the sea, says Tarn.").anchors
    assert read("Painters like the sea.").anchors == frozenset()
    assert read("USA wins.").anchors == {("name", "usa")}


def test_a_second_denial_takes_the_first_back() -> None:
    assert read("Ada never painted.").denies
    assert read("Ada didn't paint.").denies
    assert not read("Ada never painted without a hat.").denies


def test_a_date_holds_what_tells_no_more_than_it() -> None:
    told = read("It opened on 12 March 1874 in Tarn.")
    assert told.contains(("date", "1874", "3", ""))
    assert told.contains(("number", "1874"))
    assert not read("It opened in Tarn in March 1874.").contains(("date", "1874", "3", "12"))
