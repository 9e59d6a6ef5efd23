"""How sure an answer is: the share of right ones among held-out answers with signals like its own."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from sleuth.evaluation.certainty import FILE, Certainty, Step, signals_of
from sleuth.evaluation.intervals import wilson
from sleuth.read.dialect import READING
from sleuth.search.dialects import SLEUTH
from sleuth.types import Action, Passage, Segment, SleuthError, Trajectory

ANSWERS = [((at / 400,), at % 20 == 0) for at in range(100)]  # 5 of 100 are right
ANSWERS += [((at / 400,), at % 10 == 0) for at in range(100, 200)]  # 10
ANSWERS += [((at / 400,), at % 25 == 0) for at in range(200, 300)]  # 4: fewer than below, and pooled with them
ANSWERS += [((at / 400,), at % 2 == 0) for at in range(300, 450)]  # 75 of 150


def test_shares_rise_with_the_signal_and_have_the_interval_of_their_answers() -> None:
    certainty = Certainty.fit(ANSWERS[::-1])
    assert certainty.weights[0] > 0
    assert [(step.right, step.n) for step in certainty.steps] == [(5, 100), (14, 200), (75, 150)]
    for signal, right, n in ((-9.0, 5, 100), (0.2499, 5, 100), (0.25, 14, 200), (0.75, 75, 150), (5.0, 75, 150)):
        assert certainty.share_right((signal,)) == wilson(right, n)


def test_at_most_a_tenth_of_the_right_answers_are_withheld() -> None:
    certainty = Certainty.fit(ANSWERS)
    right = [signals for signals, is_right in ANSWERS if is_right]
    assert (len(right), sum(map(certainty.withholds, right))) == (94, 9)
    equal = Certainty.fit([((0.5,), True)] * 20)
    assert not equal.withholds((0.5,))  # none of equals is lost


def test_a_signal_that_tells_nothing_gets_next_to_no_weight() -> None:
    draws = random.Random(0)
    certainty = Certainty.fit([((signal, draws.random()), is_right) for (signal,), is_right in ANSWERS])
    telling, noise, _ = certainty.weights
    assert telling > 2
    assert abs(noise) < telling / 4


def test_answers_of_which_none_is_right_give_no_certainty() -> None:
    with pytest.raises(SleuthError, match="none of 3 answers is right"):
        Certainty.fit([((0.5,), False)] * 3)


def test_it_is_read_as_it_was_written_and_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    assert Certainty.read(tmp_path) is None
    fitted = Certainty.fit(ANSWERS)
    fitted.write(tmp_path)
    assert Certainty.read(tmp_path) == fitted
    whole = json.loads((tmp_path / FILE).read_text())
    for damaged in ("", [], {"threshold": 1}, whole | {"steps": []}, whole | {"steps": whole["steps"][::-1]}):
        (tmp_path / FILE).write_text(damaged if isinstance(damaged, str) else json.dumps(damaged))
        with pytest.raises(SleuthError, match=rf"{FILE}: no certainty .* write it again"):
            Certainty.read(tmp_path)


def test_other_answers_give_the_same_weights_other_shares_and_another_threshold() -> None:
    base = Certainty(weights=(2.0, 1.0), threshold=9.0, steps=(Step(above=0.0, right=1, n=2),))
    right, wrong = [((at / 10,), True) for at in range(40)], [((-1.0,), False)] * 60
    measured = base.measured([*right, (None, False), *wrong])
    assert measured == Certainty(weights=(2.0, 1.0), threshold=1.8, steps=(Step(above=-1.0, right=40, n=100),))
    assert sum(measured.withholds(signals) for signals, _ in right) == 4  # a tenth of 40
    fourth = base.losing(0.25, [*right, *wrong])
    assert (fourth.threshold, fourth.steps) == (3.0, base.steps)


TARN = Passage(id="2", title="Ada Voss", text="She was born there, in Tarn, by the lake." + " mill" * 60)
ANSWER = "<answer> Tarn [, by the lake.]</answer>"


def episode(answer: str, *passages: Passage) -> Trajectory:
    shown = "".join(f"<passage> {passage.title} | {passage.text}" for passage in passages)
    segments = (
        Segment(author="policy", tokens=(1, 2), text="<search> Ada</search>", logprobs=(-5.0, -5.0)),
        Segment(author="env", tokens=(3,), text=f"{shown}</information>"),
        Segment(author="policy", tokens=(4, 5), text=answer, logprobs=(-0.25, -0.75)),
    )
    actions = (Action(kind="search", text="Ada", passages=passages), Action(kind="answer", text="Tarn"))
    return Trajectory(segments=segments, actions=actions)


def test_signals_are_of_the_last_turn_and_of_the_place_that_it_quotes() -> None:
    question = "Where was the painter Ada Voss, who had a mill, born?"  # painter, ada, voss, mill, born
    assert signals_of(question, "Tarn", episode(ANSWER, TARN), READING) == (-0.5, 1.0, pytest.approx(4 / 5), 0.0)
    far = replace(TARN, title="", text=TARN.text + " Ada")  # mills are near enough, Ada is not
    assert signals_of(question, "Tarn", episode(ANSWER, far), READING) == (-0.5, 1.0, pytest.approx(2 / 5), 0.0)
    assert signals_of("Is it Tarn?", "Tarn", episode(ANSWER), READING) == (-0.5, 0.0, 0.0, 1.0)


def test_a_dialect_that_does_not_quote_is_measured_where_the_answer_stands() -> None:
    trajectory = episode("<answer> Tarn</answer>", TARN)
    assert signals_of("Who was born?", "Tarn", trajectory, SLEUTH) == (-0.5, 1.0, 1.0, 0.0)
    without = replace(trajectory, segments=(replace(trajectory.segments[-1], logprobs=None),))
    assert signals_of("Who was born?", "Tarn", without, SLEUTH) is None
