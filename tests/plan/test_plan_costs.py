"""What the plan says of searches, judges, starts, downloads and money, beside sums made by hand and a run's counts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import MODEL, ChatServer, part, says, scored
from run_files import groups, rows
from verb import printed_json, sleuth, write_rows

from sleuth.host.hardware import Card, read_cards
from sleuth.plan.fit import plan_for_cards
from sleuth.plan.speed import Served
from sleuth.recipe import load_recipe
from sleuth.retrieval.index_card import EncoderCard, IndexCard, expected_card

RECIPES = Path(__file__).parents[2] / "recipes"
WIKI = 21_015_324


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def index(kind: str, count: int, width: int = 768, storage: str | None = None) -> IndexCard:
    encoder = EncoderCard(model="e5", width=width) if kind != "bm25" else None
    return IndexCard(kind=kind, count=count, corpus_sha256="", layout=1, library="", encoder=encoder, storage=storage)


FLAT = 0.264 / 128 + 0.0124
"""Seconds of a query of a million vectors of 768 numbers, where 128 share a scan."""


def test_a_scan_takes_what_was_measured_in_proportion_to_passages_and_numbers() -> None:
    flat = index("dense", 1_000_000, storage="flat")
    assert flat.scan_seconds == pytest.approx(FLAT)
    assert replace(flat, count=WIKI).scan_seconds == pytest.approx(21.015324 * FLAT)
    assert index("dense", 1_000_000, 384, "flat").scan_seconds == pytest.approx(0.5 * FLAT)
    centroids = 4096e-6 * (0.264 + 0.0124)  # of the lists, at which each query looks alone
    assert index("dense", 2_000_000, storage="ivf-sq8").scan_seconds == pytest.approx(centroids + 0.0017 / 128 + 0.01)
    assert index("bm25", 5_000_000).scan_seconds == pytest.approx(5 * 0.002)
    assert index("hybrid", 1_000_000, storage="flat").scan_seconds == pytest.approx(0.002 + FLAT)
    assert index("dense", 1_000_000, storage="of another tool").scan_seconds is None, "was not measured"


def test_the_index_that_is_not_there_yet_is_the_one_that_get_writes() -> None:
    vectors, words = (expected_card(Path("indexes") / f"wiki-18-{name}") for name in ("e5", "bm25"))
    assert vectors is not None
    assert words is not None
    assert (vectors.kind, vectors.count, vectors.storage) == ("dense", WIKI, "flat")
    assert (words.kind, words.count, words.encoder) == ("bm25", WIKI, None)
    assert expected_card(Path("indexes/mine")) is None


def test_the_searches_of_a_published_run_are_told_beside_its_updates() -> None:
    planned = printed_json("plan", RECIPES / "search_r1_slime_3b.toml", "--card", "4 x h100-80", "--threads", 16)
    base, grpo, trained = planned["stages"]
    spent = 256 * WIKI / 1e6 * FLAT  # 32 x 8 episodes, which search once: of two turns the second may only answer
    assert spent == pytest.approx(77.8, abs=0.1)
    assert grpo["step_seconds"]["searches"] == pytest.approx(spent / 16)
    assert grpo["searches"] == 3_000 * 256
    assert base["searches"] == trained["searches"] == 3_610 + 7_405
    assert planned["searches"] == 3_000 * 256 + 2 * (3_610 + 7_405)
    assert planned["seconds"] == pytest.approx(sum(planned["seconds_by_phase"].values()))
    assert planned["seconds_by_phase"]["grpo: searches"] == pytest.approx(3_000 * spent / 16)
    assert planned["threads"] == 16
    told = "dense flat, 21,015,324 passages, as `sleuth get` will write it"
    assert grpo["notes"] == [
        f"grpo: 256 searches a step of indexes/wiki-18-e5 ({told}): 77.8 seconds of a thread, divided by 16"
    ]
    assert planned["downloads"]["indexes/wiki-18-e5"] == WIKI * 768 * 4
    assert planned["downloads"]["Qwen/Qwen2.5-3B"] == 2 * 3_085_938_688
    assert planned["downloads"]["hf://PeterJinGo/nq_hotpotqa_train/train.parquet"] is None


TOY = Card(name="toy", memory=10 * 10**9, flops=1e12, bandwidth=1e11)


def test_calls_take_the_reading_of_prompts_and_decode_steps_bound_by_memory() -> None:
    seconds = Served(weights=1e9, active=1e9).seconds(TOY, 8, read=500, written=100, at_once=4)
    read = 8 * 500 * 2e9 / 0.4e12  # 4,000 tokens at 40 % of the arithmetic
    step = (2e9 + 4 * 100_000 * 550) / 0.6e11  # weights, and half-written sequences of four, at 60 % of the bandwidth
    assert seconds == pytest.approx(read + 2 * 100 * 1.5 * step)  # two waves of 100 tokens, ragged


def test_all_calls_of_judges_and_teachers_are_counted_and_their_cards_are_paid() -> None:
    arguments = ("plan", RECIPES / "thinking_0.6b.toml", "--card", "h100-80", "--price", 2.5)
    planned = printed_json(*arguments)
    calls = {stage["name"]: stage["calls"] for stage in planned["stages"]}
    assert calls == {
        "self-improving": 2_000 * 16 * 136,
        "against_base": 128 * 2,  # in both orders
        "annotated": 28_672,
        "thinking": 0,
        "gate": 64 * 16,
        "rlmt": 200 * 2 * 16,
        "gate_after": 64 * 16,
        "thoughts": 5 * 32 * 4,  # arms of the probe
    }
    assert planned["judge_calls"] == sum(calls.values())
    assert planned["judge_cards"] == 2  # of the teacher of 35B; the run starts the judge of 4B on its own card
    [teaching] = [stage["seconds"] for stage in planned["stages"] if stage["name"] == "annotated"]
    assert 0 < teaching < planned["seconds"] / 2
    assert planned["price"] == pytest.approx((planned["seconds"] + 2 * teaching) / 3600 * 2.5), (
        "it teaches in one stage"
    )
    judge = 2 * 4_022_468_096 / 1e9  # once for the first two stages, and again for the last four
    assert planned["seconds_by_phase"]["start of servers"] == pytest.approx(2 * (60 + judge))
    assert planned["downloads"]["Qwen/Qwen3.6-35B-A3B"] == 70e9
    shown = sleuth(*arguments).stdout
    assert f"price: {planned['price']:,.2f}, for {planned['price'] / 2.5:,.1f} card hours at 2.50" in shown


def test_servers_start_when_a_stage_needs_them_and_saves_take_their_bytes() -> None:
    plan = plan_for_cards(load_recipe(RECIPES / "refiner_4b_rubric.toml"), read_cards("8 x h100-80"))
    weights = 4_022_468_096
    starts = {stage.name: stage.start for stage in plan.stages}
    assert starts == {
        "base": pytest.approx(60 + 2 * weights / 1e9 + 60 + 70),  # of the policy, which stays, and of the judge
        "accepted": 0,  # nobody is asked: the judge's server ends
        "taught": pytest.approx(60 + 70),
        "grpo": 0,
        "trained": 0,
    }
    assert plan.start == pytest.approx(sum(starts.values()))
    saves = plan.seconds_by_phase["grpo: saves"]
    assert saves == pytest.approx(5 * 14 * weights / 1e9)  # after 10, 20, .. 50: bf16 weights, masters, two moments
    assert plan.seconds is not None
    assert plan.seconds == pytest.approx(plan.start + sum(stage.seconds or 0 for stage in plan.stages))
    assert plan.own_cards == 4 + 2 + 2  # ranks, the policy's servers, and the judge's


def test_a_judge_that_runs_already_is_paid_from_the_first_stage_that_asks_it_to_the_last() -> None:
    plan = plan_for_cards(load_recipe(RECIPES / "refiner_4b_audited.toml"), read_cards("8 x h100-80"))
    assert {stage.name: stage.judge_cards for stage in plan.stages} == dict.fromkeys(
        ("base", "accepted", "taught", "grpo", "trained"), 1
    ), "the second judge is asked before and after training"
    assert plan.card_hours == pytest.approx((9 * (plan.seconds or 0) - plan.start) / 3600)


def test_a_sweep_counts_once_what_its_arms_share() -> None:
    arms = RECIPES / "thinking_0.6b_arms.toml"
    arguments = ("--card", "a100-40", "--price", 2)
    swept, alone = (printed_json("plan", arms, *arguments, *more) for more in ((), ("--set", "seeds=[0, 1, 2]")))
    rewarded = swept["arms"]["improved_shown_rewarded"]
    tail = {"gate": 1_024, "rlmt": 6_400, "gate_after": 1_024, "thoughts": 640}
    assert rewarded["calls"] == sum(tail.values()), "its first stages are those of improved and improved_shown"
    assert rewarded["steps"] == 200
    assert swept["arms"]["improved"]["steps"] == 2_000
    assert swept["arms"]["untouched"]["calls"] == 28_672 + 1_024 + 640, "the first arm has the thoughts made"
    assert swept["seconds"] == pytest.approx(sum(arm["seconds"] for arm in swept["arms"].values()))
    assert swept["price"] == pytest.approx(2 * swept["card_hours"])
    assert alone["calls"] == 3 * swept["calls"] - 2 * 28_672, "all seeds read the same thoughts"
    shown = sleuth("plan", arms, "--card", "a100-40").stdout
    assert "in all" in shown
    assert f"{swept['calls']:,}" in shown


RUN = """
name = "counted"
model = "{model}"

[[stage]]
kind = "grpo"
steps = 2
prompts_per_step = 2
samples_per_prompt = 4
learning_rate = 1e-6
slots = 8
context = 400
probe_prompts = 0
data = {{ questions = "{world}/qa_train.jsonl" }}

[stage.env]
kind = "search"
dialect = "sleuth"
prompt = "plain"
index = "{world}/index"
turn_tokens = 48
forced_search = true
searches = 1

[[stage.reward]]
kind = "rubric"
own = false
static = "refiner"
judge = {{ kind = "http", urls = ["{url}"], model = "{judge}" }}

[[stage]]
kind = "supervised"
steps = 2
rows_per_step = 3
learning_rate = 1e-3
data = {{ kind = "text", texts = "{folder}/texts.jsonl", prefix_tokens = 12, suffix_tokens = 8 }}
"""


def by_length(body: dict[str, Any]) -> tuple[int, object]:
    return says(scored(len(part(body, "answer")) % 3))


def test_a_run_makes_the_searches_calls_and_tokens_of_its_plan_and_reports_both(
    run: Callable[..., Path], world: Path, tmp_path: Path
) -> None:
    recipe, folder = tmp_path / "counted.toml", tmp_path / "run"
    passages = (json.loads(line)["contents"] for line in (world / "corpus.jsonl").read_text().splitlines()[:6])
    write_rows(tmp_path / "texts.jsonl", ({"id": str(at), "text": text} for at, text in enumerate(passages)))
    with ChatServer(answer=by_length).running() as server:
        model = Path(__file__).parents[2] / "models" / "tiny-base"
        recipe.write_text(RUN.format(model=model, world=world, folder=tmp_path, url=server.url, judge=MODEL))
        run(recipe, folder)
        asked = len(server.asked)
    stages = printed_json("report", folder)["stages"]
    planned, measured = ({name: stage[side] for name, stage in stages.items()} for side in ("planned", "measured"))
    assert planned["grpo"]["searches"] == measured["grpo"]["searches"] == 2 * 2 * 4
    played = [episode for group in groups(folder) for episode in group.episodes]
    answered = sum(episode.trajectory.stop == "answered" for episode in played)
    assert planned["grpo"]["calls"] == 3 * 16, "up to: three criteria of each answer"
    assert 0 < measured["grpo"]["calls"] == asked == 3 * answered
    dense = sum(row["tokens_dense"] for row in rows(folder) if row["stage"] == "supervised")
    assert planned["supervised"]["computed"] == dense == 2 * 3 * 20
    assert measured["supervised"]["computed"] <= dense, "rows that begin alike share a prefix"
    spent = measured["grpo"]["purposes"]
    assert 0 < spent["searches"] < spent["rollouts"]
    assert 0 < spent["judges"] < spent["rollouts"]
    count = len((world / "corpus.jsonl").read_text().splitlines())
    bm25 = 16 * (0.002 * count / 1e6)  # in the one thread of the run
    assert planned["grpo"]["purposes"]["searches"] == pytest.approx(bm25)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert [cells(page, f"grpo: {what}") for what in ("searches made", "calls of judges")] == [
        ["16", "16"],
        ["48", str(asked)],
    ]


def cells(page: str, label: str) -> list[str]:
    """What the report shows as planned and measured in the row of this label."""
    row = page.partition(f">{label}</td>")[2].partition("</tr>")[0]
    return re.findall(r"<td class=\"num\"[^>]*>([^<]*)<", row)
