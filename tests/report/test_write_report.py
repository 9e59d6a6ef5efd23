from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from measured import episode_figures
from refusals import line_of
from synthetic_run import HOSTILE, write_run

from sleuth.evaluation.figures import figure, figures
from sleuth.report import write_report
from sleuth.types import Action, Passage, Score, Segment, SleuthError, Task, Trajectory


class Page(HTMLParser):
    """A page as a browser parses it: its elements with their attributes, and the text of its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.text += data

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])


def page_of(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a whole run that searched among hostile passages."""
    run = write_run(tmp_path_factory.mktemp("whole") / "demo", questions=100)
    return write_report(run).read_text(encoding="utf-8")


def test_the_page_loads_nothing_from_anywhere(html: str) -> None:
    page = Page(html)
    loading = {name: value for _, attrs in page.elements for name, value in attrs.items() if name in ("src", "srcset")}
    assert loading == {}
    assert all(attrs["href"].startswith("#") for tag, attrs in page.elements if "href" in attrs)  # type: ignore[union-attr]
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttpRequest|import\(", html)
    assert "link" not in {tag for tag, _ in page.elements}


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo")
    recipe = (run / "recipe.toml").read_text(encoding="utf-8")
    (run / "recipe.toml").write_text(recipe.replace('"demo"', f"'{HOSTILE}'"), encoding="utf-8")
    (run / "eval" / "x<img src=x>.json").write_text(json.dumps({"outcomes": {HOSTILE: 1}}), encoding="utf-8")
    page = page_of(run)
    assert len(page.scripts) == 2
    assert "img" not in {tag for tag, _ in page.elements}
    assert HOSTILE in page.text


def test_half_a_surrogate_pair_does_not_stop_the_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo")
    (run / "eval/base.json").write_text(json.dumps({"outcomes": {"half \ud83d": 1}}), encoding="utf-8")
    assert "half ?" in page_of(run).text


def test_the_head_says_what_was_run_and_what_came_of_it(html: str) -> None:
    text = Page(html).text
    assert "Greedy exact match on 100 questions rose from" in text
    assert "300 steps, 16 prompts a step, 8 samples a prompt, learning rate 0.001, dialect sleuth" in text
    assert "2026-03-02 10:20:30 UTC" in text
    assert "strict answer reward" in text


def test_both_answers_to_a_question_travel_with_their_transcripts(html: str) -> None:
    data = Page(html).data
    assert data["questions"]["of"] == 100
    assert data["questions"]["names"] == ["base", "trained"]
    row = data["questions"]["rows"][0]
    base, trained = row["sides"]
    assert row["question"] == "where was Ada Voss born? (0)"
    assert "".join(data["texts"][segment["text"]] for segment in trained["segments"]).startswith("Question: ")
    assert base["score"] in (0.0, 1.0)
    assert base["mode"] in data["questions"]["modes"]


def test_each_chart_has_its_read_out(html: str) -> None:
    page = Page(html)
    figures = [attrs for tag, attrs in page.elements if tag == "figure"]
    assert [int(attrs["data-chart"] or "") for attrs in figures] == list(range(len(page.data["charts"])))
    assert page.data["charts"][0]["steps"] == list(range(1, 61))


def test_a_large_run_makes_a_page_that_can_be_mailed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo", steps=1000, questions=300, rollout_steps=tuple(range(1, 15)), groups=9)
    assert write_report(run).stat().st_size < 3_000_000


def test_a_run_that_has_only_begun_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('name = "young"\nmodel = "m"\n', encoding="utf-8")
    text = " ".join(page_of(tmp_path).text.split())
    assert "Not measured yet" in text
    assert "No evaluation in this run yet: eval/base.json and eval/trained.json are missing." in text
    assert "No counts of outcomes" in text
    assert "No curves yet: metrics.jsonl is missing or empty." in text
    assert "No rollouts to show" in text
    assert "No questions to compare" in text


def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SleuthError, match=r"not a run folder, it holds no recipe\.toml"):
        write_report(tmp_path)
    with pytest.raises(SleuthError, match="nowhere: no such folder"):
        write_report(tmp_path / "nowhere")


def test_what_a_probe_measured_is_shown_though_it_asked_no_question(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo")
    with open(run / "recipe.toml", "a", encoding="utf-8") as recipe:
        recipe.write('\n[[stage]]\nkind = "probe"\nname = "thoughts"\n')
    figures = {"gain_sampled": {"value": -1.25, "low": -1.5, "high": -1.0, "n": 40}}
    (run / "eval" / "thoughts.json").write_text(json.dumps(figures | {"records": [{"id": "t1"}]}), encoding="utf-8")
    page = write_report(run).read_text(encoding="utf-8")
    assert "Gain of its own thoughts, in nats a token" in page
    assert "-1.250" in page


def test_every_figure_of_an_evaluation_has_words() -> None:
    def answered(kind: str, searched: bool) -> tuple[Task, Trajectory, Score]:
        task = Task(id=kind, question="?", golden_answers=("x",), gold_passages=("1",), kind=kind)
        actions = (
            (Action(kind="search", text="x", passages=(Passage(id="1", title="", text="x"),)),) if searched else ()
        )
        written = Segment(author="policy", tokens=(1,), text="x")
        return task, Trajectory(segments=(written,), actions=actions), Score(value=1.0, parts={"em": 1.0})

    measured = episode_figures([answered("one_hop", True), answered("two_hop", False)])
    assert measured.keys() <= {row.name for row in figures() if row.label and row.meaning}
    assert figure("score_search_r1").label == "Score by search_r1"
    assert figure("score_brevity/two_words").label == "two_words of brevity"
    assert figure("own_figure").label == "Own figure"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("recipe.toml", "name = ", r"recipe\.toml: invalid TOML"),
        ("manifest.json", "{", r"manifest\.json: is not JSON"),
        ("metrics.jsonl", 'torn\n{"step": 2}\n', r"metrics\.jsonl:1: "),
        ("judges.json", '[{"judge": "lexical', r"judges\.json: holds no cards of judges"),
        ("eval/base.json", "[]", r"base\.json: is not a JSON object"),
        ("eval/base.json", '{"records": [{"id": "q1"}]}', r"base\.json: records\[0\] has no `question`"),
    ],
)
def test_a_file_that_cannot_be_understood_is_named(tmp_path: Path, file: str, content: str, message: str) -> None:
    run = write_run(tmp_path / "demo")
    (run / file).write_text(content, encoding="utf-8")
    assert re.search(message, line_of(write_report, run))
