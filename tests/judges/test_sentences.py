"""What the lexical judge reads in a sentence."""

from __future__ import annotations

from sleuth.judges.sentences import Sentence, sentences_of


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
