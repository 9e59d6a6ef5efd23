"""Texts that a stranger wrote, in the report and on the page of `sleuth watch`, in a real browser."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from hostile import PASSAGES
from synthetic_run import HOSTILE, byte_tokenizer, rollout_group, write_run

from sleuth.report import write_report
from sleuth.runs.rollouts import write_rollouts
from sleuth.types import Action, Episode, Group, Passage

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
ASTRAY = """[...document.querySelectorAll('summary bdi')].filter((title) => {
  const after = title.parentNode.querySelector('.muted').getBoundingClientRect();
  const own = title.getBoundingClientRect();
  return own.width && after.left < own.right - 1 && after.top < own.bottom - 3;
}).map((title) => title.textContent)"""
"""Titles in a line with an id that does not follow them."""
BACKWARD = "/[\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText)"
"""Whether a mark of direction is anywhere but in folded parts."""
TURNED = "\u2069\u202e\u2066" + HOSTILE


def group_of(number: int) -> Group:
    """A question whose search found all texts."""
    found = tuple(Passage(id=name, title=text, text=text + HOSTILE) for name, text in PASSAGES.items())
    group = rollout_group(random.Random(number), 0.5, number, byte_tokenizer())
    task = replace(group.task, question=TURNED + list(PASSAGES.values())[number])

    def hostile(episode: Episode) -> Episode:
        trajectory = episode.trajectories[0]
        search = Action(kind="search", text=TURNED, passages=found)
        return replace(episode, task=task, trajectories=(replace(trajectory, actions=(search,)),))

    return replace(group, task=task, episodes=tuple(map(hostile, group.episodes)))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = write_run(tmp_path / "demo", questions=4, rollout_steps=())
    groups = [group_of(number) for number in range(8)]
    write_rollouts(run / "rollouts/step-000060.parquet", groups, [[0.5] * len(groups[0].episodes)] * 8)
    evaluation = json.loads((run / "eval/base.json").read_text())
    (run / "eval/base.json").write_text(json.dumps(evaluation | {"model": TURNED, f"kind_{TURNED}": evaluation["em"]}))
    return run


def read_all(browser: Browser) -> None:
    browser.wait("document.querySelectorAll('#rollout-detail details.passage').length >= 20")
    assert browser.value(ASTRAY) == []
    assert browser.value(BACKWARD) is False
    assert browser.value("document.querySelectorAll('main script, main img, header script').length") == 0
    assert browser.complaints == []


def test_the_report_shows_hostile_passages_and_runs_nothing(run: Path, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.open(write_report(run).as_uri())
        read_all(browser)
        assert r"\u202e" in browser.value("document.querySelector('#figures').textContent")
