"""Claims and their ids, read off an answer."""

from __future__ import annotations

import pytest

from sleuth.cite.claims import Claim, bracketed, tagged


def one(answer: str) -> Claim:
    [claim] = tagged(answer).claims
    return claim


@pytest.mark.parametrize(
    "attributes",
    [
        "id=a1,b2",
        'id="a1,b2"',
        "id='a1, b2'",
        'ids="a1, b2"',
        "id=a1, b2",
        'id = "a1 b2"',
        "id=[a1, b2]",
        'id="a1","b2"',
        "id=a1 id=b2",
        'id="a1;b2" lang="en"',
        "id=a1,b2 /",
        "ID=a1,b2,a1",
    ],
)
def test_all_ids_of_a_claim_are_read_however_they_are_written(attributes: str) -> None:
    assert one(f"<snippet {attributes}>Ada was born.</snippet>") == Claim(text="Ada was born.", ids=("a1", "b2"))
    assert one(f"<cite {attributes}>Ada was born.</cite>").ids == ("a1", "b2")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("<snippet id=a1>Ada was <b>born</b> in\n**Tarn**.</snippet>", "Ada was born in Tarn."),
        ("<snippet id=a1>Ada <was born in Velde></snippet>", "Ada <was born in Velde>"),  # which hides nothing
        ("<snippet id=a1>Ada was <snippet id=a1>born</snippet>", "Ada was born"),
    ],
)
def test_markup_within_a_claim_stays_out_of_its_way_and_what_is_no_tag_is_its_text(answer: str, text: str) -> None:
    assert one(answer) == Claim(text=text, ids=("a1",))


@pytest.mark.parametrize(
    "answer", ["<snippet id=a1>Ada was born.", "<snippet>Ada</snippet>", "<snippet id=>Ada</snippet>"]
)
def test_a_tag_that_never_closes_or_names_no_id_makes_no_claim(answer: str) -> None:
    assert (tagged(answer).claims, tagged(answer).padding) == ((), 1.0)


def test_words_without_a_citation_and_words_said_again_are_padding() -> None:
    said = "<snippet id=a1>Ada was born in Tarn.</snippet>"
    assert tagged(said).padding == 0.0
    assert tagged(f"As we all know, {said}").padding == 4 / 9
    assert tagged(f"{said} {said}").padding == 0.5
    assert tagged("").padding == 0.0


def test_claims_that_say_the_same_are_one_with_the_ids_of_all() -> None:
    twice = tagged("<snippet id=a1>Ada was born.</snippet> <snippet id=b2,a1>ada was born</snippet>")
    assert twice.claims == (Claim(text="Ada was born.", ids=("a1", "b2")),)


def test_brackets_cite_for_their_sentence_before_or_behind_its_stop() -> None:
    cited = bracketed("Ada was born in Tarn [1][3]. She painted.[2, 3] She died. [1.2] Nobody knows why.")
    assert cited.claims == (
        Claim(text="Ada was born in Tarn.", ids=("1", "3")),
        Claim(text="She painted.", ids=("2", "3")),
        Claim(text="She died.", ids=("1.2",)),
    )
    assert cited.padding == 3 / 12


def test_an_answer_of_thousands_of_open_tags_is_read_at_once() -> None:
    assert tagged("<snippet id=a1>" * 20_000).claims == ()
    assert len(tagged("<snippet id=a1>x</snippet>" * 20_000).claims) == 1
