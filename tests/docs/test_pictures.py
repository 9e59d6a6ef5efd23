"""The pictures of docs/concepts are what tools/draw_concepts.py draws, and need nothing from elsewhere."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tools.draw_concepts import FOLDER, PICTURES, SIBLINGS


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_the_one_that_the_script_draws(name: str) -> None:
    drawn = PICTURES[name]()
    assert (FOLDER / f"{name}.svg").read_text() == drawn, "run: python -m tools.draw_concepts"
    ElementTree.fromstring(drawn)
    assert "prefers-color-scheme: dark" in drawn
    assert re.findall(r'(?:href|src|url)\s*[=(]\s*"?(?!#)', drawn.replace("url(#head)", "")) == []


@pytest.mark.parametrize("name", PICTURES)
def test_no_line_of_text_leaves_its_picture(name: str) -> None:
    picture = ElementTree.fromstring(PICTURES[name]())
    width = float(picture.attrib["viewBox"].split()[2])
    for text in picture.iter("{http://www.w3.org/2000/svg}text"):
        style = text.attrib["class"].split()
        long = len(text.text or "") * (7.9 if "code" in style else 6.6 if "small" in style else 7.7)
        right = float(text.attrib["x"]) + (long / 2 if "middle" in style else long)
        assert right <= width, text.text


def test_the_tree_has_every_token_of_the_rows_once() -> None:
    prefixes = {tuple(row[:end]) for row in SIBLINGS for end in range(1, len(row) + 1)}
    assert f"their prefix tree: {len(prefixes)} tokens, each computed once" in PICTURES["prefix_tree"]()
