"""What a step is said to have been: missing is missing, never zero."""

from __future__ import annotations

import pytest
from written_groups import make_group, written

from sleuth.training.step_metrics import probe_lines, sampled_entropy, step_figures
from sleuth.types import Action, Score, Segment, Trajectory

SEARCHED = Trajectory(segments=(), actions=(Action(kind="search", text="x"),))
FAILED = Trajectory(segments=(), stop="failed")
RIGHT, WRONG = Score(value=1.0, parts={"em": 1.0}), Score(value=0.0, parts={"em": 0.0})
MISSING = Score(value=None, note="retriever failed")


def test_an_episode_that_a_retriever_cut_short_is_counted_as_missing_and_nowhere_else():
    figures = step_figures([make_group((SEARCHED, RIGHT), (SEARCHED, WRONG), (FAILED, MISSING))], [[1.0, -1.0, None]])
    assert (figures["reward_mean"], figures["em"], figures["searched"], figures["searches_mean"]) == (0.5, 0.5, 1, 1)
    assert figures["missing_fraction"] == 1 - 2 / 3
    assert figures["nonzero_advantage_fraction"] == 1.0


def test_a_step_of_nothing_but_failures_has_no_means():
    figures = step_figures([make_group((FAILED, MISSING), (FAILED, MISSING))], [[None, None]])
    assert (figures["reward_mean"], figures["searched"], figures["missing_fraction"]) == (None, None, 1.0)
    assert figures["dropped_groups"] == 1


HALF = Score(value=0.5, parts={"correct": 1.0})  # a right answer of a reward whose weight is a half
IDLE = Trajectory(segments=())


@pytest.mark.parametrize(
    ("played", "how", "last"),
    [
        ([(SEARCHED, RIGHT), (FAILED, MISSING), (FAILED, MISSING)], {}, "too easy"),  # missing is not wrong
        ([(FAILED, MISSING)], {}, "probe of 1 questions: every score is missing (retriever failed)"),
        ([(SEARCHED, HALF)] * 2, {"right": lambda score: score.parts["correct"]}, "too easy"),
        ([(SEARCHED, HALF)] * 2, {}, "all wrong"),
        (
            [(IDLE, RIGHT), (IDLE, WRONG)],
            {"searches": False},  # of a refiner
            "100% of groups carry signal, 100% of episodes end with an answer",
        ),
    ],
)
def test_the_probe_says_what_there_is_to_learn(played, how, last):
    assert last in probe_lines([make_group(*played)], **how)[-1]


def test_the_probe_says_what_to_do_where_nothing_can_be_learned():
    [figures, search, level] = probe_lines([make_group((IDLE, WRONG), (IDLE, WRONG))])
    assert "0% of groups carry signal, 0% of episodes search" in figures
    assert "worked example" in search
    assert "all wrong" in level


def test_groups_that_were_replaced_are_counted_and_count_in_what_was_played():
    idle, useful = make_group((SEARCHED, WRONG), (SEARCHED, WRONG)), make_group((SEARCHED, RIGHT), (SEARCHED, WRONG))
    dropped = make_group((SEARCHED, RIGHT), (FAILED, MISSING))
    figures = step_figures([idle, useful, dropped], [[None, None], [1.0, -1.0], [None, None]], replaced={0})
    assert (figures["replaced_groups"], figures["dropped_groups"]) == (1, 1)
    assert (figures["reward_mean"], figures["nonzero_advantage_fraction"]) == (2 / 5, 1 / 3)


def test_the_entropy_of_what_was_sampled_is_the_mean_surprise_of_the_policys_tokens():
    read = Segment(author="env", tokens=(3,), text="c")
    spoken = Trajectory(segments=(written(1, 2, logprobs=(-0.5, -1.5)), read))
    assert sampled_entropy([make_group((spoken, RIGHT))]) == 1.0
    assert sampled_entropy([make_group((Trajectory(segments=(read,)), RIGHT))]) is None


def test_the_means_of_all_parts_are_told_and_never_take_the_place_of_a_figure():
    paid = Score(value=0.9, parts={"em": 0.0, "wrong": 1.0, "score_verl": 1.0, "format": 0.5, "searched": 0.0})
    unpaid = Score(value=None, parts={"em": 1.0, "correct": 1.0, "format": 1.0})
    figures = step_figures([make_group((SEARCHED, paid), (SEARCHED, RIGHT), (SEARCHED, unpaid))], [[1.0, -1.0, None]])
    assert (figures["em"], figures["score_verl"], figures["format"]) == (2 / 3, 1.0, 0.75)
    assert (figures["reward_mean"], figures["missing_fraction"]) == (0.95, 1 - 2 / 3)
    assert figures["searched"] == 1.0  # of the episodes that were played, as ever
    assert not {"wrong", "correct"} & figures.keys()
