"""Best and worst of a pool: what is a pair, what a tie, and what is dropped."""

from __future__ import annotations

import pytest
from continuations import continued

from sleuth.think.comparisons import candidate
from sleuth.think.pools import Choice, choose, pair_of, pool_figures, signs_of
from sleuth.types import Author, Group, Score, Segment

PREFIX = Segment(author="source", tokens=(1, 2, 3), text="Ada was born in")
TASK = continued(PREFIX, Segment(author="source", tokens=(4, 5), text=" Tarn."), "Tarn")


def pool(*scores: float | None) -> Group:
    """The last candidate is the original."""
    authors: list[Author] = [*["policy"] * (len(scores) - 1), "source"]  # type: ignore[list-item]
    segments = [Segment(author=author, tokens=(6, 7 + at), text=f" {at}") for at, author in enumerate(authors)]
    episodes = tuple(candidate(TASK, at, segment, "eos") for at, segment in enumerate(segments))
    return Group(task=TASK, episodes=episodes, scores=tuple(Score(value=score) for score in scores))


@pytest.mark.parametrize(
    ("scores", "outcome"),
    [
        ((None, 0.1, 0.9), "pair"),
        ((None, None, 0.1, 0.9), "pair"),
        ((None, None, None, 0.1, 0.9), "dropped"),
        ((None, 0.9), "dropped"),
        ((None, None), "dropped"),
    ],
)
def test_a_pool_of_which_half_has_no_score_is_dropped_and_missing_ones_are_never_chosen(
    scores: tuple[float | None, ...], outcome: str
):
    choice = choose(pool(*scores), ())
    assert choice.outcome == outcome
    for place in (choice.best, choice.worst):
        assert place is None or scores[place] is not None


def test_among_equals_the_key_draws_and_the_same_key_draws_the_same():
    group = pool(0.9, 0.1, 0.9, 0.1, 0.9)
    drawn = [choose(group, (key,)) for key in range(60)]
    assert {choice.best for choice in drawn} == {0, 2, 4}
    assert {choice.worst for choice in drawn} == {1, 3}
    assert drawn == [choose(group, (key,)) for key in range(60)]


def test_a_pair_trains_suffixes_whoever_wrote_them_and_a_stored_pool_tells_which_two():
    group = pool(0.2, 0.4, None, 0.9)
    choice = choose(group, ())
    assert signs_of(group, choice) == [-1.0, None, None, 1.0]
    pair = pair_of(group, choice)
    assert pair is not None
    for row, at in zip(pair, (3, 0), strict=True):
        assert row.tokens == (*PREFIX.tokens, 6, 7 + at)
        assert row.trained == (False, False, False, True, True)
    assert signs_of(pool(0.5, 0.5), Choice(outcome="tie")) == [None, None]
    assert pair_of(pool(0.5, 0.5), Choice(outcome="tie")) is None


def test_the_figures_of_a_step_by_hand():
    groups = [
        pool(1.0, 0.0, 0.5),  # the policy's best beats the original, its worst does not
        pool(0.25, 0.25, 1.0),  # the original is the best
        pool(0.5, 0.5, 0.5),  # a tie
        pool(None, None, 0.5),  # dropped
    ]
    choices = [choose(group, ()) for group in groups]
    figures = pool_figures(groups, choices)
    assert figures["reward_mean"] == pytest.approx((1.0 + 0.0 + 0.25 + 0.25 + 0.5 + 0.5) / 6)
    assert (figures["nonzero_advantage_fraction"], figures["ties"], figures["dropped"]) == (0.5, 0.25, 0.25)
    assert figures["missing_fraction"] == pytest.approx(2 / 12)
    assert figures["chosen_over_original"] == pytest.approx((1.0 + 0.5) / 2)
    assert figures["rollouts_over_original"] == pytest.approx((1 + 0 + 0 + 0 + 0.5 + 0.5) / 6)
    assert (figures["chosen_by_policy"], figures["chosen_by_source"]) == (0.5, 0.5)
    assert figures["response_tokens_mean"] == 2.0
