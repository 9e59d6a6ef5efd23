"""The pictures of real answers are of questions drawn by a seed, as the page shows them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM
from small_agents import ADA, LAKE, TARN, Shelf, agent, quotes

from tools.draw_real_answers import BEGIN, END, Picture, draw_records, put_into, section, take_all


def record(at: int, **changes: Any) -> dict[str, Any]:
    return {"question": f"Where was {at}?", "golden_answers": ["Tarn", "the Tarn"], "em": at % 2} | changes


RECORDS = [record(at) for at in range(40)]


def test_questions_are_drawn_by_the_seed_right_ones_first() -> None:
    drawn = draw_records(RECORDS, 0)
    assert list(drawn) == [f"right-{at}" for at in range(1, 6)] + [f"wrong-{at}" for at in range(1, 4)]
    assert [found["em"] for found in drawn.values()] == [1] * 5 + [0] * 3
    assert draw_records(RECORDS, 0) == drawn != draw_records(RECORDS, 1)
    with pytest.raises(SystemExit, match="4 answers are right; 5 are needed"):
        draw_records(RECORDS[:9], 0)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_each_picture_shows_the_answer_with_its_citation_opened(tmp_path: Path) -> None:
    def answer(text: str, sampling: Any) -> str:
        return "<answer> Rome</answer>" if "wrong" in text else quotes(TARN.text.removeprefix("Tarn"))(text, sampling)

    drawn = {"right-1": record(1), "wrong-1": record(0, question="wrong?")}
    served = agent(answer, dialect="reading", shelf=Shelf(ADA, TARN, LAKE))
    right, wrong = take_all(served, drawn, tmp_path)
    assert (right.answer, right.cited, right.sentence, right.right) == ("Tarn", "Tarn", TARN.text, True)
    assert (wrong.answer, wrong.cited, wrong.sentence, wrong.right) == ("Rome", "", "", False)
    heights = []
    for picture in (right, wrong):
        head = (tmp_path / f"real-{picture.name}.png").read_bytes()[:24]
        width, height = struct.unpack(">II", head[16:24])
        assert (head[:8], width) == (b"\x89PNG\r\n\x1a\n", 712)
        heights.append(height)
    assert heights[0] > heights[1] > 100


def test_the_section_says_what_was_shown_and_replaces_the_one_before() -> None:
    shown = {"question": "Where?", "cited": "Tarn", "sentence": "Ada.", "golden_answers": ["Tarn"]}
    pictures = [Picture(name="right-1", answer="Tarn", **shown), Picture(name="wrong-1", answer="Ulm", **shown)]
    text = section(pictures, evaluation="eval/trained.json", questions=1200, seed=0, passages=41_080)
    assert "from the 1,200 questions of `eval/trained.json`" in text
    assert "The page searched 41,080 passages." in text
    assert "![Where? Tarn, from Tarn](../assets/real-right-1.png)\n\nRight.\n" in text
    assert "![Where? Ulm, from Tarn](../assets/real-wrong-1.png)\n\nWrong: expected Tarn.\n" in text
    page = put_into(f"# Page\n{BEGIN}\nold\n{END}\nmore\n", text)
    assert page == f"# Page\n{BEGIN}\n\n{text}\n{END}\nmore\n"
    assert put_into(page, text) == page
