"""How sure an answer is: the share of right ones among held-out answers that are about as likely."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sleuth.evaluation.certainty import FILE, Certainty, Step, likelihood
from sleuth.evaluation.intervals import wilson
from sleuth.types import Segment, SleuthError

ANSWERS = [(at / 400, at % 20 == 0) for at in range(100)]  # 5 of 100 are right
ANSWERS += [(at / 400, at % 10 == 0) for at in range(100, 200)]  # 10
ANSWERS += [(at / 400, at % 25 == 0) for at in range(200, 300)]  # 4: fewer than below, and pooled with them
ANSWERS += [(at / 400, at % 2 == 0) for at in range(300, 450)]  # 75 of 150


def test_shares_rise_with_the_likelihood_and_have_the_interval_of_their_answers() -> None:
    certainty = Certainty.fit(ANSWERS[::-1])
    assert certainty.steps == (
        Step(above=-math.inf, right=5, n=100),
        Step(above=0.25, right=14, n=200),
        Step(above=0.75, right=75, n=150),
    )
    for likely, right, n in ((-9.0, 5, 100), (0.2499, 5, 100), (0.25, 14, 200), (0.75, 75, 150), (5.0, 75, 150)):
        assert certainty.share_right(likely) == wilson(right, n)


def test_below_the_threshold_is_at_most_a_tenth_of_the_right_answers() -> None:
    threshold = Certainty.fit(ANSWERS).threshold
    right = sorted(likely for likely, is_right in ANSWERS if is_right)
    assert len(right) == 94
    assert [likely < threshold for likely in right].count(True) == 9
    assert Certainty.fit([(0.5, True)] * 20).threshold == 0.5  # none of equals is lost


def test_answers_of_which_none_is_right_give_no_certainty() -> None:
    with pytest.raises(SleuthError, match="none of 3 answers is right"):
        Certainty.fit([(0.5, False)] * 3)


def test_it_is_read_as_it_was_written_and_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    assert Certainty.read(tmp_path) is None
    fitted = Certainty.fit(ANSWERS)
    fitted.write(tmp_path)
    assert Certainty.read(tmp_path) == fitted
    whole = json.loads((tmp_path / FILE).read_text())
    steps = whole["steps"]
    for damaged in (
        "",
        [],
        {"threshold": 1},
        whole | {"steps": []},
        whole | {"steps": steps[::-1]},
        whole | {"steps": [7]},
    ):
        (tmp_path / FILE).write_text(damaged if isinstance(damaged, str) else json.dumps(damaged))
        with pytest.raises(SleuthError, match=rf"{FILE}: no certainty .* write it again"):
            Certainty.read(tmp_path)


def test_the_likelihood_of_an_answer_is_the_mean_of_its_turn() -> None:
    query = Segment(author="policy", tokens=(1, 2), text="<search> Ada</search>", logprobs=(-5.0, -5.0))
    found = Segment(author="env", tokens=(3,), text="<passage> Tarn")
    answer = Segment(author="policy", tokens=(4, 5), text="<answer> Tarn</answer>", logprobs=(-0.25, -0.75))
    assert likelihood([query, found, answer, found]) == -0.5
    assert likelihood([found]) is None
    assert likelihood([Segment(author="policy", tokens=(4,), text="Tarn")]) is None
