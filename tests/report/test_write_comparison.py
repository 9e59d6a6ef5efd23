from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest
from synthetic_run import HOSTILE, write_run, write_suite
from test_write_report import Page
from verb import sleuth

from sleuth.report.arms import read_arms
from sleuth.report.comparison import compare
from sleuth.report.page import write_comparison


def page_of(out: Path, *places: object) -> str:
    write_comparison(compare(read_arms([str(place) for place in places])), out)
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pages")
    runs = [write_run(folder / name, questions=40) for name in "abc"]
    return page_of(folder / "new" / "page.html", f"plain={runs[0]},{runs[1]}", runs[2], runs[0] / "eval/base.json")


def test_the_page_loads_nothing_from_anywhere_and_runs_this_script_alone(html: str) -> None:
    page = Page(html)
    assert not [attrs for _, attrs in page.elements if {"src", "srcset"} & attrs.keys()]
    assert all((attrs["href"] or "").startswith("#") for _, attrs in page.elements if "href" in attrs)
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttpRequest|import\(", html)
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html


def test_hostile_passages_and_names_stay_text(html: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", questions=4)
    for text in (html, page_of(tmp_path / "p.html", f"{HOSTILE.replace('=', '')}={run}", run / "eval/base.json")):
        page = Page(text)
        assert HOSTILE not in text
        assert len(page.scripts) == 2
        assert "img" not in {tag for tag, _ in page.elements}


def test_every_cell_of_what_became_of_them_leads_to_its_questions(html: str) -> None:
    page = Page(html)
    cells = [attrs["data-became"] or "" for _, attrs in page.elements if "data-became" in attrs]
    rows = page.data["questions"]["rows"]
    for cell in cells:
        left, before, right, after = cell.split(",")
        assert any(
            row["sides"][int(left)]["mode"] == before and row["sides"][int(right)]["mode"] == after for row in rows
        )
    assert len(cells) >= 6


def test_runs_have_matched_curves_and_files_have_none(tmp_path: Path) -> None:
    a, b = (write_run(tmp_path / name, questions=4) for name in "ab")
    charts = Page(page_of(tmp_path / "p.html", a, b)).data["charts"]
    assert [[curve["label"] for curve in chart["curves"]] for chart in charts] == [["a", "b"]] * 6
    one_run = Page(page_of(tmp_path / "q.html", a))
    assert one_run.data["charts"] == []
    assert "No curves" in one_run.text


def test_suites_have_a_table_by_set_in_80_columns_and_on_the_page(tmp_path: Path) -> None:
    sets = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
    for at, name in enumerate(("rules", "example")):
        write_suite(tmp_path / f"{name}.json", dict.fromkeys(sets, 0.4 + 0.4 * at), seed=at)
    asked = (tmp_path / "rules.json", tmp_path / "example.json", "--out", tmp_path / "page.html")
    told = sleuth("compare", *asked, COLUMNS="80").stdout.splitlines()
    tables = [line for line in told if line.startswith(" ")]
    assert max(map(len, tables)) <= 80
    by_set = tables[next(at for at, line in enumerate(tables) if line.startswith(" em by set")) + 2 :]
    assert [line.split()[0] for line in by_set[:14:2]] == list(sets)
    assert by_set[14].startswith(" mean over 7 sets ")
    [overall] = [line for line in tables if line.startswith(" em  ")]
    assert by_set[14].split()[4:] == overall.split()[1:]
    assert any(line.startswith(" mean over 7 sets ") for line in tables)
    page = Page((tmp_path / "page.html").read_text())
    assert [kind for kind, _ in page.elements].count("details") > 10  # a table by set for each figure
    text = " ".join(page.text.split())
    for shown in ("By test set", "bamboogle", "mean over 7 sets", "Exact match em"):
        assert shown in text
