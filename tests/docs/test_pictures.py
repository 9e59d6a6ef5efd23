"""The pictures of docs/ are what the scripts in tools/ draw, and load nothing from elsewhere."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from itertools import starmap
from pathlib import Path

import pytest

from sleuth.runs.rollouts import write_rollouts
from sleuth.types import Author, Episode, Group, Score, Segment, Task, Trajectory
from tools import draw_demo, draw_index_sizes
from tools.code_blocks import ROOT
from tools.draw_concepts import DARK, FOLDER, LIGHT, PICTURES, SIBLINGS


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


def test_the_tree_has_every_token_of_the_rows_once() -> None:
    prefixes = {tuple(row[:end]) for row in SIBLINGS for end in range(1, len(row) + 1)}
    assert f"their prefix tree: {len(prefixes)} tokens, each computed once" in PICTURES["prefix_tree"]()


def test_the_files_that_a_picture_names_exist() -> None:
    names = re.findall(r">([a-z_/]+(?:\.py|/))<", PICTURES["token"]())
    assert len(names) == 8
    assert [name for name in names if not (ROOT / "src" / "sleuth" / name).exists()] == []


def demo_run(folder: Path) -> Path:
    """A run folder of three steps, with one episode that searches once and two that search twice."""
    rows = [{"stage": "grpo", "step": step, "reward_mean": step / 4} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "eval").mkdir()
    for name, value in (("base", 0.25), ("trained", 0.875)):
        share = {"value": value, "low": 0.0, "high": 1.0, "n": 600}
        figures = {key: share for key in ("em", "em_one_hop", "em_two_hop")}
        (folder / "eval" / f"{name}.json").write_text(json.dumps(figures))
    search, shown = ("policy", "<think> who</think><search> Ada Voss</search>"), ("env", "[1] Ada Voss | born in Tarn")
    long, answer = ("env", "[1] Ada Voss | " + "in Tarn " * 20), ("policy", "<answer> Tarn</answer>")
    stories = [[search, shown, answer], [search, long, search, long, answer], [search, shown, search, shown, answer]]
    task = Task(id="q1", question="Where?", golden_answers=("Tarn",))
    episodes = tuple(
        Episode(task=task, sample=sample, trajectories=(Trajectory(segments=tuple(starmap(segment, story))),))
        for sample, story in enumerate(stories)
    )
    group = Group(task=task, episodes=episodes, scores=(Score(value=1.0),) * 3)
    write_rollouts(folder / "rollouts" / "step-000003.parquet", [group], [[0.0] * 3])
    return folder


def segment(author: Author, text: str) -> Segment:
    return Segment(author=author, text=text, tokens=(1,))


def test_the_demo_is_drawn_from_its_run_for_light_and_dark_and_narrow_pages(tmp_path: Path) -> None:
    drawn = draw_demo.pictures(demo_run(tmp_path))
    assert sorted(drawn) == sorted(path.name for path in draw_demo.FOLDER.glob("demo*.svg"))
    for svg in drawn.values():
        assert_text_fits(svg)
        assert svg.count("search&gt; Ada Voss") == 2  # the episode of two searches, and of those the shorter lines
        assert "in Tarn in Tarn" not in svg
        assert ">0.250<" in svg
        assert ">0.875<" in svg
    assert drawn["demo-light.svg"].replace(LIGHT, DARK) == drawn["demo-dark.svg"]


@pytest.mark.parametrize("name", ["demo-light.svg", "demo-dark.svg", "demo-narrow-light.svg", "demo-narrow-dark.svg"])
def test_the_readme_shows_the_picture_and_its_figures(name: str) -> None:
    readme, drawn = (ROOT / "README.md").read_text(), (draw_demo.FOLDER / name).read_text()
    assert f"docs/assets/{name}" in readme
    assert_text_fits(drawn)
    before, after = re.findall(r">([01]\.\d{3})<", drawn)[:2]
    assert f"from {before} (" in readme
    assert f"to {after} (" in readme


def test_sizes_of_indexes_are_drawn_and_printed_from_the_same_figures() -> None:
    rows = draw_index_sizes.read_rows()
    page = (ROOT / "docs" / "how-to" / "retrieval.md").read_text()
    for name, svg in draw_index_sizes.pictures(rows).items():
        assert (draw_index_sizes.FOLDER / name).read_text() == svg
        assert f"../assets/{name}" in page
        assert_text_fits(svg)
        guessed = sum(isinstance(row[key], dict) for row in rows for key, _ in draw_index_sizes.PANELS)
        assert svg.count('fill="var(--page)"') == guessed
    assert "\n".join(draw_index_sizes.table(rows)) in page
