"""The pictures of docs/ are what the scripts in tools/ draw, and load nothing from elsewhere."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from tools import draw_episodes, draw_index_sizes
from tools.code_blocks import ROOT
from tools.draw_concepts import FOLDER, PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_the_one_that_the_script_draws(name: str) -> None:
    drawn = PICTURES[name]()
    assert (FOLDER / f"{name}.svg").read_text() == drawn, "run: python -m tools.draw_concepts"
    assert_text_fits(drawn)
    assert "prefers-color-scheme: dark" in drawn
    assert re.findall(r'(?:href|src|url)\s*[=(]\s*"?(?!#)', drawn.replace("url(#head)", "")) == []


def assert_text_fits(drawn: str) -> None:
    picture = ElementTree.fromstring(drawn)
    width = float(picture.attrib["viewBox"].split()[2])
    for text in picture.iter("{http://www.w3.org/2000/svg}text"):
        style = text.attrib["class"].split()
        wide = (7.3 if "small" in style else 7.9) if "code" in style else 6.6 if "small" in style else 7.7
        long = len(text.text or "") * wide
        right = float(text.attrib["x"]) + (0 if "end" in style else long / 2 if "middle" in style else long)
        assert right <= width, text.text


def test_the_files_that_a_picture_names_exist() -> None:
    names = re.findall(r">([a-z_/]+(?:\.py|/))<", PICTURES["token"]())
    assert len(names) == 8
    assert [name for name in names if not (ROOT / "src" / "sleuth" / name).exists()] == []


RECORDS = json.loads(draw_episodes.RECORDS.read_text())


def test_episodes_are_drawn_from_what_is_kept_of_them() -> None:
    pages = (ROOT / "README.md").read_text() + (ROOT / "docs/gallery.md").read_text()
    for name, svg in draw_episodes.pictures(RECORDS).items():
        assert (draw_episodes.FOLDER / name).read_text() == svg, "run: python -m tools.draw_episodes"
        assert f"assets/{name}" in pages
        assert_text_fits(svg)


def test_the_readme_shows_two_different_searches_and_marks_the_sentence_with_the_answer() -> None:
    record = RECORDS["demo"]
    policy = "".join(text for author, text in record["segments"] if author == "policy")
    assert len(set(re.findall("<search>(.*?)</search>", policy))) == 2
    [sentence] = record["cited"]
    assert record["golden_answers"][0] in sentence
    results = "\n".join(text for author, text in record["segments"] if author == "env")
    assert sentence in results.rpartition("<information>")[2]
    assert f'<tspan class="mark">{sentence.split()[0]}' in draw_episodes.pictures(RECORDS)["demo-light.svg"]


def test_sizes_of_indexes_are_drawn_and_printed_from_the_same_figures() -> None:
    rows = draw_index_sizes.read_rows()
    page = (ROOT / "docs" / "how-to" / "retrieval.md").read_text()
    for name, svg in draw_index_sizes.pictures(rows).items():
        assert (draw_index_sizes.FOLDER / name).read_text() == svg
        assert f"../assets/{name}" in page
        assert_text_fits(svg)
        guessed = sum(isinstance(row[key], dict) for row in rows for key, _ in draw_index_sizes.PANELS)
        assert svg.count('fill="var(--page)"') == guessed
    assert "\n".join(draw_index_sizes.table(rows)) in (ROOT / "docs" / "lab.md").read_text()
