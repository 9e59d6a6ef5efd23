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


def test_every_stored_episode_is_loaded_from_beside_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sleuth.report.rollouts_shown.MAX_STEPS", 2)
    monkeypatch.setattr("sleuth.report.rollouts_shown.MAX_GROUPS", 1)
    run = write_run(tmp_path / "demo", steps=4, rollout_steps=(1, 2, 3, 4), groups=2)
    page = write_report(run, all_rollouts=True)
    counted = "document.getElementById('rollout-count').textContent"
    groups = "document.querySelectorAll('#rollout-groups button').length"
    with Browser(tmp_path / "profile") as browser:
        browser.open(page.as_uri())
        assert browser.value("data.rollouts.slice(1, 3).map((one) => one.groups.length)") == [0, 0]
        for step in (3, 1, 4):
            browser.value(
                "(() => { const slider = document.getElementById('rollout-step');"
                f" slider.value = {step - 1}; slider.dispatchEvent(new Event('input')); }})()"
            )
            browser.wait(f"{counted} === '2 of 2 groups'")
            assert browser.value(groups) == 2
            assert browser.value("location.hash").startswith(f"#rollout={step},")
        browser.value("document.querySelectorAll('#rollout-groups button')[1].click()")
        browser.wait("location.hash === '#rollout=4,1,0'")
        assert "Question: where was" in browser.value("document.querySelector('.transcript').textContent")
        (run / "report_rollouts/step-000002.js").unlink()
        browser.value("location.hash = '#rollout=2,0,0'")
        browser.wait(f"{counted}.startsWith('report_rollouts/step-000002.js is not beside this page')")
        assert browser.value(groups) == 0


def test_the_viewer_opens_where_siblings_differ(browser: Browser) -> None:
    at, group = browser.value("data.opened")
    scores = browser.value(f"data.rollouts[{at}].groups[{group}].siblings.map((one) => one.score)")
    assert {0, 1} <= set(scores)
    shown = "document.querySelector('#rollout-detail h3').textContent"
    assert browser.value(f"{shown} === data.rollouts[{at}].groups[{group}].question")
    assert browser.value("document.querySelectorAll('#rollout-groups [aria-current]').length") == 1
