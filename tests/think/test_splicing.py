"""A text with thoughts in it is the text again without them: for any text and any thoughts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.data.documents import read_documents
from sleuth.think.splicing import break_offsets, extract_thoughts, insert_thoughts
from sleuth.types import SleuthError, Thought

TAGS = ("<think>", "</think>")
REAL_DATA = Path(__file__).parents[2] / ".." / "shared" / "data"


@st.composite
def thoughtful(draw: st.DrawFn) -> tuple[str, tuple[Thought, ...]]:
    written = st.text(st.sampled_from("ab .\n<>/think漢é⟦1⟧"), max_size=40).filter(
        lambda text: not any(tag in text for tag in TAGS)
    )
    text = draw(written)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=5)))
    return text, tuple(Thought(at=at, text=draw(written)) for at in places)


@settings(max_examples=400, deadline=None)
@given(thoughtful())
def test_taking_the_thoughts_out_gives_the_text_and_the_thoughts_again(drawn: tuple[str, tuple[Thought, ...]]) -> None:
    text, thoughts = drawn
    assert extract_thoughts(insert_thoughts(text, thoughts)) == (text, thoughts)


@pytest.mark.parametrize("text", ["a <think> b", "a </think> b", "</think>a<think>", "<think>a<think>b</think>"])
def test_a_tag_without_its_other_half_is_refused(text: str) -> None:
    with pytest.raises(SleuthError, match="unpaired "):
        extract_thoughts(text)
    with pytest.raises(SleuthError, match="the tag of a thought"):
        insert_thoughts(text, ())


def test_places_lie_behind_sentences_and_lines_and_never_at_an_end() -> None:
    text = ' Ada asked: "Why?" It rains.\n\nA title\nThe end.'
    assert [text[:at] for at in break_offsets(text)] == [
        " Ada asked:",
        ' Ada asked: "Why?"',
        ' Ada asked: "Why?" It rains.',
        ' Ada asked: "Why?" It rains.\n\nA title',
    ]
    assert break_offsets("One sentence.") == break_offsets("") == []


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs the real data beside the checkout")
def test_every_real_text_is_spliced_at_all_its_places_and_comes_back() -> None:
    count = 0
    for document in read_documents(REAL_DATA / "midtrain_text.jsonl.gz"):
        thoughts = tuple(Thought(at=at, text=f"thought {at}") for at in break_offsets(document.text))
        assert extract_thoughts(insert_thoughts(document.text, thoughts)) == (document.text, thoughts)
        count += 1
    assert count == 1180
