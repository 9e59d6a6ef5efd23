"""A step that was recorded can be computed again: the same, or under another reward, loss or layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_files import rows
from verb import sleuth

from sleuth.answers import answer


@pytest.fixture
def folder(finished) -> Path:
    return finished().parents[1]


def replayed(folder: Path, step: int, *options: str) -> dict[str, Any]:
    result = sleuth("replay", folder, step, "--json", *options)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.sentinel
def test_a_recorded_step_is_computed_again_to_the_last_bit(folder):
    taught, losses = 0, {row["step"]: row["loss"] for row in rows(folder)}
    for step in range(1, 5):  # checkpoints are there after steps 2 and 4: the others need updates made again
        found = replayed(folder, step)
        assert found["loss"] == found["recorded_loss"] == found["changed_loss"] == losses[step]
        assert found["scores_changed"] == 0
        taught += found["loss"] is not None
        assert found["cosine"] is None or found["cosine"] == pytest.approx(1, abs=1e-12)
    assert taught


def test_another_layout_loss_or_reward_says_what_it_would_have_changed(folder, monkeypatch):
    found = replayed(folder, 4, "--layout", "padded")
    assert found["changed_loss"] == pytest.approx(found["loss"], rel=1e-5)
    assert found["cosine"] == pytest.approx(1, abs=1e-6)
    found = replayed(folder, 4, "--set", 'stage.1.loss.normalise="sequence"')
    assert found["changed_loss"] != found["loss"]
    assert 0 < found["cosine"] < 1
    found = replayed(folder, 4, "--set", "stage.1.loss.beta=0.5")  # with a reference, which the run did without
    assert found["loss"] == found["recorded_loss"]
    assert found["changed_loss"] > found["loss"]  # a divergence is never negative, and three updates made one
    monkeypatch.setattr(answer, "exact_match", lambda *_: False)  # a scorer to whom nothing is right
    found = replayed(folder, 4)
    assert found["scores_changed"] > 0
    assert found["changed_loss"] is None


@pytest.mark.parametrize(
    ("place", "step", "said"), [("0000", 1, "holds no run"), ("", 9, "step 9 belongs to no GRPO stage")]
)
def test_what_cannot_be_replayed_is_told_in_one_line(folder, place, step, said):
    result = sleuth("replay", folder / place, step)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert said in line
