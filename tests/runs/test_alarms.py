"""Each alarm rises when its disease is there, and only then. The runs are made of the figures that tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from sleuth.recipe import load_recipe
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.training import Alarm
from sleuth.runs.alarms import DETECTORS, QUIET, RECENT, diagnose

DEMO = Path(__file__).parents[2] / "recipes/demo.toml"
HEALTHY = {
    "reward_mean": 0.5,
    "reward_max": 1.0,
    "entropy": 0.5,
    "response_tokens_mean": 40.0,
    "searched": 0.9,
    "empty_thoughts": 0.1,
    "thought_artefacts": 0.0,
    "copied": 0.2,
    "gain": 0.3,
    "swapped_gain": -0.2,
    "nonzero_advantage_fraction": 0.6,
    "missing_fraction": 0.0,
    "sampler_learner_kl": 1e-7,
    "changed_weights_fraction": 0.9,
    "loss": 0.1,
}


def rows(count: int = 30, **changes: Any) -> list[dict[str, Any]]:
    """A run of `count` steps; the figures in `changes` are so in the last third."""
    sick = count - count // 3
    return [HEALTHY | (changes if at >= sick else {}) for at in range(count)]


DISEASED = {
    "reward_collapse": {"reward_mean": 0.2},
    "entropy_collapse": {"entropy": 0.01},
    "length_runaway": {"response_tokens_mean": 100.0},
    "tool_abandonment": {"searched": 0.05},
    "no_signal": {"nonzero_advantage_fraction": 0.0},
    "gamed_reward": {"tricks_won": ["filler"], "honest_paid": 0.9},
    "hollow_thoughts": {"empty_thoughts": 0.9},
    "mismatch": {"sampler_learner_kl": 0.3},
    "tiny_updates": {"changed_weights_fraction": 0.001},
    "not_finite": {"not_finite": "the loss of update 20 is nan"},
}


def test_a_healthy_run_raises_no_alarm() -> None:
    assert diagnose(rows()) == {}
    assert diagnose(rows(1)) == {}


def test_what_older_weights_wrote_is_another_policys_and_no_alarm() -> None:
    assert diagnose(rows(sampler_learner_kl=0.3, off_policy_fraction=1.0)) == {}
    assert set(diagnose(rows(sampler_learner_kl=0.3, off_policy_fraction=0.0))) == {"mismatch"}


@pytest.mark.parametrize("name", DETECTORS)
def test_a_disease_raises_its_alarm_and_no_other(name: str) -> None:
    assert diagnose(rows(**DISEASED[name])).keys() == {name}


def test_every_disease_has_its_key_in_the_recipe() -> None:
    assert DETECTORS.keys() == {*get_args(Alarm)} == DISEASED.keys()


def test_a_figure_that_is_not_there_raises_nothing() -> None:
    assert diagnose([{"loss": 0.5, "entropy": None, "changed_weights_fraction": 0.9}] * 30) == {}


def test_an_alarm_that_was_raised_stays_quiet_for_a_while() -> None:
    run = rows(90, nonzero_advantage_fraction=0.0)
    first = next(at for at in range(len(run)) if diagnose(run[: at + 1]))
    run[first] |= {"alarms": ["no_signal"]}
    assert diagnose(run[: first + QUIET]) == {}
    assert diagnose(run[: first + QUIET + 2]).keys() == {"no_signal"}


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        ({"reward_mean": 0.0, "reward_max": 0.0}, "every episode is wrong"),
        ({"reward_mean": 1.0, "reward_max": 1.0}, "every episode is right"),
        ({"reward_mean": None, "reward_max": None}, "every score is missing"),
        ({"reward_mean": 0.4, "reward_max": 1.0}, "siblings always score the same"),
    ],
)
def test_where_there_is_no_signal_the_alarm_says_why(figures: dict[str, Any], why: str) -> None:
    run = [HEALTHY] * 3 + [HEALTHY | figures | {"nonzero_advantage_fraction": 0.0}] * RECENT
    assert why in diagnose(run)["no_signal"]
    assert "no_signal" not in diagnose([*run[:-1], run[-1] | {"teacher_kl": 0.3}])


def test_a_policy_that_is_sure_because_it_is_right_is_not_sick() -> None:
    assert diagnose(rows(entropy=0.001, reward_mean=0.97)) == {}


def test_longer_and_better_is_no_runaway() -> None:
    assert diagnose(rows(response_tokens_mean=100.0, reward_mean=0.7)) == {}


@pytest.mark.parametrize(
    ("figures", "what"),
    [
        ({"empty_thoughts": 0.9}, "90% of the thoughts hold no word"),
        ({"thought_artefacts": 0.6}, "60% of the thoughts hold tags"),
        ({"copied": 0.8}, "80% of the words of thoughts are copied"),
        ({"swapped_gain": 0.3}, "thoughts of other texts gain 0.30 nats a token, and the text's own 0.30"),
    ],
)
def test_hollow_thoughts_are_called_what_they_are(figures: dict[str, Any], what: str) -> None:
    assert diagnose(rows(**figures))["hollow_thoughts"].startswith(what)


def test_thoughts_that_were_so_from_the_first_step_or_gain_nothing_are_no_disease() -> None:
    """Where the data's own thoughts quote, the policy may."""
    assert diagnose([HEALTHY | {"copied": 0.8}] * 30) == {}
    assert diagnose([HEALTHY | {"gain": -0.4, "swapped_gain": -0.3}] * 30) == {}


def test_actions_that_are_taken_anyway_are_not_recorded_as_former_recipes_have_them() -> None:
    recipe = load_recipe(DEMO, ['grpo.alarms = {no_signal = "warn", mismatch = "off", not_finite = "stop"}'])
    [stage] = [stage for stage in recipe.stage if isinstance(stage, GrpoRecipe)]
    assert stage.alarms == {"mismatch": "off"}
    assert [stage.alarm_action(name) for name in ("mismatch", "no_signal", "not_finite")] == ["off", "warn", "stop"]
