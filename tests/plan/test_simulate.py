"""Steps that are played out in events take the time that arithmetic and real runs say, and what saturates is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from verb import printed_json, sleuth

from sleuth.plan.parts import Parts, measured_parts
from sleuth.plan.simulate import Split, best_split, simulate
from sleuth.types import SleuthError

ONE = [[(10, 10, False)]]
EVEN = Parts(groups=[ONE], token=lambda n: 0.1, updates=[2.0], publishes=[0.5])
SPLIT = Split(servers=1, ranks=1, slots=16, prompts=4, samples=4, lag=0)


@pytest.mark.parametrize(("lag", "seconds"), [(0, 3.5), (1, 2.5), (2, 2.5)])
def test_a_step_waits_for_its_episodes_unless_they_are_played_ahead(lag, seconds):
    found = simulate(EVEN, replace(SPLIT, lag=lag))
    assert found.step == pytest.approx(seconds)
    assert found.busy["trainer"] == pytest.approx(2.5 / seconds)
    assert found.limit == "trainer"


def test_turns_of_a_server_share_it_and_wait_for_its_slots():
    shared = replace(EVEN, token=lambda n: 0.1 * n, publishes=[0.0])
    assert simulate(shared, replace(SPLIT, prompts=1)).step == pytest.approx(2.0 + 10 * 0.1 * 4)
    assert simulate(EVEN, replace(SPLIT, slots=8)).step == pytest.approx(2.5 + 2 * 1.0)
    assert simulate(shared, replace(SPLIT, servers=4)).step == pytest.approx(2.0 + 10 * 0.1 * 4)
    assert simulate(EVEN, replace(SPLIT, ranks=4)).step == pytest.approx(2.0 / 4 + 0.5 + 1.0)
    read = replace(EVEN, prefill=0.05)
    assert simulate(read, SPLIT).step == pytest.approx(3.5 + 10 * 0.05)


def test_the_time_of_a_step_with_a_long_tail_is_that_of_its_longest_episode():
    ragged = replace(EVEN, groups=[[[(10, 10, False)]] * 3 + [[(10, 90, False)]]], publishes=[0.0])
    assert simulate(ragged, SPLIT).step == pytest.approx(2.0 + 9.0)
    ahead = simulate(ragged, replace(SPLIT, lag=4), steps=40)
    assert ahead.step < 4.0  # long episodes last over several steps
    assert ahead.busy["trainer"] > 0.5


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"groups": [[[(10, 10, True), (10, 10, False)]]], "searches": [1.0]}, "retriever"),
        ({"questions": 2, "judges": [2.0]}, "judges"),
        ({"client": [0.5]}, "client"),
        ({"updates": [0.1], "publishes": [0.0], "groups": [[[(10, 100, False)]]]}, "servers"),
    ],
)
def test_what_saturates_is_named(changes, limit):
    found = simulate(replace(EVEN, **changes), replace(SPLIT, lag=2))
    assert found.limit == limit
    assert found.busy[limit] > 0.95


def test_the_best_split_balances_servers_and_ranks():
    parts = replace(EVEN, token=lambda n: 0.1 * n, publishes=[0.0], updates=[32.0])
    wide = replace(SPLIT, prompts=16, lag=2, slots=64)  # 64 s of a server and 32 of a rank
    best = best_split(parts, 8, wide)
    assert (best.split.servers, best.split.ranks) == (5, 3)
    assert best_split(parts, 8, wide, least_ranks=6).split.ranks == 6
    assert best_split(parts, 1, wide).split.lag == 0


@pytest.mark.long
def test_the_table_of_cards_says_what_a_thousand_episodes_over_wiki_18_wait_for():
    sizes = [f"grpo.{size}" for size in ("prompts_per_step=125", "samples_per_prompt=8")]
    options = [option for size in sizes for option in ("--set", size)]
    arguments = ("plan", "recipes/search_r1_grpo_3b.toml", "--simulate", "--card", "h100-80", "--threads", 4, *options)
    [stage] = printed_json(*arguments)["stages"]
    assert (stage["stage"], stage["live"], stage["measured_step"]) == ("grpo", 1000, None)
    limits = {cards: split["limit"] for cards, split in stage["splits"].items()}
    assert set(limits.values()) == {"retriever"}  # flat vectors of wiki-18 on four threads
    many = printed_json(*arguments, "--threads", 400)["stages"][0]["splits"]
    assert many["64"]["limit"] != "retriever"
    assert many["64"]["step"] < stage["splits"]["64"]["step"] / 4


@pytest.mark.parametrize(
    "arguments",
    [("--simulate",), ("--measured", "runs/x"), ("--simulate", "--card", "h100-80", "--measured", "runs/x")],
)
def test_times_come_from_a_card_or_a_run(arguments):
    result = sleuth("plan", "recipes/demo.toml", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "--simulate needs times" in result.stderr


@pytest.mark.parametrize(
    ("card", "settings", "said"),
    [
        ("nonsense", (), "--card nonsense: no card is called"),
        ("4GB", (), "grpo: 32 cards of 4 GB do not hold its learner"),
        (
            "h100-80",
            ("--set", 'stage=[{ kind = "reason", name = "r", sets = [{ layout = "gsm8k", problems = "p" }] }]'),
            "the recipe has none",
        ),
    ],
)
def test_what_cannot_be_simulated_is_one_line(card, settings, said):
    result = sleuth("plan", "recipes/search_r1_grpo_3b.toml", "--simulate", "--card", card, *settings)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert said in result.stderr


def test_cards_that_the_learner_needs_for_itself_are_not_split():
    arguments = ("--simulate", "--card", "20GB", "--threads", 8, "--set", "grpo.prompts_per_step=2")
    [stage] = printed_json("plan", "recipes/search_r1_grpo_3b.toml", *arguments)["stages"]
    assert set(stage["splits"]) == {"64"}


def test_a_run_whose_turns_were_not_timed_is_one_line(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"stage": "grpo", "step": 1}\n{"stage": "grpo", "step": 2}\n')
    with pytest.raises(SleuthError, match="whose turns were timed"):
        measured_parts(tmp_path, "grpo", 1)
