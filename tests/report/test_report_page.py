"""The report in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from synthetic_run import write_run

from sleuth.report import write_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
CLIPPED = (
    "[...document.querySelectorAll('#figures .scroll, #outcomes .scroll, #time')]"
    ".filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.textContent.slice(0, 40))"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run with three evaluations."""
    run = write_run(tmp_path_factory.mktemp("looked-at") / "demo", questions=20)
    base = json.loads((run / "eval/base.json").read_text(encoding="utf-8"))
    (run / "eval/base_forced_search.json").write_text(json.dumps(base | {"name": "forced"}), encoding="utf-8")
    return write_report(run)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, page: Path) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        browser.open(page.as_uri())
        yield browser


def test_nothing_is_clipped_on_a_screen_or_a_phone(browser: Browser) -> None:
    for width in (1280, 390):
        browser.resize(width, 900)
        assert browser.value("document.querySelectorAll('#outcomes td').length") == 15
        assert browser.value(CLIPPED) == [], width
        assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.complaints == []


def test_the_viewer_opens_where_siblings_differ(browser: Browser) -> None:
    at, group = browser.value("data.opened")
    scores = browser.value(f"data.rollouts[{at}].groups[{group}].siblings.map((one) => one.score)")
    assert {0, 1} <= set(scores)
    shown = "document.querySelector('#rollout-detail h3').textContent"
    assert browser.value(f"{shown} === data.rollouts[{at}].groups[{group}].question")
    assert browser.value("document.querySelectorAll('#rollout-groups [aria-current]').length") == 1
