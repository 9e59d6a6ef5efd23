"""The pictures of real answers are of questions drawn by a seed, as the page shows them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM
from small_agents import ADA, LAKE, TARN, Shelf, agent, quotes

from tools.draw_real_answers import take_all


def record(at: int, **changes: Any) -> dict[str, Any]:
    return {"question": f"Where was {at}?", "golden_answers": ["Tarn", "the Tarn"], "em": at % 2} | changes


RECORDS = [record(at) for at in range(40)]


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
